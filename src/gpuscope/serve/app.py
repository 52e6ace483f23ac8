"""Assembles the server's HTTP handler: health, /metrics, login, API routes, the page, and one access policy.

Without a login, a client reaches only the health checks, which orchestrators request without a password, and
the page's files, which show the login form.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence

from gpuscope.base.limits import Limits
from gpuscope.model.exposition.text import TEXT_CONTENT_TYPE
from gpuscope.serve.http.messages import Handler, Request, Response, Route, Router, text
from gpuscope.serve.login.access import AccessPolicy, with_access_policy
from gpuscope.serve.mcp.protocol import mcp_route
from gpuscope.serve.page_routes import page_files, with_security_headers


def build_app(
    routes: Sequence[Route],
    *,
    own_metrics: Callable[[], bytes],
    ready: Callable[[], Awaitable[str]] | None = None,
    access: AccessPolicy | None = None,
    limits: Limits | None = None,
) -> Handler:
    """`ready` returns the reason why the server is not ready, or ""; without it, it always is. Only tests omit
    the access policy."""

    async def healthy(request: Request) -> Response:
        return text("gpuscope is healthy.")

    async def is_ready(request: Request) -> Response:
        reason = await ready() if ready is not None else ""
        return text(reason, 503) if reason else text("gpuscope is ready.")

    metrics_text = _SharedText(own_metrics)

    async def metrics(request: Request) -> Response:
        return Response(metrics_text.newer_than(request.received_at), 200, TEXT_CONTENT_TYPE)

    router = Router(
        [
            Route("/-/healthy", healthy),
            Route("/-/ready", is_ready),
            Route("/metrics", metrics),
            *((*access.login.routes(), *access.users.routes()) if access is not None else ()),
            *routes,
            # Assistants ask the same routes as everybody else; the access policy has let them in.
            mcp_route(Router(routes), limits or Limits()),
        ],
        fallback=page_files,
    )
    return with_security_headers(router if access is None else with_access_policy(access, router))


class _SharedText:
    """A text that several requests share if they all waited when it was made.

    /metrics of a server takes 3 ms: without this, 100 clients in the queue delay the next one by 0.3 s."""

    def __init__(self, render: Callable[[], bytes]) -> None:
        self._render = render
        self._text = b""
        self._began_at = float("-inf")

    def newer_than(self, received_at: float) -> bytes:
        if received_at >= self._began_at:
            began_at = time.monotonic()
            self._text, self._began_at = self._render(), began_at
        return self._text
