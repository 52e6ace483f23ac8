"""Access to the whole server: host name, origin, then who the client is, then what it may do.

Nothing passes but what a rule lets pass: a path added elsewhere is behind the login without a word here. Open
are the health checks, the login itself, and the page's own files, which show the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpuscope.limits import Limits
from gpuscope.server.http.addresses import Network
from gpuscope.server.http.connection_limit import ConnectionLimit
from gpuscope.server.http.messages import Handler, Request, RequestGuard, Response
from gpuscope.server.login.authenticator import Authenticator, Identity
from gpuscope.server.login.client_request import ClientRequest, read_head
from gpuscope.server.login.login_responses import refuse
from gpuscope.server.login.origin_rules import (
    HostRule,
    changes_something,
    forgery_fault,
    has_proof_of_origin,
    host_fault,
)
from gpuscope.server.login.password_checks import Refusal
from gpuscope.server.login.routes import ASKED_KEY, IDENTITY_KEY, LOGIN_PATH, LoginRoutes
from gpuscope.server.login.setup import Setup
from gpuscope.server.page_routes import page_file

HEALTH_PATHS = ("/-/healthy", "/-/ready")
WRITE_PATH = "/api/v1/write"


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """With neither a guard nor a keeper the server is open, to this machine only."""

    hosts: HostRule
    proxies: Sequence[Network] = ()
    guard: RequestGuard | None = None  # passwords of a web configuration file
    keeper: Authenticator | None = None
    setup: Setup | None = None
    clients: ConnectionLimit = field(default_factory=lambda: ConnectionLimit(Limits()))  # of trusted proxies
    login: LoginRoutes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "login", LoginRoutes(self.keeper, self.setup))

    async def judge(self, request: Request, asked: ClientRequest) -> Identity | Response | None:
        """Who it is, None if nobody asks that here, or the answer that keeps it out."""
        if asked.host is None or asked.host == "":
            return refuse(Refusal(400, "bad_host", "the request does not say, once, which host it wants"))
        if fault := host_fault(self.hosts, asked):
            return refuse(Refusal(421, "bad_host", fault))
        if fault := forgery_fault(asked, is_page=is_page_file(asked.path)):
            return refuse(Refusal(403, "forbidden", fault))
        if self.guard is not None:
            return await self.guard(request, asked.client)
        if self.keeper is None or asked.path == LOGIN_PATH:
            return None
        if asked.method in ("GET", "HEAD") and is_page_file(asked.path):
            return None
        found = await self.keeper.identify(asked)
        if isinstance(found, Identity):
            fault = _overreach(found, asked)
            return refuse(Refusal(403, "forbidden", fault)) if fault else found
        return refuse(found, setup=self.setup is not None and self.setup.is_open())


def _overreach(identity: Identity, asked: ClientRequest) -> str:
    if identity.may == "write":  # it lies on every sender: one that is stolen must neither read nor delete
        is_write = asked.method == "POST" and asked.path == WRITE_PATH
        return "" if is_write else "this API token only sends samples by remote write"
    if not changes_something(asked):
        return ""
    if identity.may == "read":
        return "this API token only reads"
    if identity.is_ambient and not has_proof_of_origin(asked):
        return "only this server's own page may send this; programs use an API token or a password"
    return ""


def is_page_file(path: str) -> bool:
    return path == "/" or (not path.startswith("/api/") and page_file(path.removeprefix("/")) is not None)


TOO_MANY = Refusal(503, "unavailable", "too many requests of one client at once; try again", 5.0)


def behind(access: AccessPolicy, handler: Handler) -> Handler:
    async def answer(request: Request) -> Response:
        if request.path in HEALTH_PATHS:
            return await handler(request)
        asked = read_head(request, access.proxies)
        if not asked.through_proxy:
            return await judged(request, asked)
        with access.clients.request_of(asked.client) as may_ask:
            return await judged(request, asked) if may_ask else refuse(TOO_MANY)

    async def judged(request: Request, asked: ClientRequest) -> Response:
        found = await access.judge(request, asked)
        if isinstance(found, Response):
            return found
        request.state[ASKED_KEY], request.state[IDENTITY_KEY] = asked, found
        return await handler(request)

    return answer
