"""Counts over the last minutes, as dcgm-exporter makes them: of samples, or of events.

Clock events are counted by samples: how many of DCGM's samples of the last window had the event, one sample per
collect interval. The agent reads more often, so only one reading per interval is taken. XIDs are counted by
events: DCGM has one sample for each XID.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence

from gpuscope.readings import XidTotal

SECONDS_TO_READ_OLD_LOGS = 10.0
MAX_EVENTS_PER_GPU = 10_000  # an XID storm must not fill the memory; the oldest events are dropped


class SampleWindow:
    def __init__(self, window_ms: int, interval_ms: int) -> None:
        self._window = max(1, window_ms) / 1000
        self._interval = max(1, interval_ms) / 1000
        self._samples: dict[str, deque[tuple[float, tuple[int, ...]]]] = {}

    def record(self, uuid: str, at: float, values: Iterable[int]) -> None:
        samples = self._samples.setdefault(uuid, deque())
        while samples and samples[-1][0] > at:  # the clock was put back
            samples.pop()
        if not samples or at - samples[-1][0] >= self._interval * 0.99:
            samples.append((at, tuple(values)))

    def counts(self, uuid: str, at: float) -> Counter[int] | None:
        """How many samples hold each value; None if there was no sample at all."""
        samples = self._samples.get(uuid)
        while samples and samples[0][0] < at - self._window:
            samples.popleft()
        if not samples:
            self._samples.pop(uuid, None)
            return None
        return Counter(value for _, values in samples for value in values)


class XidWindow:
    """XID events of the last window, from totals that only grow.

    What the kernel log has from before our start arrives in the first seconds as totals; only the last event of
    each has a known time, so only that one is counted.
    """

    def __init__(self, window_ms: int) -> None:
        self._window = max(1, window_ms) / 1000
        self._totals: dict[tuple[str, int], int] = {}
        self._events: dict[str, deque[tuple[float, int]]] = {}  # by UUID: when, XID
        self._said: dict[str, int] = {}
        self._first_at: float | None = None

    def advance(self, totals: Sequence[XidTotal], at: float) -> None:
        if self._first_at is None:
            self._first_at = at
        starting = at - self._first_at < SECONDS_TO_READ_OLD_LOGS
        for total in totals:
            key = (str(total.gpu_uuid), total.xid)
            before = self._totals.get(key, total.count - 1 if starting else 0)
            self._totals[key] = total.count
            self._record(key[0], total.last_at, total.xid, total.count - before)

    def hear(self, uuid: str, xid: int, at: float) -> None:
        """What DCGM says is the last XID: another code than before is an event. A repeated code is not seen."""
        if self._said.get(uuid) != xid:
            self._said[uuid] = xid
            self._record(uuid, at, xid, 1)

    def _record(self, uuid: str, at: float, xid: int, count: int) -> None:
        if count > 0:
            events = self._events.setdefault(uuid, deque(maxlen=MAX_EVENTS_PER_GPU))
            events.extend([(at, xid)] * min(count, MAX_EVENTS_PER_GPU))

    def counts(self, uuid: str, at: float) -> Counter[int] | None:
        """How often each XID happened; None if none did."""
        counts = Counter(xid for when, xid in self._events.get(uuid, ()) if when >= at - self._window)
        if not counts:
            self._events.pop(uuid, None)
        return counts or None
