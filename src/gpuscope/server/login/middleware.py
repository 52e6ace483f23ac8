"""The door in front of the whole server: name, origin, then who it is, then what that one may do.

Nothing passes but what a rule lets pass: a path added elsewhere is behind the login without a word here. Open
are the health checks, the login itself, and the page's own files, which show the form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuscope.server.http import Guard
from gpuscope.server.http import Request as PlainRequest
from gpuscope.server.login.answers import refuse
from gpuscope.server.login.asked import Asked, Network, read_scope
from gpuscope.server.login.doorkeeper import Doorkeeper, Identity, Refusal
from gpuscope.server.login.routes import ASKED_KEY, IDENTITY_KEY, LOGIN_PATH, LoginRoutes
from gpuscope.server.login.setup import Setup
from gpuscope.server.login.sites import (
    HostRule,
    changes_something,
    forgery_fault,
    has_proof_of_origin,
    host_fault,
)
from gpuscope.server.page_routes import page_file

HEALTH_PATHS = ("/-/healthy", "/-/ready")


@dataclass(frozen=True, slots=True)
class Door:
    """With neither a guard nor a keeper the server is open, to this machine only."""

    hosts: HostRule
    proxies: Sequence[Network] = ()
    guard: Guard | None = None  # passwords of a web configuration file
    keeper: Doorkeeper | None = None
    setup: Setup | None = None
    login: LoginRoutes = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "login", LoginRoutes(self.keeper, self.setup))

    async def judge(self, asked: Asked) -> Identity | Response | None:
        """Who it is, None if nobody asks that here, or the answer that keeps it out."""
        if asked.host is None or asked.host == "":
            return refuse(Refusal(400, "bad_host", "the request does not say, once, which host it wants"))
        if fault := host_fault(self.hosts, asked):
            return refuse(Refusal(421, "bad_host", fault))
        if fault := forgery_fault(asked):
            return refuse(Refusal(403, "forbidden", fault))
        if self.guard is not None:
            return await self._ask_guard(self.guard, asked)
        if self.keeper is None or asked.path == LOGIN_PATH:
            return None
        if asked.method in ("GET", "HEAD") and is_page_file(asked.path):
            return None
        found = await self.keeper.identify(asked)
        if isinstance(found, Identity):
            fault = _overreach(found, asked)
            return refuse(Refusal(403, "forbidden", fault)) if fault else found
        return refuse(found, setup=self.setup is not None and self.setup.is_open())

    async def _ask_guard(self, guard: Guard, asked: Asked) -> Response | None:
        refusal = await guard(PlainRequest(asked.path, dict(asked.headers)))
        if refusal is None:
            return None
        return Response(refusal.body, refusal.status, dict(refusal.headers), media_type=refusal.content_type)


def _overreach(identity: Identity, asked: Asked) -> str:
    if not changes_something(asked):
        return ""
    if not identity.writes:
        return "this API token only reads"
    if identity.is_ambient and not has_proof_of_origin(asked):
        return "only this server's own page may send this; programs use an API token or a password"
    return ""


def is_page_file(path: str) -> bool:
    return path == "/" or (not path.startswith("/api/") and page_file(path.removeprefix("/")) is not None)


class DoorMiddleware:
    def __init__(self, app: ASGIApp, door: Door) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # none is served; an unguarded kind of request must not pass
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] == "http" and scope["path"] not in HEALTH_PATHS:
            asked = read_scope(scope, self._door.proxies)
            found = await self._door.judge(asked)
            if isinstance(found, Response):
                await found(scope, receive, send)
                return
            scope = {**scope, ASKED_KEY: asked, IDENTITY_KEY: found}
        await self._app(scope, receive, send)
