"""CPU seconds as counters that never decrease.

The kernel's idle and iowait times may decrease slightly, which a rate would see as a counter reset. After a
small decrease the last value is kept. If idle time decreases by more than `HOTPLUG_SECONDS`, the CPU was
removed and added again, and all its times restart. node_exporter does the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuscope.agent.sources.host.proc_files import CPU_MODES, TICKS_PER_SECOND

HOTPLUG_SECONDS = 3.0
_IDLE = CPU_MODES.index("idle")
_GUEST_MODES = ("user", "nice")

Seconds = dict[tuple[str, str], float]


class MonotonicCpu:
    def __init__(self) -> None:
        self._last: dict[str, list[float]] = {}
        self._keys: dict[str, tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {}

    def advance(self, ticks_by_cpu: Mapping[str, Sequence[float]]) -> tuple[Seconds, Seconds]:
        """Seconds by (cpu, mode), and the part spent in guests; an offline CPU has none."""
        last: dict[str, list[float]] = {}
        seconds: Seconds = {}
        guest_seconds: Seconds = {}
        for cpu, ticks in ticks_by_cpu.items():
            now = [tick / TICKS_PER_SECOND for tick in ticks]
            before = self._last.get(cpu)
            if before is not None and _is_same_cpu(before, now):
                now = list(map(max, before, now))
            last[cpu] = now
            modes, guests = self._keys_of(cpu)
            seconds.update(zip(modes, now, strict=False))
            guest_seconds.update(zip(guests, now[len(CPU_MODES) :], strict=False))
        self._last = last
        return seconds, guest_seconds

    def _keys_of(self, cpu: str) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        keys = self._keys.get(cpu)
        if keys is None:
            keys = (
                tuple((cpu, mode) for mode in CPU_MODES),
                tuple((cpu, mode) for mode in _GUEST_MODES),
            )
            self._keys[cpu] = keys
        return keys


def _is_same_cpu(before: Sequence[float], now: Sequence[float]) -> bool:
    return len(before) == len(now) > _IDLE and before[_IDLE] - now[_IDLE] < HOTPLUG_SECONDS
