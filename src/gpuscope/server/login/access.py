"""The access policy of the whole server: checks host, origin, identity and permission, in this order.

Access is denied by default, so a route added elsewhere requires a login. Exceptions: the health checks, the
login itself, and the page's files, which show the login form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuscope.limits import Limits
from gpuscope.server.http.addresses import Network
from gpuscope.server.http.connection_limit import ConnectionLimit
from gpuscope.server.http.messages import Handler, Request, RequestGuard, Response
from gpuscope.server.login.authenticator import Authenticator, ClientIdentity
from gpuscope.server.login.client_request import ClientRequest, read_client_request
from gpuscope.server.login.first_user_setup import FirstUserSetup
from gpuscope.server.login.login_responses import refusal_response
from gpuscope.server.login.origin_rules import (
    HostRule,
    cross_site_error,
    has_proof_of_origin,
    host_error,
    is_change,
)
from gpuscope.server.login.password_checks import Refusal
from gpuscope.server.login.routes import CLIENT_REQUEST_KEY, IDENTITY_KEY, LOGIN_PATH, LoginRoutes
from gpuscope.server.page_routes import page_file

HEALTH_PATHS = ("/-/healthy", "/-/ready")
WRITE_PATH = "/api/v1/write"


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Without a guard and an authenticator the server is open; it then listens on loopback only."""

    hosts: HostRule
    proxies: Sequence[Network] = ()
    guard: RequestGuard | None = None  # basic auth of a web configuration file
    authenticator: Authenticator | None = None
    setup: FirstUserSetup | None = None
    clients: ConnectionLimit = field(default_factory=lambda: ConnectionLimit(Limits()))  # behind proxies
    login: LoginRoutes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "login", LoginRoutes(self.authenticator, self.setup))

    async def authorize(
        self, request: Request, client_request: ClientRequest
    ) -> ClientIdentity | Response | None:
        """Returns the identity, None where no login is required, or the response that refuses the request."""
        if client_request.host is None or client_request.host == "":
            return refusal_response(Refusal(400, "bad_host", "the request needs exactly one Host header"))
        if error := host_error(self.hosts, client_request):
            return refusal_response(Refusal(421, "bad_host", error))
        if error := cross_site_error(client_request, is_page=is_page_file(client_request.path)):
            return refusal_response(Refusal(403, "forbidden", error))
        if self.guard is not None:
            return await self.guard(request, client_request.client)
        if self.authenticator is None or client_request.path == LOGIN_PATH:
            return None
        if client_request.method in ("GET", "HEAD") and is_page_file(client_request.path):
            return None
        identity = await self.authenticator.identify(client_request)
        if isinstance(identity, ClientIdentity):
            error = _permission_error(identity, client_request)
            return refusal_response(Refusal(403, "forbidden", error)) if error else identity
        return refusal_response(identity, setup=self.setup is not None and self.setup.is_open())


def _permission_error(identity: ClientIdentity, client_request: ClientRequest) -> str:
    if identity.scope == "write":  # stored on every sender: a stolen one must neither read nor delete
        is_write = client_request.method == "POST" and client_request.path == WRITE_PATH
        return "" if is_write else "this API token permits remote write only"
    if not is_change(client_request):
        return ""
    if identity.scope == "read":
        return "this API token is read-only"
    if identity.is_ambient and not has_proof_of_origin(client_request):
        return "only this server's own page may send this request; programs use an API token or a password"
    return ""


def is_page_file(path: str) -> bool:
    return path == "/" or (not path.startswith("/api/") and page_file(path.removeprefix("/")) is not None)


TOO_MANY = Refusal(503, "unavailable", "too many concurrent requests from this client; try again", 5.0)


def with_access_policy(access: AccessPolicy, handler: Handler) -> Handler:
    async def handle(request: Request) -> Response:
        if request.path in HEALTH_PATHS:
            return await handler(request)
        client_request = read_client_request(request, access.proxies)
        if not client_request.through_proxy:
            return await authorized(request, client_request)
        with access.clients.request_of(client_request.client) as is_allowed:
            return await authorized(request, client_request) if is_allowed else refusal_response(TOO_MANY)

    async def authorized(request: Request, client_request: ClientRequest) -> Response:
        identity = await access.authorize(request, client_request)
        if isinstance(identity, Response):
            return identity
        request.state[CLIENT_REQUEST_KEY], request.state[IDENTITY_KEY] = client_request, identity
        return await handler(request)

    return handle
