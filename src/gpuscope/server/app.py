"""The server's HTTP side: Prometheus' API, its own metrics and health, behind one door.

Whoever is not let in by the guard reaches nothing but the health checks, which orchestrators ask without a
password.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from gpuscope.exposition.text import TEXT_CONTENT_TYPE
from gpuscope.server.http import Guard
from gpuscope.server.http import Request as PlainRequest
from gpuscope.server.login.middleware import Door, DoorMiddleware
from gpuscope.server.page_routes import SecurityHeaders

OPEN_PATHS = ("/-/healthy", "/-/ready")


class GuardMiddleware:
    """Basic auth from a web configuration file, for ASGI."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
            refusal = await self._guard(PlainRequest(scope["path"], headers))
            if refusal is not None:
                response = Response(
                    refusal.body, refusal.status, dict(refusal.headers), media_type=refusal.content_type
                )
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)


def build_app(
    routes: Sequence[BaseRoute],
    *,
    own_metrics: Callable[[], bytes],
    ready: Callable[[], str],
    guard: Guard | None = None,
    door: Door | None = None,
) -> ASGIApp:
    """`ready` says what is still missing, or nothing when the server can answer.

    A server that listens needs a door, or else a guard; only tests leave both out.
    """

    async def healthy(request: Request) -> Response:
        return PlainTextResponse("gpuscope is healthy.\n")

    async def is_ready(request: Request) -> Response:
        missing = ready()
        return PlainTextResponse(f"{missing}\n" if missing else "gpuscope is ready.\n", 503 if missing else 200)

    async def metrics(request: Request) -> Response:
        return Response(own_metrics(), headers={"content-type": TEXT_CONTENT_TYPE})

    app: ASGIApp = Starlette(
        routes=[
            Route("/-/healthy", healthy),
            Route("/-/ready", is_ready),
            Route("/metrics", metrics),
            *(door.login.routes() if door is not None else ()),
            *routes,
        ]
    )
    if guard is not None:
        app = GuardMiddleware(app, guard)
    if door is not None:
        app = DoorMiddleware(app, door)
    return SecurityHeaders(app)
