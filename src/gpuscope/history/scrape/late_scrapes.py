"""How late scrapes start, and the turns that other work takes meanwhile.

Python runs one thread at a time, and a scrape asks for the interpreter about five times: beside four busy
threads, 67 scrapes a second do not start in time. So while scrapes are late, queries of clients and the live
picture run one at a time. None of them waits longer than `MAX_WAIT_SECONDS` for its turn.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from gpuscope.model.exposition.sample import NO_LABELS, MetricFamily, Sample

MAX_LATE_SECONDS: Final = 0.05
CALM_SECONDS: Final = 1.0
"""Turns end when no scrape was late for so long."""
MAX_WAIT_SECONDS: Final = 1.0
_PERIOD_SECONDS: Final = 15.0


class LateScrapes:
    """`note` belongs to the scraper's thread, `turn` to any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._late_until = float("-inf")
        self._busy = threading.Lock()
        self._turns = 0
        self._period = 0
        self._worst = self._worst_before = 0.0

    def note(self, seconds: float) -> None:
        """A scrape starts so long after it was due."""
        now = self._clock()
        self._begin_period(now)
        self._worst = max(self._worst, seconds)
        if seconds > MAX_LATE_SECONDS:
            self._late_until = now + CALM_SECONDS

    def _begin_period(self, now: float) -> None:
        period = int(now // _PERIOD_SECONDS)
        if period != self._period:
            self._worst_before = self._worst if period == self._period + 1 else 0.0
            self._worst, self._period = 0.0, period

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For work that keeps the interpreter busy; turns must not be nested."""
        if self._clock() >= self._late_until:
            yield
            return
        self._turns += 1
        is_alone = self._busy.acquire(timeout=MAX_WAIT_SECONDS)
        try:
            yield
        finally:
            if is_alone:
                self._busy.release()

    def families(self) -> Iterator[MetricFamily]:
        self._begin_period(self._clock())
        worst = max(self._worst, self._worst_before)
        yield MetricFamily(
            "gpuscope_scrape_late_seconds",
            "gauge",
            "Longest time by which a scrape started late, in the last 15 to 30 seconds.",
            [Sample(NO_LABELS, worst)],
        )
        yield MetricFamily(
            "gpuscope_scrape_turns_total",
            "counter",
            "Queries and live pictures that ran one at a time because scrapes were late.",
            [Sample(NO_LABELS, self._turns)],
        )
