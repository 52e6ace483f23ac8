"""The threads in which large queries are evaluated and large responses are encoded, and the log of queries.

One client address may use a fifth of them at once; its further queries wait for its own to end. So other
clients find a thread, however many queries one client sends. Between its pieces a large response holds no
thread, but its result stays in memory: their number is limited, and each ends with the time limit of its query.
"""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import threading
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import orjson

from gpuscope.base.errors import UsageError
from gpuscope.base.files import append_whole_line
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.promql import PromQLError, Statistics
from gpuscope.history.scrape.loop import LateScrapes
from gpuscope.serve.api.responses import LargeBody, error_answer
from gpuscope.serve.http.messages import Request, Response, ResponseAborted

log = logging.getLogger("gpuscope.server")

T = TypeVar("T")

_Job = Callable[[], None]
RETRY_SECONDS = "5"


class QueryThreads:
    """Queries take turns while scrapes are late."""

    def __init__(self, count: int, scrapes: LateScrapes | None = None) -> None:
        self._scrapes = scrapes or LateScrapes()
        self.pool = ThreadPoolExecutor(count, thread_name_prefix="gpuscope-query")
        self._count = count
        self._share = max(1, count // 5)
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[_Job]] = {}

    def submit(self, address: str, work: Callable[..., T], *arguments: Any) -> Future[T]:
        """A future that can be cancelled while the work waits for a thread."""
        future: Future[T] = Future()

        def job() -> None:
            report: Callable[[], None] | None = None
            if future.set_running_or_notify_cancel():
                try:
                    with self._scrapes.turn():
                        report = partial(future.set_result, work(*arguments))
                except BaseException as error:
                    report = partial(future.set_exception, error)
            # Before the result is set: a client that sends its next query at once must find its share free.
            self._finish(address)
            if report is not None:
                report()

        with self._lock:
            if self._running.total() >= self._count or self._running[address] >= self._share:
                LIMITS_REACHED.count("query_max_concurrency")
            if self._running[address] >= self._share:
                self._waiting.setdefault(address, deque()).append(job)
                return future
            self._running[address] += 1
        self.pool.submit(job)
        return future

    def _finish(self, address: str) -> None:
        """A query has ended: start the next one of its address, or free its share."""
        with self._lock:
            waiting = self._waiting.get(address)
            if not waiting:
                self._running[address] -= 1
                if not self._running[address]:
                    del self._running[address]
                return
            job = waiting.popleft()
            if not waiting:
                del self._waiting[address]
        self.pool.submit(job)


@dataclass(slots=True)
class LargeResponses:
    """Belongs to the event loop."""

    max_responses: int
    sending: int = 0

    def respond(self, body: LargeBody, kind: str, workers: ThreadPoolExecutor) -> Response:
        if self.sending >= self.max_responses:
            body.budget.close()
            LIMITS_REACHED.count("query_max_large_responses")
            refusal = error_answer(
                "unavailable",
                f"{self.max_responses} large responses are being sent (query_max_large_responses); try again",
            )
            refusal.status, refusal.headers = 503, (("retry-after", RETRY_SECONDS),)
            return refusal
        large = _LargeResponse(self, body, workers)
        response = body.answer(kind)
        response.pieces, response.close = large.pieces(), large.close
        return response


class _LargeResponse:
    def __init__(self, running: LargeResponses, body: LargeBody, workers: ThreadPoolExecutor) -> None:
        self._running = running
        self._rest: Iterator[bytes] | None = body.pieces
        self._budget = body.budget
        self._workers = workers
        self._running.sending += 1
        # A client that reads a byte a minute never requests the next piece: a timer frees the result.
        left, loop = body.budget.seconds_left(), asyncio.get_running_loop()
        self._timer = None if left is None else loop.call_later(left, self._release)

    async def pieces(self) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        while self._rest is not None:
            try:
                piece = await loop.run_in_executor(self._workers, next, self._rest, None)
            except PromQLError as error:
                # The head is sent: only a broken connection can show the error.
                raise ResponseAborted(str(error)) from error
            if piece is None:
                return
            yield piece
        raise ResponseAborted("query timed out in sending the response")

    async def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._release()

    def _release(self) -> None:
        if self._rest is not None:
            self._rest = None
            self._budget.close()
            self._running.sending -= 1


# Prometheus' query log (`query_log_file`): one JSON line for each query and range query that was evaluated.
#
# The fields are Prometheus' own, so that tools for its log read this one too; a query that does not parse is
# not logged, one that fails is, with its error. The file is bounded: past its limit it is renamed to FILE.1
# and begun anew. Lines are written by the thread that evaluated the query. A file that cannot be written
# loses lines, never queries; the log says so once per episode.


MAX_QUERY_CHARACTERS = 16 << 10
"""Of a query's text in its line; the rest is cut off."""


class QueryLog:
    """Off until `open` is called with a path. For several threads."""

    def __init__(self, max_bytes: int = Limits().query_log_max_bytes) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._path: Path | None = None
        self._file: int | None = None
        self._is_failing = False

    def open(self, path: Path | None) -> None:
        """Begins, goes on in another file, or stops; also reopens a file that was moved away. UsageError if it
        cannot be opened: then everything stays as it was."""
        opened = None if path is None else _open(path)
        with self._lock:
            if self._file is not None:
                os.close(self._file)
            self._path, self._file, self._is_failing = path, opened, False

    def statistics(self) -> Statistics | None:
        """What a query must count for its line; None while the log is off."""
        return None if self._path is None else Statistics()

    @contextmanager
    def logged(
        self, request: Request, text: str, start_ms: int, end_ms: int, step_ms: int, counted: Statistics | None
    ) -> Iterator[None]:
        """Writes the line of the query that is evaluated inside, also if that raises."""
        error = ""
        try:
            yield
        except Exception as raised:
            error = str(raised)
            raise
        finally:
            if self._path is not None and counted is not None:
                params = {"end": _time(end_ms), "query": _cut(text), "start": _time(start_ms)}
                line = _line({**params, "step": step_ms // 1000}, error, counted, request)
                self._write(line)

    def _write(self, line: bytes) -> None:
        with self._lock:
            if self._path is None:
                return
            try:
                if self._file is not None and _is_full(self._file, self._max_bytes):
                    LIMITS_REACHED.count("query_log_max_bytes")
                    self._path.replace(f"{self._path}.1")
                    os.close(self._file)
                    self._file = None
                if self._file is None:  # after a rename, or because it could not be opened then
                    self._file = _open(self._path)
                append_whole_line(self._file, line)
            except (OSError, UsageError) as error:
                if not self._is_failing:
                    log.error("query_log_file %s cannot be written: %s; queries go on", self._path, error)
                self._is_failing = True
            else:
                self._is_failing = False


def _open(path: Path) -> int:
    try:
        # Without O_NONBLOCK the open of a pipe would wait for its reader.
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK, 0o600)
    except OSError as error:
        raise UsageError(f"query_log_file {path}: {error.strerror}") from None
    return opened


def _is_full(file: int, max_bytes: int) -> bool:
    state = os.fstat(file)
    return stat.S_ISREG(state.st_mode) and state.st_size >= max_bytes  # /dev/stdout is never full


def _line(params: dict[str, Any], error: str, counted: Statistics, request: Request) -> bytes:
    now = time.time_ns()
    seconds = datetime.fromtimestamp(now // 10**9, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    entry: dict[str, Any] = {
        "time": f"{seconds}.{now % 10**9:09d}Z",
        "level": "INFO",
        "source": "gpuscope",
        "msg": "promql query logged",
        "params": params,
        **({"error": _cut(error)} if error else {}),
        "stats": counted.as_json(),
        "spanID": "0000000000000000",
        "httpRequest": {"clientIP": request.peer, "method": request.method, "path": _cut(request.path)},
    }
    return orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


def _cut(text: str) -> str:
    """The text as JSON can represent it: without lone surrogates."""
    return text[:MAX_QUERY_CHARACTERS].encode("utf-8", "replace").decode()


def _time(at_ms: int) -> str:
    try:
        seconds = datetime.fromtimestamp(at_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a year that has more than four digits
        return f"{at_ms}ms"
    return f"{seconds}.{at_ms % 1000:03d}Z"
