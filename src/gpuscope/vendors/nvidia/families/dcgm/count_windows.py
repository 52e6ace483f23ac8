"""Counts over a time window, as dcgm-exporter computes them: of samples, or of events.

Clock events: the number of DCGM's samples in the window that had the event, one sample per collect interval.
The agent reads more often, so one reading per interval is used. XIDs: the number of events, because DCGM has
one sample per XID.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from gpuscope.model.readings import ErrorTotal

SECONDS_TO_READ_OLD_LOGS = 10.0
MAX_EVENTS_PER_GPU = 10_000  # XID storms must not fill the memory; the oldest events are dropped


class SampleWindow:
    def __init__(self, window_ms: int, interval_ms: int) -> None:
        self._window = max(1, window_ms) / 1000
        self._interval = max(1, interval_ms) / 1000
        self._samples: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def record(self, uuid: str, at: float, values: Iterable[int]) -> None:
        samples = self._samples.setdefault(uuid, deque())
        while samples and samples[-1][0] > at:  # the clock was set back
            samples.pop()
        if not samples or at - samples[-1][0] >= self._interval * 0.99:
            samples.append((at, tuple(values)))

    def counts(self, uuid: str, at: float) -> Counter[int] | None:
        """The number of samples with each value; None without samples."""
        samples = self._samples.get(uuid)
        while samples and samples[0][0] < at - self._window:
            samples.popleft()
        if not samples:
            self._samples.pop(uuid, None)
            return None
        return Counter(value for _, values in samples for value in values)


class XidWindow:
    """XID events in the window, from totals that never decrease.

    XIDs from before the start arrive from the kernel log in the first seconds as totals. Only the last event of
    each has a known time, so only that one is counted.
    """

    def __init__(self, window_ms: int) -> None:
        self._window = max(1, window_ms) / 1000
        self._totals: dict[tuple[str, int], int] = {}
        self._events: dict[str, deque[tuple[float, int]]] = {}  # by UUID: when, XID
        self._reported: dict[str, int] = {}
        self._first_at: float | None = None

    def advance(self, totals: Sequence[ErrorTotal], at: float) -> None:
        if self._first_at is None:
            self._first_at = at
        starting = at - self._first_at < SECONDS_TO_READ_OLD_LOGS
        for total in totals:
            key = (str(total.gpu_uuid), int(total.code))
            before = self._totals.get(key, total.count - 1 if starting else 0)
            self._totals[key] = total.count
            self._record(key[0], total.last_at, key[1], total.count - before)

    def record_last(self, uuid: str, xid: int, at: float) -> None:
        """Records DCGM's last XID as an event if its code has changed. A repeated code cannot be detected."""
        if self._reported.get(uuid) != xid:
            self._reported[uuid] = xid
            self._record(uuid, at, xid, 1)

    def _record(self, uuid: str, at: float, xid: int, count: int) -> None:
        if count > 0:
            events = self._events.setdefault(uuid, deque(maxlen=MAX_EVENTS_PER_GPU))
            events.extend([(at, xid)] * min(count, MAX_EVENTS_PER_GPU))

    def counts(self, uuid: str, at: float) -> Counter[int] | None:
        """The number of events of each XID; None without events."""
        counts = Counter(xid for when, xid in self._events.get(uuid, ()) if when >= at - self._window)
        if not counts:
            self._events.pop(uuid, None)
        return counts or None
