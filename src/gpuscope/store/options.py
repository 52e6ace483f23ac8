"""The store's settings and its clock.

Every option names a decision of the operator (how long, how much disk, how much memory) or is a limit that
tests lower; the defaults are those measured for one machine up to about 100 targets × 600 series.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS
DAY_MS = 24 * HOUR_MS


class Clock(Protocol):
    """Where "now" comes from; tests bring their own and never sleep."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...


class SystemClock:
    """The machine's wall clock, which may jump."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How long, how big, how much memory."""

    retention_ms: int = 30 * DAY_MS
    retention_bytes: int | None = None
    window_ms: int = 2 * HOUR_MS
    """How much of each target stays in memory before it is sealed into compressed chunks."""
    large_window_ms: int = 30 * MINUTE_MS
    large_from_series: int = 20_000
    """With more series than this the shorter window bounds the memory of the heads."""
    cache_bytes: int = 32 << 20
    out_of_order_ms: int = 0
    """Prometheus' `out_of_order_time_window`: how far behind the newest sample of all a late one may be."""
    min_late_ms: int = HOUR_MS
    """Late samples are taken so far back whatever `out_of_order_ms` says: so long Prometheus waits for a
    series' own next sample."""
    max_ahead_ms: int = 10 * MINUTE_MS
    """Samples stamped further in the future than this are refused, as Prometheus does."""
    max_series: int | None = None
    """None: as many as a quarter of the memory holds (`series_limit`)."""
    max_new_series: int | None = None
    """Within ten minutes; None: any number."""
    queue_ticks: int = 512
    batch_ticks: int = 64
    maintain_every_s: float = 5.0

    def grace_ms(self, window_ms: int) -> int:
        """How long after a window's end it is sealed: late samples after that cost more (see `late`)."""
        return window_ms // 24
