"""The store's options, its clock, and the counters of its own work.

Each option is a decision of the operator (how long, how much disk, how much memory) or a limit that tests
lower. The defaults were measured for one machine with up to about 100 targets × 600 series.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS
ROLLUP_TARGET_PREFIX = "rollup "
"""Targets with such a name have a few samples a day and are kept for `rollup_retention_ms`."""


class MillisecondClock(Protocol):
    """The source of the current time; tests inject their own."""

    def now_ms(self) -> int:
        """Return milliseconds since the epoch; may jump in both directions."""
        ...

    def monotonic_ms(self) -> int:
        """Return milliseconds that never decrease, and that count while the machine sleeps."""
        ...


class SystemMillisecondClock:
    """The system's wall clock, which may jump."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """Retention, memory and batch sizes."""

    retention_ms: int = 30 * DAY_MS
    rollup_retention_ms: int = 400 * DAY_MS
    retention_bytes: int | None = None
    window_ms: int = 2 * HOUR_MS
    """How much of each target stays in memory before it is sealed into compressed chunks."""
    large_window_ms: int = 20 * MINUTE_MS
    large_from_series: int = 20_000
    """With more series than this, `large_window_ms` applies, to bound the memory of the heads."""
    rollup_window_ms: int = 12 * HOUR_MS
    rollup_period_ms: int = 32 * DAY_MS
    """Blocks of roll-ups are merged to this length: a year is then a dozen chunks of each series."""
    recent_ms: int = 11 * MINUTE_MS
    """How much of the newest samples is never sealed, if the window is longer. Dashboards of a fleet mostly ask
    for five minutes: these and the lookback before them are then read from memory only."""
    cache_bytes: int = 32 << 20
    out_of_order_ms: int = 0
    """Prometheus' `out_of_order_time_window`: how much older than the store's newest sample a late one may
    be."""
    min_late_ms: int = HOUR_MS
    """Late samples are always accepted this far back, even if `out_of_order_ms` is less: Prometheus accepts a
    sample of its head's last hour if it is the newest of its series."""
    max_ahead_ms: int = 10 * MINUTE_MS
    """Samples further in the future than this are refused, as in Prometheus."""
    max_series: int | None = None
    """None: as many series as fit into a quarter of the memory (`series_limit`)."""
    max_new_series: int | None = None
    """Per origin and ten minutes; None: unlimited."""
    queue_ticks: int = 512
    batch_ticks: int = 64
    maintain_interval_s: float = 5.0

    def grace_ms(self, window_ms: int) -> int:
        """Return how long after its end a window is sealed; samples that arrive later are late (`late`)."""
        return max(window_ms // 24, self.recent_ms if window_ms > self.recent_ms else 0)


# Counters of the store's own work, for `Store.stats()` and the server's metrics.


@dataclass(slots=True)
class OwnStats:
    """Counters since the store was opened, and its current problems."""

    commits: int = 0
    ticks: int = 0
    samples: int = 0
    repeated: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    failed_commits: int = 0
    full_since_ms: int | None = None
    """Time of the first failed write; None while writing works."""
    full_reason: str | None = None
    """The error of the last failed commit since then."""
    last_error: str | None = None
    unwritable: str | None = None
    """SQLite's message if a write found the file damaged; the next start then rebuilds the file."""
    lost: str | None = None
    """Why the file is no longer in its folder (`lost_folder`); None while it is."""
    restarts: int = 0
    seals: int = 0
    merges: int = 0
    dropped_blocks: int = 0
    _damaged: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add_damaged(self, chunk: int) -> bool:
        """Add an unreadable chunk or block; return True the first time."""
        with self._lock:
            if chunk in self._damaged:
                return False
            self._damaged.add(chunk)
            return True

    @property
    def damaged_chunks(self) -> int:
        return len(self._damaged)
