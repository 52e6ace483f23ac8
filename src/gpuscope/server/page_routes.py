"""What the browser asks for: the live fleet, and the page's own files, with headers that keep strangers out.

The live answer is made at most once a second, when somebody asks, and its bytes are shared by all viewers. The
page is built into this package; a checkout without Node has none, and says so.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from pathlib import Path

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuscope.server.live import Sample, fleet_state

PAGE_FOLDER = Path(__file__).resolve().parent / "page"
FRESH_SECONDS = 0.9

SECURITY_HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),  # where an answer does not say otherwise: it may be for one user only
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)

ReadSamples = Callable[[], Awaitable[Iterable[Sample]]]


class LiveFleet:
    """Asks for samples when its answer is old, once for however many viewers wait."""

    def __init__(self, read: ReadSamples, source: str) -> None:
        self._read = read
        self._source = source
        self._body = b""
        self._gzipped = b""
        self._made_at = float("-inf")
        self._making: asyncio.Lock | None = None

    async def body(self, gzipped: bool) -> bytes:
        if self._making is None:
            self._making = asyncio.Lock()
        async with self._making:
            if time.monotonic() - self._made_at > FRESH_SECONDS:
                samples = await self._read()
                await asyncio.to_thread(self._make, samples)
        return self._gzipped if gzipped else self._body

    def _make(self, samples: Iterable[Sample]) -> None:
        self._body = orjson.dumps(fleet_state(samples, now=time.time(), source=self._source))
        compressor = zlib.compressobj(level=3, wbits=31)
        self._gzipped = compressor.compress(self._body) + compressor.flush()
        self._made_at = time.monotonic()


def page_routes(live: LiveFleet) -> list[BaseRoute]:
    async def live_fleet(request: Request) -> Response:
        gzipped = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"cache-control": "no-store", "vary": "accept-encoding"}
        if gzipped:
            headers["content-encoding"] = "gzip"
        return Response(await live.body(gzipped), media_type="application/json", headers=headers)

    return [
        Route("/api/live", live_fleet),
        Route("/", _index),
        Route("/{path:path}", _file),
    ]


async def _index(request: Request) -> Response:
    index = PAGE_FOLDER / "index.html"
    if not index.is_file():
        return PlainTextResponse(
            "The page is not built here: `make page` does it, with Node. The API is at /api/v1.\n"
        )
    return FileResponse(index, headers={"cache-control": "no-cache"})


async def _file(request: Request) -> Response:
    path = page_file(request.path_params["path"])
    if path is None:
        return PlainTextResponse("nothing here\n", 404)
    # The build names its files by their content, so a browser may keep them for ever.
    forever = path.parent.name == "assets"
    return FileResponse(path, headers={"cache-control": f"max-age={31536000 if forever else 0}"})


def page_file(name: str) -> Path | None:
    """One of the page's own files, and nothing outside their folder."""
    try:
        path = (PAGE_FOLDER / name).resolve()
        return path if path.is_relative_to(PAGE_FOLDER) and path.is_file() else None
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return None


class SecurityHeaders:
    """Adds the headers to every answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message["headers"]}
                more = [header for header in SECURITY_HEADERS if header[0] not in present]
                message["headers"] = [*message["headers"], *more]
            await send(message)

        await self._app(scope, receive, send_with_headers)
