"""Assembles the server's HTTP handler: health, /metrics, login, API routes, the page, and one access policy.

Without a login, a client reaches only the health checks, which orchestrators request without a password, and
the page's files, which show the login form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuscope.exposition.text import TEXT_CONTENT_TYPE
from gpuscope.server.http.messages import Handler, Request, Response, text
from gpuscope.server.http.routing import Route, Router
from gpuscope.server.login.access import AccessPolicy, with_access_policy
from gpuscope.server.page_routes import page_files, with_security_headers


def build_app(
    routes: Sequence[Route],
    *,
    own_metrics: Callable[[], bytes],
    ready: Callable[[], str],
    access: AccessPolicy | None = None,
) -> Handler:
    """`ready` returns the reason why the server is not ready, or "". Only tests omit the access policy."""

    async def healthy(request: Request) -> Response:
        return text("gpuscope is healthy.")

    async def is_ready(request: Request) -> Response:
        reason = ready()
        return text(reason, 503) if reason else text("gpuscope is ready.")

    async def metrics(request: Request) -> Response:
        return Response(own_metrics(), 200, TEXT_CONTENT_TYPE)

    router = Router(
        [
            Route("/-/healthy", healthy),
            Route("/-/ready", is_ready),
            Route("/metrics", metrics),
            *((*access.login.routes(), *access.users.routes()) if access is not None else ()),
            *routes,
        ],
        fallback=page_files,
    )
    return with_security_headers(router if access is None else with_access_policy(access, router))
