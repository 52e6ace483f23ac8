"""The recent past of a GPU: means over the last minute, since when it hangs, since when it is free.

Means come from the integrated counters, so that they include bursts between two readings. A GPU hangs while it
reports full utilisation, draws little power and moves no data over PCIe or NVLink: a kernel spins and waits for
something that does not come. Where power or PCIe traffic is not known, that is not known either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.readings import ABSENT, Allocation, Counters, Device, GpuTrend, Maybe, Process, Uuid, unit_uuid

WINDOW_SECONDS: Final = 60.0
MIN_WINDOW_SHARE: Final = 1 / 6
"""Share of the window that must be covered: a mean over less time means little."""
MAX_SECONDS: Final = 180.0
"""Maximum time between two readings of a mean; after a longer gap the mean starts again."""
FULL_UTILIZATION: Final = 0.99
HUNG_POWER_SHARE: Final = 0.35
"""Of the enforced limit: a spinning kernel draws 0.2 to 0.3, one that computes more than 0.4."""
IDLE_BYTES_PER_SECOND: Final = 2e6
"""PCIe or NVLink traffic below this is that of the driver."""
IDLE_DRAM_RATIO: Final = 0.05


@dataclass(slots=True)
class _GpuHistory:
    totals: deque[tuple[float, Maybe[float], Maybe[float]]] = field(default_factory=deque)
    """Monotonic time, busy seconds and joules."""
    nvlink: Maybe[tuple[float, float]] = ABSENT
    """Monotonic time and bytes."""
    hung_since: Maybe[float] = ABSENT


class GpuTrends:
    """Call `advance` once a cycle."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._watched: dict[Uuid, _GpuHistory] = {}
        self._free_since: dict[Uuid, float] = {}

    def advance(
        self,
        devices: Sequence[Device],
        counters: Mapping[Uuid, Counters],
        processes: Maybe[Sequence[Process]],
        allocations: Maybe[Sequence[Allocation]],
        *,
        now: float,
        monotonic: float,
    ) -> dict[Uuid, GpuTrend]:
        self._free_since = self._find_free(devices, processes, allocations, now)
        watched: dict[Uuid, _GpuHistory] = {}
        trends: dict[Uuid, GpuTrend] = {}
        for device in devices:
            if device.lost:
                continue
            one = watched[device.uuid] = self._watched.get(device.uuid) or _GpuHistory()
            trends[device.uuid] = self._trend(one, device, counters.get(device.uuid), now, monotonic)
            for instance in device.instances:
                trends[instance.uuid] = GpuTrend(free_since=self._free_since.get(instance.uuid, ABSENT))
        self._watched = watched
        return trends

    def _trend(
        self, one: _GpuHistory, device: Device, counters: Counters | None, now: float, monotonic: float
    ) -> GpuTrend:
        busy, power = _means(one, counters or Counters(), self._window, monotonic)
        is_hung = _is_hung(one, device, monotonic)
        if is_hung is not True:
            one.hung_since = ABSENT
        elif one.hung_since is ABSENT:
            one.hung_since = now
        return GpuTrend(
            utilization_minute_ratio=busy if busy is ABSENT else min(1.0, busy),
            power_minute_watts=power,
            hung_since=one.hung_since,
            free_since=self._free_since.get(device.uuid, ABSENT),
        )

    def _find_free(
        self,
        devices: Sequence[Device],
        processes: Maybe[Sequence[Process]],
        allocations: Maybe[Sequence[Allocation]],
        now: float,
    ) -> dict[Uuid, float]:
        if processes is ABSENT:
            return {}
        held: set[Maybe[Uuid]] = {unit_uuid(process) for process in processes}
        held |= {unit_uuid(one) for one in (() if allocations is ABSENT else allocations)}
        return {
            uuid: self._free_since.get(uuid, now)
            for device in devices
            for uuid in _units(device)
            if uuid not in held
        }


def _units(device: Device) -> Iterable[Uuid]:
    """What can be held: the instances of a split GPU, else the GPU; none while its processes are unknown."""
    if device.lost or not device.processes_known:
        return ()
    if device.instances:
        return [one.uuid for one in device.instances if one.processes_known]
    return (device.uuid,)


def _means(one: _GpuHistory, counters: Counters, window: float, at: float) -> tuple[Maybe[float], Maybe[float]]:
    """Utilisation and power over the last minute."""
    totals = one.totals
    if totals and not 0 < at - totals[-1][0] <= MAX_SECONDS:
        totals.clear()
    totals.append((at, counters.busy_seconds, counters.energy_joules))
    while len(totals) > 2 and at - totals[1][0] >= window:
        totals.popleft()
    begin, busy, joules = totals[0]
    seconds = at - begin
    if not window * MIN_WINDOW_SHARE <= seconds <= MAX_SECONDS:
        return ABSENT, ABSENT
    return _rate(busy, counters.busy_seconds, seconds), _rate(joules, counters.energy_joules, seconds)


def _rate(first: Maybe[float], last: Maybe[float], seconds: float) -> Maybe[float]:
    """ABSENT after a counter went back: the driver was loaded again."""
    return ABSENT if first is ABSENT or last is ABSENT or last < first else (last - first) / seconds


def _is_hung(one: _GpuHistory, device: Device, at: float) -> bool | None:
    """None where it is not known."""
    nvlink = _nvlink_rate(one, device, at)
    limit = device.power_limit_watts.get("enforced")
    if device.utilization_ratio is ABSENT or device.power_watts is ABSENT or not limit:
        return None
    if not device.pcie_bytes_per_second:
        return None
    traffic = max(*device.pcie_bytes_per_second.values(), nvlink)
    computes = device.dram_active_ratio is not ABSENT and device.dram_active_ratio > IDLE_DRAM_RATIO
    return (
        device.utilization_ratio >= FULL_UTILIZATION
        and device.power_watts < HUNG_POWER_SHARE * limit
        and traffic < IDLE_BYTES_PER_SECOND
        and not computes
    )


def _nvlink_rate(one: _GpuHistory, device: Device, at: float) -> float:
    """Bytes per second since the last cycle; 0 without NVLink."""
    if not device.nvlink_bytes:
        return 0.0
    before, total = one.nvlink, sum(device.nvlink_bytes.values())
    one.nvlink = at, total
    return 0.0 if before is ABSENT or at <= before[0] else max(0.0, total - before[1]) / (at - before[0])
