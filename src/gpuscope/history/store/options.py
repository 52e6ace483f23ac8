"""The store's options, its clock, the counters of its own work, and the limits on its series.

Each option is a decision of the operator (how long, how much disk, how much memory) or a limit that tests
lower. The defaults were measured for one machine with up to about 100 targets × 600 series.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuscope.base.limits import LIMITS_REACHED

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


# Limits the number of series and of new series: new ones are refused, existing ones continue.
#
# The index holds every series in memory. `max_series` limits all of them; its default depends on the memory
# this process may use. A series that has ended, whose samples are all sealed, takes less memory and counts
# less. `max_new_series` limits how many series one origin (a scrape target, a remote writer's address) adds
# within ten minutes: it stops a flood early, and does not affect a thousand nodes that are scraped for the
# first time. Long label texts count as additional series.

# How much memory this process may use: the machine's memory or the limit of its control group.
#
# A container's limit is smaller than the machine's memory and is not in /proc/meminfo. It is in `memory.max`
# (cgroup v2) or `memory.limit_in_bytes` (v1); a parent group's limit applies to its children. The result is
# None if nothing can be read (not Linux).

_UNLIMITED = 1 << 60
"""cgroup v1 represents "no limit" by a number near 2**63."""


def memory_bytes(root: Path = Path("/")) -> int | None:
    """Return the minimum of the machine's memory and the limits of this process's control groups."""
    sizes = [size for size in (*_group_limits(root), _machine(root)) if size is not None]
    return min(sizes, default=None)


def _machine(root: Path) -> int | None:
    for line in _lines(root / "proc/meminfo"):
        name, _, rest = line.partition(":")
        if name == "MemTotal" and rest.split()[:1] and rest.split()[0].isdigit():
            return int(rest.split()[0]) * 1024
    return None


def _group_limits(root: Path) -> Iterator[int | None]:
    for line in _lines(root / "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            base, name = root / "sys/fs/cgroup", "memory.max"
        elif "memory" in controllers.split(","):
            base, name = root / "sys/fs/cgroup/memory", "memory.limit_in_bytes"
        else:
            continue
        group = base / path.strip().lstrip("/")
        # In a container the path may be the host's: then only the root of the mount exists.
        for folder in (group, *group.parents):
            if not folder.is_relative_to(base):
                break
            yield _limit(folder / name)


def _limit(path: Path) -> int | None:
    text = "".join(_lines(path)).strip()
    return int(text) if text.isdigit() and int(text) < _UNLIMITED else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text("ascii", "replace").splitlines()
    except OSError:
        return []


SERIES_BYTES = 2560
"""Memory of a series with its labels and an hour of samples, measured with 200,000 series."""
ENDED_PER_SERIES = 8
"""So many series without samples in a head, which have ended, count as one: each takes about 0.2 kB."""
PAIRS_PER_SERIES = 4
"""Of the label pairs beyond one for each living series, so many count as one: each takes about 0.5 kB."""
TEXT_BYTES_PER_SERIES = 2048
"""Each such amount of label text counts as one more series."""
NEW_SERIES_MS = 10 * MINUTE_MS
MAX_ORIGINS = 20_000
"""Origins beyond this number share one allowance."""
_MEMORY_DIVISOR = 4
_DEFAULT_MAX_SERIES = 1_000_000


def default_max_series() -> int:
    """Return the number of series that take a quarter of the memory."""
    memory = memory_bytes()
    return _DEFAULT_MAX_SERIES if memory is None else max(1000, memory // _MEMORY_DIVISOR // SERIES_BYTES)


def count_series(living: int, ended: int, pairs: int) -> int:
    """Return what counts towards `max_series`. Series of a fleet share most label pairs; in a flood each has
    some of its own, which stay after its end. An ended series never counts more than a living one."""
    own_pairs = max(0, pairs - living)
    return living + max(ended // ENDED_PER_SERIES, min(ended, own_pairs // PAIRS_PER_SERIES))


@dataclass(slots=True)
class _NewSeriesAllowance:
    """New series that one origin has used; the allowance is restored over ten minutes."""

    spent: float = 0.0
    at_ms: int = 0

    def spend(self, cost: int, allowed: int, now_ms: int) -> bool:
        # If the clock was set back, no time has passed.
        passed = max(0, now_ms - self.at_ms) if self.at_ms else 0
        self.spent = max(0.0, self.spent - passed * allowed / NEW_SERIES_MS)
        self.at_ms = now_ms
        if self.spent + cost > allowed:
            return False
        self.spent += cost
        return True


class SeriesLimit:
    """Not thread-safe: the index calls it under its lock."""

    def __init__(self, max_series: int | None, max_new_series: int | None, clock: MillisecondClock) -> None:
        self.max_series = max_series
        self.max_new_series = max_new_series
        self._clock = clock
        self._allowances: dict[Hashable, _NewSeriesAllowance] = {}
        self.reached = ""
        """The limit that refused the last series."""

    def allows(self, held: int, text_bytes: int, new_text_bytes: int, origin: Hashable) -> bool:
        """Return whether one more series may be added and count it."""
        cost = 1 + new_text_bytes // TEXT_BYTES_PER_SERIES
        if self.max_series is not None and held + text_bytes // TEXT_BYTES_PER_SERIES + cost > self.max_series:
            self._refuse("max_series")
            return False
        allowed = self.max_new_series
        if allowed is not None and not self._allowance(origin).spend(cost, allowed, self._clock.now_ms()):
            self._refuse("max_new_series")
            return False
        return True

    def _allowance(self, origin: Hashable) -> _NewSeriesAllowance:
        allowance = self._allowances.get(origin)
        if allowance is None:
            if len(self._allowances) >= MAX_ORIGINS:
                self._forget_idle()
            # Still too many: the origins without an allowance of their own share one.
            key = origin if len(self._allowances) < MAX_ORIGINS else None
            allowance = self._allowances.setdefault(key, _NewSeriesAllowance())
        return allowance

    def _forget_idle(self) -> None:
        oldest = self._clock.now_ms() - NEW_SERIES_MS
        self._allowances = {key: one for key, one in self._allowances.items() if one.at_ms > oldest}

    def _refuse(self, name: str) -> None:
        self.reached = name
        LIMITS_REACHED.count(name)

    def reason(self) -> str:
        """Return why the last series was refused."""
        if self.reached == "max_series":
            return f"the store has reached its limit of {self.max_series} series (max_series)"
        return f"more than {self.max_new_series} new series from one origin within 10 minutes (max_new_series)"
