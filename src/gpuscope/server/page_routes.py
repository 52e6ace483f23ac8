"""Routes of the page: `/api/live`, `/api/findings` and the page's own files, with security headers.

A live answer is made at most once a second, on request, and its bytes are shared by all clients. The page is
built into this package; a checkout without Node has none and answers with a sentence that says so.
"""

from __future__ import annotations

import asyncio
import mimetypes
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import orjson

from gpuscope.errors import GpuscopeError
from gpuscope.health.facts import Sample
from gpuscope.health.missing import NOTHING_MISSING, Missing
from gpuscope.server.api.encode import failure
from gpuscope.server.api.responses import JSON
from gpuscope.server.api_types.findings_json import FindingsAnswer
from gpuscope.server.api_types.live_json import LivePicture
from gpuscope.server.fleet_judge import FleetJudge, JudgedFleet
from gpuscope.server.http.messages import Handler, Header, Request, Response, text
from gpuscope.server.http.routing import READS, Route, not_allowed, not_found
from gpuscope.server.live import live_picture

PAGE_FOLDER = Path(__file__).resolve().parent / "page"
FRESH_SECONDS = 0.9
OLDEST_SECONDS = 5.0  # of an answer shown while the next one is made; `taken_at` in it says its age

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

ReadSamples = Callable[[], Awaitable[Iterable[Sample]]]


@dataclass(frozen=True, slots=True)
class _Body:
    plain: bytes
    gzipped: bytes


@dataclass(frozen=True, slots=True)
class _Answer:
    began_at: float  # monotonic: its numbers are not older than this
    live: _Body
    findings: _Body


class Watch(Protocol):
    """Knows what is missing beside the samples of now: `GoneWatch`, `UnreadGpus`."""

    async def look(self, samples: Sequence[Sample]) -> Missing: ...


class LiveFleet:
    """Makes a new answer when a client asks and the last one is old: one for all clients. They get the last
    one meanwhile, unless it is too old to show; then they wait together."""

    def __init__(
        self,
        read: ReadSamples,
        source: str,
        watch: Watch | None = None,
        judge: FleetJudge | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._read = read
        self._source = source
        self._watch = watch
        self._judge = judge or FleetJudge()
        self._clock = clock
        self._answer: _Answer | None = None
        self._making: asyncio.Task[_Answer] | None = None
        self._looking_up: asyncio.Task[None] | None = None

    async def body(self, gzipped: bool) -> bytes:
        """Of `/api/live`."""
        live = (await self._current()).live
        return live.gzipped if gzipped else live.plain

    async def findings_body(self, gzipped: bool) -> bytes:
        """Of `/api/findings`."""
        findings = (await self._current()).findings
        return findings.gzipped if gzipped else findings.plain

    async def _current(self) -> _Answer:
        answer, now = self._answer, time.monotonic()
        if self._making is None and (answer is None or now - answer.began_at > FRESH_SECONDS):
            self._making = asyncio.create_task(self._make(now))
            self._making.add_done_callback(self._made)
        if answer is None or now - answer.began_at > OLDEST_SECONDS:
            assert self._making is not None  # noqa: S101 - an answer that old is not fresh
            # Shielded: a client that leaves must not take the answer away from the others.
            answer = await asyncio.shield(self._making)
        return answer

    async def _make(self, began_at: float) -> _Answer:
        samples, missing = await self._read(), NOTHING_MISSING
        if self._watch is not None:
            samples = samples if isinstance(samples, list) else list(samples)  # read twice
            missing = await self._watch.look(samples)
        judged = await asyncio.to_thread(self._judge.judge, samples, missing, self._clock())
        if self._looking_up is None or self._looking_up.done():
            self._looking_up = asyncio.create_task(self._judge.look_up(judged))
        return await asyncio.to_thread(self._encode, judged, began_at)

    def _made(self, making: asyncio.Task[_Answer]) -> None:
        self._making = None
        # After a failure the next client tries again and gets the error, rather than ever older numbers.
        self._answer = None if making.cancelled() or making.exception() else making.result()

    def _encode(self, judged: JudgedFleet, began_at: float) -> _Answer:
        live = live_picture(judged, self._source)
        findings: FindingsAnswer = {"findings": live["findings"]}
        return _Answer(began_at, _to_body(live), _to_body(findings))


def _to_body(document: LivePicture | FindingsAnswer) -> _Body:
    plain = orjson.dumps(document)
    compressor = zlib.compressobj(level=3, wbits=31)
    return _Body(plain, compressor.compress(plain) + compressor.flush())


def page_routes(live: LiveFleet) -> list[Route]:
    return [
        Route("/api/live", _json_route(live.body)),
        Route("/api/findings", _json_route(live.findings_body)),
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


async def _index(request: Request) -> Response:
    index = PAGE_FOLDER / "index.html"
    if not index.is_file():
        return text("The page is not built here: `make page` does it, with Node. The API is at /api/v1.")
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
