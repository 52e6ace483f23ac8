"""The threads in which large queries are evaluated, shared between client addresses.

One address may use a fifth of them at once; its further queries wait for its own to end. So other clients
find a thread, however many queries one client sends. The pool is separate from the threads that store remote
writes.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.late_scrapes import LateScrapes

T = TypeVar("T")

_Job = Callable[[], None]


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
