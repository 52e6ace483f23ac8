"""The threads in which large queries are evaluated and large responses are encoded.

One client address may use a fifth of them at once; its further queries wait for its own to end. So other
clients find a thread, however many queries one client sends. Between its pieces a large response holds no
thread, but its result stays in memory: their number is limited, and each ends with the time limit of its query.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql import PromQLError
from gpuscope.history.scrape.loop import LateScrapes
from gpuscope.serve.api.responses import LargeBody, error_answer
from gpuscope.serve.http.messages import Response, ResponseAborted

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
