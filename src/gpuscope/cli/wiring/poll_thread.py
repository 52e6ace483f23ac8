"""A thread that reads at an interval and passes on each reading, so that a screen never waits."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from gpuscope.base.errors import GpuscopeError

T = TypeVar("T")
log = logging.getLogger("gpuscope.top")


class PollThread(Generic[T]):
    """A daemon: a read that hangs does not keep the program from ending."""

    def __init__(
        self,
        read: Callable[[], T],
        interval: float,
        deliver: Callable[[T], object],
        fail: Callable[[GpuscopeError], object],
    ) -> None:
        self._read = read
        self._interval = interval
        self._deliver = deliver
        self._fail = fail
        self._stop = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._thread = threading.Thread(target=self._run, name="poll", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def pause(self, paused: bool) -> None:
        if paused:
            self._running.clear()
        else:
            self._running.set()

    def stop(self) -> None:
        """Does not wait for a read under way."""
        self._stop.set()
        self._running.set()

    def _run(self) -> None:
        due = time.monotonic()
        while not self._stop.is_set():
            self._running.wait()
            if self._stop.is_set():
                return
            try:
                reading = self._read()
            except GpuscopeError as error:
                self._fail(error)
            except Exception as error:  # the screen goes on and says why
                log.exception("reading failed")
                self._fail(GpuscopeError(f"reading failed: {error!r}"))
            else:
                self._deliver(reading)
            # Late reads are not made up for: the next one is due an interval after this one at the earliest.
            due = max(due + self._interval, time.monotonic() + self._interval / 10)
            self._stop.wait(max(0.0, due - time.monotonic()))
