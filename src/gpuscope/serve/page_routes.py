"""Routes of the page: `/api/live`, its stream, `/api/findings`, `/api/links`, page files; security headers.

The page is built into this package; a checkout without Node has none and answers with a sentence that says so.
"""

from __future__ import annotations

import asyncio
import mimetypes
from collections.abc import Awaitable, Callable
from pathlib import Path
from urllib.parse import parse_qs, urlencode

import orjson

from gpuscope.base.errors import GpuscopeError
from gpuscope.base.limits import Limits
from gpuscope.judge.rules.shipped.shipped_rule import EXPLAIN_PATH, EXPLAINED, alert_page
from gpuscope.serve.api.encode import failure
from gpuscope.serve.api.responses import JSON
from gpuscope.serve.api_types.session_json import LinksAnswer
from gpuscope.serve.http.messages import (
    READS,
    Handler,
    Header,
    Request,
    Response,
    Route,
    not_allowed,
    not_found,
    text,
)
from gpuscope.serve.live.event_stream import LiveStream
from gpuscope.serve.live.live_fleet import LiveFleet

PAGE_FOLDER = Path(__file__).resolve().parent / "page"
MAX_GRAPH_FIELDS = 100

SECURITY_HEADERS: tuple[Header, ...] = (
    (
        "content-security-policy",
        "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    ("cache-control", "no-store"),  # where an answer does not say otherwise: it may be for one user only
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
)

_SECURITY_NAMES = frozenset(name for name, _ in SECURITY_HEADERS)


def page_routes(
    live: LiveFleet,
    limits: Limits | None = None,
    findings_over_time: Handler | None = None,
    *,
    grafana_url: str = "",
) -> list[Route]:
    links: LinksAnswer = {"grafana": grafana_url} if grafana_url else {}

    async def answer_links(request: Request) -> Response:
        return Response(orjson.dumps(links), 200, JSON)

    return [
        Route("/api/live", _json_route(live.body)),
        Route("/api/live/stream", LiveStream(live, limits or Limits()).respond, ("GET",)),
        Route("/api/findings", _findings_route(_json_route(live.findings_body), findings_over_time)),
        Route("/api/links", answer_links),
        Route("/graph", _graph),
        Route(f"{EXPLAIN_PATH}{{name}}", _explain_alert),
        Route("/", _index),
    ]


def _json_route(make_body: Callable[[bool], Awaitable[bytes]]) -> Handler:
    async def answer(request: Request) -> Response:
        gzipped = "gzip" in request.header("accept-encoding")
        try:
            body = await make_body(gzipped)
        except GpuscopeError as error:  # the page keeps its last picture and shows the reason
            return Response(failure("unavailable", str(error)), 503, JSON)
        packed = (("content-encoding", "gzip"),) if gzipped else ()
        return Response(body, 200, JSON, (("vary", "accept-encoding"), *packed))

    return answer


def _findings_route(now: Handler, over_time: Handler | None) -> Handler:
    """With the parameter `since` the findings of a time range, else those of now."""

    async def answer(request: Request) -> Response:
        is_range = over_time is not None and b"since=" in request.query
        return await (over_time if over_time is not None and is_range else now)(request)

    return answer


async def _graph(request: Request) -> Response:
    """Links of alerts are those of Prometheus: `/graph?g0.expr=…`. The page shows the expression in Explore."""
    try:
        fields = parse_qs(request.query.decode("latin-1"), max_num_fields=MAX_GRAPH_FIELDS)
    except ValueError:  # more fields than any link has
        fields = {}
    expression = next(iter(fields.get("g0.expr", [])), "")
    return Response(b"", 302, "text/plain", (("location", f"./#/explore?{urlencode({'q': expression})}"),))


async def _explain_alert(request: Request) -> Response:
    """Where `runbook_url` of the shipped alerts leads."""
    check = EXPLAINED.get(request.path.removeprefix(EXPLAIN_PATH))
    if check is None:
        return await not_found(request)
    return Response(alert_page(check).encode(), 200, "text/html; charset=utf-8")


async def _index(request: Request) -> Response:
    index = PAGE_FOLDER / "index.html"
    if not index.is_file():
        return text("The page is not built: run `make page`, which needs Node. The API is at /api/v1.")
    return await _send(index, "no-cache")


async def page_files(request: Request) -> Response:
    """The fallback for every path without a route of its own."""
    path = page_file(request.path.removeprefix("/"))
    if path is None:
        return await not_found(request)
    if request.method not in READS:
        return not_allowed(READS)
    # The build names its files by their content, so a browser may keep them for a year.
    return await _send(path, f"max-age={31536000 if path.parent.name == 'assets' else 0}")


async def _send(path: Path, kept: str) -> Response:
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    charset = "; charset=utf-8" if kind.startswith("text/") else ""
    content = await asyncio.to_thread(path.read_bytes)
    return Response(content, 200, f"{kind}{charset}", (("cache-control", kept),))


def page_file(name: str) -> Path | None:
    """One of the page's own files, and nothing outside their folder."""
    try:
        path = (PAGE_FOLDER / name).resolve()
        return path if path.is_relative_to(PAGE_FOLDER) and path.is_file() else None
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return None


def with_security_headers(handler: Handler) -> Handler:
    """On every answer, unless it has its own."""

    async def answer(request: Request) -> Response:
        response = await handler(request)
        own = {name for name, _ in response.headers}
        if own.isdisjoint(_SECURITY_NAMES):  # nearly always
            response.headers += SECURITY_HEADERS
        else:
            response.headers += tuple(header for header in SECURITY_HEADERS if header[0] not in own)
        return response

    return answer
