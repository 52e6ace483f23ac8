"""The access policy of the whole server: checks host, origin, identity and permission, in this order.

Access is denied by default, so a route added elsewhere requires a login. Exceptions: the health checks, the
login itself, and the page's files, which show the login form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuscope.base.limits import Limits
from gpuscope.judge.rules.shipped.shipped_rule import EXPLAIN_PATH
from gpuscope.serve.http.connection_limits import ConnectionLimit, Network
from gpuscope.serve.http.messages import Handler, Request, RequestGuard, Response
from gpuscope.serve.login.access_rules import (
    WRITE_PATH,
    ClientRequest,
    ClientRole,
    HostRule,
    cross_site_error,
    has_proof_of_origin,
    host_error,
    is_change,
    is_send,
    read_client_request,
    required_role,
)
from gpuscope.serve.login.audit_log import AUDIT_DETAIL, AuditLog
from gpuscope.serve.login.authenticator import Authenticator, ClientIdentity
from gpuscope.serve.login.password_checks import Refusal, refusal_response
from gpuscope.serve.login.routes import CLIENT_REQUEST_KEY, IDENTITY_KEY, LOGIN_PATH, LoginRoutes, UserRoutes
from gpuscope.serve.login.user_file import FirstUserSetup
from gpuscope.serve.page_routes import page_file

HEALTH_PATHS = ("/-/healthy", "/-/ready")
TOO_MANY = Refusal(503, "unavailable", "too many concurrent requests from this client; try again", 5.0)


@dataclass(frozen=True, slots=True)
class Authorization:
    identity: ClientIdentity | None = None
    """None where no login is required, for users of a web config file, and for unknown clients."""
    refusal: Response | None = None
    passed: bool = False
    """The client has proved who it is, or need not."""


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Without a guard and an authenticator the server is open; it then listens on loopback only."""

    hosts: HostRule
    proxies: Sequence[Network] = ()
    guard: RequestGuard | None = None  # basic auth of a web configuration file
    guard_role: ClientRole = ClientRole.ADMIN  # of the users of that file, which has no roles
    authenticator: Authenticator | None = None
    setup: FirstUserSetup | None = None
    audit: AuditLog | None = None
    clients: ConnectionLimit = field(default_factory=lambda: ConnectionLimit(Limits()))  # behind proxies
    login: LoginRoutes = field(init=False)
    users: UserRoutes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "login", LoginRoutes(self.authenticator, self.setup, self.guard_role))
        users = None if self.authenticator is None else self.authenticator.users
        object.__setattr__(self, "users", UserRoutes(users, self.audit))

    async def authorize(self, request: Request, client_request: ClientRequest) -> Authorization:
        if client_request.host is None or client_request.host == "":
            return _refused(Refusal(400, "bad_host", "the request needs exactly one Host header"))
        if error := host_error(self.hosts, client_request):
            return _refused(Refusal(421, "bad_host", error))
        if error := cross_site_error(client_request, is_page=is_page_file(client_request.path)):
            known = None if self.authenticator is None else self.authenticator.known(client_request)
            return _refused(Refusal(403, "forbidden", error), known)
        if self.guard is not None:
            if refusal := await self.guard(request, client_request.client):
                return Authorization(refusal=refusal)
            return Authorization(
                refusal=_refusal_of(_guard_error(self.guard_role, client_request)), passed=True
            )
        if self.authenticator is None:
            return Authorization(passed=True)
        is_login = client_request.path == LOGIN_PATH
        if is_login or (client_request.method in ("GET", "HEAD") and is_page_file(client_request.path)):
            return Authorization()
        identity = await self.authenticator.identify(client_request)
        if isinstance(identity, ClientIdentity):
            return Authorization(
                identity, _refusal_of(_permission_error(identity, client_request)), passed=True
            )
        return Authorization(
            refusal=refusal_response(identity, setup=self.setup is not None and self.setup.is_open())
        )


def _permission_error(identity: ClientIdentity, client_request: ClientRequest) -> str:
    if identity.only_remote_write:
        is_write = client_request.method == "POST" and client_request.path == WRITE_PATH
        return "" if is_write else "this API token permits remote write only"
    if is_change(client_request) and identity.is_ambient and not has_proof_of_origin(client_request):
        return "only this server's own page may send this request; programs use an API token or a password"
    required = required_role(client_request)
    if identity.role.permits(required):
        return ""
    if identity.via == "token" and identity.role is ClientRole.VIEWER:
        return "this API token is read-only"
    return f"this request requires the role {required}; {identity.user} has the role {identity.role}"


def _guard_error(role: ClientRole, client_request: ClientRequest) -> str:
    required = required_role(client_request)
    # Programs send samples and alerts with the password of such a file, as they do to Prometheus.
    if role.permits(required) or is_send(client_request):
        return ""
    return (
        f"this request requires the role {required}; --default-role sets the one of a web config file's users"
    )


def _refused(refusal: Refusal, identity: ClientIdentity | None = None) -> Authorization:
    return Authorization(identity, refusal_response(refusal))


def _refusal_of(error: str) -> Response | None:
    return refusal_response(Refusal(403, "forbidden", error)) if error else None


def is_page_file(path: str) -> bool:
    """What a browser shows before a login: the page's own files, and what the shipped alerts mean."""
    if path.startswith(EXPLAIN_PATH):
        return "/" not in path.removeprefix(EXPLAIN_PATH)
    return path == "/" or (not path.startswith("/api/") and page_file(path.removeprefix("/")) is not None)


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
        authorization = await access.authorize(request, client_request)
        response, identity = authorization.refusal, authorization.identity
        if response is None:
            request.state[CLIENT_REQUEST_KEY], request.state[IDENTITY_KEY] = client_request, identity
            response = await handler(request)
        if access.audit is None or not _is_audited(client_request):
            return response
        entry = _audit_entry(request, client_request, identity, response.status)
        # Refused requests of no user: they must not push the changes of users out of a file of limited size.
        is_user = authorization.passed if identity is None else not identity.only_remote_write
        is_limited = response.status >= 400 and not is_user
        await asyncio.to_thread(access.audit.append_unknown if is_limited else access.audit.append, entry)
        return response

    return handle


def _is_audited(client_request: ClientRequest) -> bool:
    return is_change(client_request) and not is_send(client_request)


def _audit_entry(
    request: Request, client_request: ClientRequest, identity: ClientIdentity | None, status: int
) -> dict[str, str | int]:
    return {
        "user": identity.user if identity else "",
        "role": identity.role.value if identity else "",
        "via": identity.via if identity else "",
        "address": client_request.client,
        "action": f"{client_request.method} {client_request.path}",
        "status": status,
        "detail": request.state.get(AUDIT_DETAIL, ""),
    }
