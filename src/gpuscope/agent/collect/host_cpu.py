"""How busy the machine's CPUs are, from two readings of their counters; absent until there are two."""

from __future__ import annotations

from collections.abc import Mapping

from gpuscope.model.readings import ABSENT, HostReading, Maybe

_IDLE_MODES = frozenset({"idle", "iowait"})
Seconds = Mapping[tuple[str, ...], float]


class CpuMeter:
    def __init__(self) -> None:
        self._host: Maybe[HostReading] = ABSENT
        self._before: tuple[int, float, float] | None = None  # number of counters, all seconds, idle seconds
        self._keys: list[tuple[str, ...]] = []  # of the counters of idle time
        self._ratio: Maybe[float] = ABSENT

    def advance(self, host: Maybe[HostReading]) -> Maybe[float]:
        """The share of CPU time that was not idle since the previous reading."""
        if host is ABSENT or not host.cpu_seconds:
            self._host, self._before, self._ratio = ABSENT, None, ABSENT
        elif host is not self._host:
            self._host = host
            self._ratio = self._measure(host.cpu_seconds)
        return self._ratio

    def _measure(self, seconds: Seconds) -> Maybe[float]:
        before = self._before
        if before is None or before[0] != len(seconds):  # a CPU was added or removed: no difference
            before, self._keys = None, [key for key in seconds if key[1] in _IDLE_MODES]
        idle = sum(map(seconds.__getitem__, self._keys))
        self._before = now = (len(seconds), sum(seconds.values()), idle)
        if before is None or now[1] <= before[1]:
            return ABSENT
        return min(max(1 - (now[2] - before[2]) / (now[1] - before[1]), 0.0), 1.0)
