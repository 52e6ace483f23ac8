"""The server's HTTP side: Prometheus' API, its own metrics and health, behind one access policy.

A client that is refused reaches only the health checks, which orchestrators ask without a
password, and the page's files, which show the form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuscope.exposition.text import TEXT_CONTENT_TYPE
from gpuscope.server.http.messages import Handler, Request, Response, text
from gpuscope.server.http.routing import Route, Router
from gpuscope.server.login.access import AccessPolicy, behind
from gpuscope.server.page_routes import page_files, with_security_headers


def build_app(
    routes: Sequence[Route],
    *,
    own_metrics: Callable[[], bytes],
    ready: Callable[[], str],
    access: AccessPolicy | None = None,
) -> Handler:
    """`ready` says what is still missing, or nothing when the server can answer.

    A server that listens needs an access policy; only tests leave it out.
    """

    async def healthy(request: Request) -> Response:
        return text("gpuscope is healthy.")

    async def is_ready(request: Request) -> Response:
        missing = ready()
        return text(missing, 503) if missing else text("gpuscope is ready.")

    async def metrics(request: Request) -> Response:
        return Response(own_metrics(), 200, TEXT_CONTENT_TYPE)

    router = Router(
        [
            Route("/-/healthy", healthy),
            Route("/-/ready", is_ready),
            Route("/metrics", metrics),
            *(access.login.routes() if access is not None else ()),
            *routes,
        ],
        fallback=page_files,
    )
    return with_security_headers(router if access is None else behind(access, router))
