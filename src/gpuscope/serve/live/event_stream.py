"""`GET /api/live/stream`: the live picture as server-sent events, then the difference at each update.

Every event is encoded and compressed once and its bytes go to all viewers: each compressed event ends with a
full flush, so any sequence of them is one valid gzip stream. `Last-Event-ID` resumes after the event that a
client has seen; a client that is too far behind gets the whole picture. Pictures are made only while a client
is connected, so the first client of a while waits for a new one. Each group of events follows the server's
clock at that moment: a picture's own time says when it was made, which may be earlier.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import struct
import time
import zlib
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass

import orjson

from gpuscope.base.errors import GpuscopeError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.serve.api.encode import failure
from gpuscope.serve.api.responses import JSON
from gpuscope.serve.api_types.live_stream_json import LiveDifference, StreamClock, StreamPicture, StreamProblem
from gpuscope.serve.http.messages import Header, Request, Response
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.live.picture_differences import LiveTables, difference, to_picture, to_tables

log = logging.getLogger("gpuscope.live")

HEARTBEAT_SECONDS = 15.0
"""A comment is sent when nothing else was: proxies end connections that are silent for a minute."""
RETRY_SECONDS = 1.0
CLOCK_SECONDS = 0.1
"""Viewers that are served within this time share one event with the clock."""
MAX_ID_LENGTH = 64
INTERNAL_ERROR = "internal error; the server's log has the details"
_GZIP_HEAD = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
_HEADERS: tuple[Header, ...] = (
    ("vary", "accept-encoding"),
    ("x-accel-buffering", "no"),  # nginx would collect the events otherwise
)
EventData = StreamPicture | LiveDifference | StreamProblem


@dataclass(frozen=True, slots=True)
class _Event:
    plain: bytes
    deflated: bytes


def _encode(name: str, event_id: str, data: EventData) -> _Event:
    return _compress(f"event: {name}\nid: {event_id}\ndata: ".encode() + orjson.dumps(data) + b"\n\n")


def _compress(plain: bytes) -> _Event:
    compressor = zlib.compressobj(level=6, wbits=-15)
    return _Event(plain, compressor.compress(plain) + compressor.flush(zlib.Z_FULL_FLUSH))


_HEARTBEAT = _compress(b":\n\n")


class LiveStream:
    """Belongs to the event loop."""

    def __init__(self, live: LiveFleet, limits: Limits, clock: Callable[[], float] = time.time) -> None:
        self._live = live
        self._limits = limits
        self._clock = clock
        self._clock_event = (float("-inf"), _HEARTBEAT)
        self._viewers: set[_Viewer] = set()
        self._updating: asyncio.Task[None] | None = None
        self._epoch = secrets.token_hex(4)  # event numbers of an earlier process mean other pictures
        self._number = 0
        self._tables: LiveTables | None = None
        self._is_current = False
        """False from the last viewer's leaving to the next update: what is kept is as old as that."""
        self._picture: tuple[int, asyncio.Future[_Event]] | None = None
        self._kept: deque[tuple[int, _Event]] = deque()
        self._kept_bytes = 0
        self._problem = ""

    async def respond(self, request: Request) -> Response:
        if len(self._viewers) >= self._limits.max_live_streams:
            LIMITS_REACHED.count("max_live_streams")
            sentence = f"{self._limits.max_live_streams} live streams are open (max_live_streams); try again"
            return Response(failure("unavailable", sentence), 503, JSON, (("retry-after", "5"),))
        gzipped = "gzip" in request.header("accept-encoding")
        viewer = _Viewer(self._number_of(request.header("last-event-id")), gzipped)
        request.on_disconnect = viewer.leave
        self._viewers.add(viewer)
        if self._updating is None:
            self._updating = asyncio.create_task(self._update_while_watched())

        async def close() -> None:
            self._viewers.discard(viewer)

        packed = (("content-encoding", "gzip"),) if gzipped else ()
        return Response(
            b"",
            200,
            "text/event-stream",
            (*_HEADERS, *packed),
            pieces=self._pieces(viewer),
            close=close,
            is_endless=True,
        )

    def _number_of(self, event_id: str) -> int | None:
        epoch, _, number = event_id[:MAX_ID_LENGTH].partition("-")
        if epoch != self._epoch or not number.isascii() or not number.isdigit():
            return None
        return int(number) if int(number) <= self._number else None

    async def _pieces(self, viewer: _Viewer) -> AsyncIterator[bytes]:
        # A stream has an end, so that a login that was revoked does not see the fleet for ever.
        ends_at = asyncio.get_running_loop().time() + self._limits.live_stream_lifetime
        if viewer.gzipped:
            yield _GZIP_HEAD
        yield viewer.bytes_of(_compress(f"retry: {RETRY_SECONDS * 1000:.0f}\n\n".encode()))
        while not viewer.is_gone:
            if events := await self._events_for(viewer):
                yield viewer.bytes_of(self._clock_now())
            for event in events:
                yield viewer.bytes_of(event)
            left = ends_at - asyncio.get_running_loop().time()
            if left <= 0:
                LIMITS_REACHED.count("live_stream_lifetime")
                break
            if not await viewer.wait(min(left, HEARTBEAT_SECONDS)) and left > HEARTBEAT_SECONDS:
                yield viewer.bytes_of(_HEARTBEAT)
        if viewer.gzipped:
            yield viewer.gzip_end()

    async def _events_for(self, viewer: _Viewer) -> list[_Event]:
        """What the viewer has not seen: differences, or the whole picture if they are no longer kept."""
        viewer.news.clear()
        found: list[_Event] = []
        if not self._is_current and not self._problem:  # the update that has begun sets `news`
            return found
        if viewer.number != self._number or viewer.problem != self._problem:
            oldest = self._kept[0][0] if self._kept else self._number + 1
            if viewer.number is not None and viewer.number + 1 >= oldest:
                found = [event for number, event in self._kept if number > viewer.number]
                viewer.number = self._number
            elif self._tables is not None:
                number = self._number
                found = [await self._whole(self._tables, number)]
                viewer.number = number
            if self._problem != viewer.problem:
                viewer.problem = self._problem
                found += [self._problem_event()] if self._problem else []
            if self._tables is not None and viewer.number != self._number:  # the picture was updated meanwhile
                viewer.news.set()
        return found

    async def _whole(self, tables: LiveTables, number: int) -> _Event:
        """This picture, encoded once for all viewers that need it."""
        if self._picture is None or self._picture[0] != number:
            event_id = f"{self._epoch}-{number}"
            encoding = asyncio.to_thread(lambda: _encode("picture", event_id, to_picture(tables)))
            self._picture = number, asyncio.ensure_future(encoding)
        return await asyncio.shield(self._picture[1])

    def _clock_now(self) -> _Event:
        now = self._clock()
        if not 0 <= now - self._clock_event[0] < CLOCK_SECONDS:
            data: StreamClock = {"now": now}
            self._clock_event = now, _compress(b"event: clock\ndata: " + orjson.dumps(data) + b"\n\n")
        return self._clock_event[1]

    def _problem_event(self) -> _Event:
        return _compress(b"event: problem\ndata: " + orjson.dumps({"error": self._problem}) + b"\n\n")

    async def _update_while_watched(self) -> None:
        try:
            while self._viewers:
                try:
                    await self._update()
                    self._problem, self._is_current = "", True
                except GpuscopeError as error:  # the page keeps its last picture and shows the reason
                    self._problem = str(error)
                except (
                    Exception
                ):  # a defect of ours: without an event, every page would show old numbers as live
                    if self._problem != INTERNAL_ERROR:
                        log.exception("unexpected error while updating the live stream")
                    self._problem, self._tables = INTERNAL_ERROR, None  # the next picture is sent as a whole
                    self._kept.clear()
                    self._kept_bytes = 0
                for viewer in self._viewers:
                    viewer.news.set()
                pause = self._live.seconds_to_next if not self._problem else RETRY_SECONDS
                await asyncio.sleep(max(pause, 0.0) + 0.1)
        finally:
            self._updating, self._is_current = None, False

    async def _update(self) -> None:
        picture = await self._live.newest()
        old = self._tables
        if old is not None and old.picture is picture:
            return
        if old is None:
            self._tables = await asyncio.to_thread(to_tables, picture)
            self._number += 1
            return
        event_id = f"{self._epoch}-{self._number + 1}"

        def compare(old: LiveTables) -> tuple[LiveTables, _Event]:
            new = to_tables(picture, old)
            return new, _encode("difference", event_id, difference(old, new))

        self._tables, event = await asyncio.to_thread(compare, old)
        self._number += 1
        self._keep(event)

    def _keep(self, event: _Event) -> None:
        self._kept.append((self._number, event))
        self._kept_bytes += len(event.plain) + len(event.deflated)
        while self._kept_bytes > self._limits.live_stream_kept_bytes:
            LIMITS_REACHED.count("live_stream_kept_bytes")
            _, dropped = self._kept.popleft()
            self._kept_bytes -= len(dropped.plain) + len(dropped.deflated)


class _Viewer:
    def __init__(self, number: int | None, gzipped: bool) -> None:
        self.number = number
        """The last event it has."""
        self.gzipped = gzipped
        self.problem = ""
        self.is_gone = False
        self.news = asyncio.Event()
        self._checksum = 0
        self._size = 0

    def bytes_of(self, event: _Event) -> bytes:
        if not self.gzipped:
            return event.plain
        self._checksum = zlib.crc32(event.plain, self._checksum)
        self._size += len(event.plain)
        return event.deflated

    def gzip_end(self) -> bytes:
        """An empty last block, and what gzip has at its end; without it browsers call the stream damaged."""
        return b"\x03\x00" + struct.pack("<II", self._checksum, self._size & 0xFFFFFFFF)

    def leave(self) -> None:
        self.is_gone = True
        self.news.set()

    async def wait(self, seconds: float) -> bool:
        """False if there was no new event."""
        try:
            await asyncio.wait_for(self.news.wait(), seconds)
        except TimeoutError:
            return False
        return True
