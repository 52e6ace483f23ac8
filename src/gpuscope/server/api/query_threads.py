"""The threads that large queries are evaluated in, shared between client addresses.

One address may use a fifth of them at once: however many queries it sends, those of another client find a
thread, and the event loop has its turn. Its further queries wait for its own to end. Threads of their own, so
that slow queries do not take those that remote writes are stored with.
"""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from gpuscope.limits import LIMITS_REACHED

T = TypeVar("T")

_Job = Callable[[], None]


class QueryThreads:
    def __init__(self, count: int) -> None:
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
                    report = partial(future.set_result, work(*arguments))
                except BaseException as error:
                    report = partial(future.set_exception, error)
            # Before the result: a client that sends its next query at once must find its thread free.
            self._end_of(address)
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

    def _end_of(self, address: str) -> None:
        """The thread of one query is free: its address' next one has it, or somebody else's."""
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
