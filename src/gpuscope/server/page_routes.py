"""What the browser asks for: the live fleet, and the page's own files, with headers that keep strangers out.

The live answer is made at most once a second, when somebody asks, and its bytes are shared by all viewers. The
page is built into this package; a checkout without Node has none, and says so.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import orjson
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuscope.errors import GpuscopeError
from gpuscope.server.api.encode import failure
from gpuscope.server.live import Sample, fleet_state

PAGE_FOLDER = Path(__file__).resolve().parent / "page"
FRESH_SECONDS = 0.9
ALL_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
OLDEST_SECONDS = 5.0  # of an answer shown while the next one is made; `taken_at` in it says its age

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


@dataclass(frozen=True, slots=True)
class _Answer:
    began_at: float  # monotonic: its numbers are not older than this
    plain: bytes
    gzipped: bytes


class LiveFleet:
    """Makes a new answer when somebody asks and the last one is old: one for all viewers, and none of them
    waits for it. They have the last one meanwhile, unless that is too old to show; then they wait together."""

    def __init__(self, read: ReadSamples, source: str) -> None:
        self._read = read
        self._source = source
        self._answer: _Answer | None = None
        self._making: asyncio.Task[_Answer] | None = None

    async def body(self, gzipped: bool) -> bytes:
        answer, now = self._answer, time.monotonic()
        if self._making is None and (answer is None or now - answer.began_at > FRESH_SECONDS):
            self._making = asyncio.create_task(self._make(now))
            self._making.add_done_callback(self._made)
        if answer is None or now - answer.began_at > OLDEST_SECONDS:
            assert self._making is not None  # noqa: S101 - an answer that old is not fresh
            # Shielded: a viewer who leaves must not take the answer away from the others.
            answer = await asyncio.shield(self._making)
        return answer.gzipped if gzipped else answer.plain

    async def _make(self, began_at: float) -> _Answer:
        samples = await self._read()
        return await asyncio.to_thread(self._encode, samples, began_at)

    def _made(self, making: asyncio.Task[_Answer]) -> None:
        self._making = None
        # After a failure the next viewer tries again and is told, rather than shown ever older numbers.
        self._answer = None if making.cancelled() or making.exception() else making.result()

    def _encode(self, samples: Iterable[Sample], began_at: float) -> _Answer:
        plain = orjson.dumps(fleet_state(samples, now=time.time(), source=self._source))
        compressor = zlib.compressobj(level=3, wbits=31)
        return _Answer(began_at, plain, compressor.compress(plain) + compressor.flush())


def page_routes(live: LiveFleet) -> list[BaseRoute]:
    async def live_fleet(request: Request) -> Response:
        gzipped = "gzip" in request.headers.get("accept-encoding", "")
        headers = {"cache-control": "no-store", "vary": "accept-encoding"}
        if gzipped:
            headers["content-encoding"] = "gzip"
        try:
            body = await live.body(gzipped)
        except GpuscopeError as error:  # the page keeps its last picture and says why
            return Response(failure("unavailable", str(error)), 503, media_type="application/json")
        return Response(body, media_type="application/json", headers=headers)

    return [
        Route("/api/live", live_fleet),
        Route("/", _index),
        Route("/{path:path}", _file, methods=ALL_METHODS),
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
    reads = request.method in ("GET", "HEAD")
    if not reads and (path is not None or _takes_another_method(request)):
        return PlainTextResponse("Method Not Allowed\n", 405)
    if path is None:
        return PlainTextResponse("404 page not found\n", 404)
    # The build names its files by their content, so a browser may keep them for ever.
    forever = path.parent.name == "assets"
    return FileResponse(path, headers={"cache-control": f"max-age={31536000 if forever else 0}"})


def _takes_another_method(request: Request) -> bool:
    """`_file` is the last route and takes every method: what is nowhere is not found, rather than refused."""
    routes: list[BaseRoute] = request.app.router.routes
    return any(route.matches(request.scope)[0] is Match.PARTIAL for route in routes)


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
