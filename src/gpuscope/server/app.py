"""The server's HTTP side: Prometheus' API, its own metrics and health, behind one door.

Whoever is not let in by the door reaches nothing but the health checks, which orchestrators ask without a
password, and the page's files, which show the form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from gpuscope.exposition.text import TEXT_CONTENT_TYPE
from gpuscope.server.login.middleware import Door, DoorMiddleware
from gpuscope.server.page_routes import SecurityHeaders


def build_app(
    routes: Sequence[BaseRoute],
    *,
    own_metrics: Callable[[], bytes],
    ready: Callable[[], str],
    door: Door | None = None,
) -> ASGIApp:
    """`ready` says what is still missing, or nothing when the server can answer.

    A server that listens needs a door; only tests leave it out.
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
    return SecurityHeaders(app if door is None else DoorMiddleware(app, door))
