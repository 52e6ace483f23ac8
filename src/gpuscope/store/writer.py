"""The one writer: every change of the file goes through here, one after the other.

Without `start()` a call runs at once in the caller's thread; after it, ticks and calls queue for the writer's
thread, and ticks that wait together share one commit. The queue is bounded: a sender that is too fast waits.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuscope.store.appender import Appender, Outcome
from gpuscope.store.store_errors import StoreClosedError
from gpuscope.store.tick import Appended, Tick

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _TickJob:
    tick: Tick
    future: Future[Appended]


@dataclass(frozen=True, slots=True)
class _CallJob:
    work: Callable[[], Any]
    future: Future[Any]


_NOTHING_WAITS = _CallJob(lambda: None, Future())


class Writer:
    """Runs jobs in turn."""

    def __init__(self, appender: Appender, queue_ticks: int, batch_ticks: int) -> None:
        self._appender = appender
        self._batch_ticks = batch_ticks
        self._turn = threading.RLock()
        self._queue: queue.Queue[_TickJob | _CallJob | None] = queue.Queue(queue_ticks)
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="gpuscope-store-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Finish what is queued and take nothing more."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._refuse_queued()

    def next_sequence(self) -> int:
        """Ticks appended from now on have this sequence number or a higher one; in the writer's turn."""
        return self._appender.next_sequence

    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, tick: Tick) -> Future[Appended]:
        """The future is done when the tick's commit returned, or failed."""
        job = _TickJob(tick, Future())
        self._hand_over(job)
        return job.future

    def call(self, work: Callable[[], T]) -> T:
        """Run something in the writer's turn and wait for it."""
        if threading.current_thread() is self._thread:
            return work()
        job = _CallJob(work, Future())
        self._hand_over(job)
        return job.future.result()  # type: ignore[no-any-return]

    def _hand_over(self, job: _TickJob | _CallJob) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")
        if self._thread is None:
            self._do([job] if isinstance(job, _TickJob) else job)
            return
        self._queue.put(job)
        if self._closed and not self._thread.is_alive():
            self._refuse_queued()

    def _run(self) -> None:
        job = self._queue.get()
        while job is not None:
            if isinstance(job, _CallJob):
                self._do(job)
                job = self._queue.get()
                continue
            batch = [job]
            job = self._next_tick_or(batch)
            self._do(batch)
            if job is _NOTHING_WAITS:
                job = self._queue.get()

    def _next_tick_or(self, batch: list[_TickJob]) -> _TickJob | _CallJob | None:
        """Take the ticks that wait already; returns the first job that is not part of the batch."""
        while len(batch) < self._batch_ticks:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return _NOTHING_WAITS
            if not isinstance(job, _TickJob):
                return job
            batch.append(job)
        return _NOTHING_WAITS

    def _do(self, work: list[_TickJob] | _CallJob) -> None:
        with self._turn:
            if isinstance(work, _CallJob):
                _settle(work.future, work.work)
                return
            batch = [job for job in work if job.future.set_running_or_notify_cancel()]
            try:
                outcomes: Sequence[Outcome | Exception] = self._appender.write([job.tick for job in batch])
            except Exception as error:  # belongs to the senders; the writer must outlive it
                outcomes = [error] * len(batch)
        for job, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Appended):
                job.future.set_result(outcome)
            else:
                job.future.set_exception(outcome)

    def _refuse_queued(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(StoreClosedError("the store is closed"))


def _settle(future: Future[Any], work: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)
