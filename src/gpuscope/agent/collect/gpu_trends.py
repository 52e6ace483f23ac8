"""The recent past of a GPU: means over the last minute, how long it hangs, how long it has been free.

Means come from the integrated counters, so that they include bursts between two readings. A GPU hangs while it
reports full utilisation, draws little power and moves no data over PCIe or to other GPUs: a kernel spins and
waits for something that does not come. Where power or PCIe traffic is not known, that is not known either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.agent.owners.gpu_work import IDLE_BYTES_PER_SECOND
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Counters,
    Device,
    GpuTrend,
    Maybe,
    Process,
    Uuid,
    unit_uuid,
)

WINDOW_SECONDS: Final = 60.0
MIN_WINDOW_SHARE: Final = 1 / 6
"""Share of the window that must be covered: a mean over less time means little."""
MAX_SECONDS: Final = 180.0
"""Maximum time between two cycles; after a longer gap means and durations start again."""
FULL_UTILIZATION: Final = 0.99
HUNG_POWER_SHARE: Final = 0.35
"""Of the enforced limit: a spinning kernel draws 0.2 to 0.3, one that computes more than 0.4."""
IDLE_DRAM_RATIO: Final = 0.05


@dataclass(frozen=True, slots=True)
class _Beginning:
    now: float
    """Seconds since the epoch."""
    monotonic: float


@dataclass(slots=True)
class _GpuHistory:
    totals: deque[tuple[float, Maybe[float], Maybe[float]]] = field(default_factory=deque)
    """Monotonic time, busy seconds and joules."""
    link_bytes: Maybe[tuple[float, float]] = ABSENT
    """Monotonic time and bytes."""
    hung: Maybe[_Beginning] = ABSENT


class GpuTrends:
    """Call `advance` once a cycle."""

    def __init__(self, window_seconds: float = WINDOW_SECONDS) -> None:
        self._window = window_seconds
        self._watched: dict[Uuid, _GpuHistory] = {}
        self._free: dict[Uuid, Maybe[_Beginning]] = {}
        """ABSENT while it is held."""
        self._advanced_at: float | None = None

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
        if self._advanced_at is not None and not 0 <= monotonic - self._advanced_at <= MAX_SECONDS:
            self._watched, self._free = {}, {}
        self._advanced_at = monotonic
        at = _Beginning(now, monotonic)
        self._free = self._find_free(devices, processes, allocations, at)
        watched: dict[Uuid, _GpuHistory] = {}
        trends: dict[Uuid, GpuTrend] = {}
        for device in devices:
            if device.lost:
                continue
            one = watched[device.uuid] = self._watched.get(device.uuid) or _GpuHistory()
            trends[device.uuid] = self._trend(one, device, counters.get(device.uuid), at)
            for instance in device.instances:
                free_seconds, free_since = self._free_time(instance.uuid, monotonic)
                trends[instance.uuid] = GpuTrend(free_seconds=free_seconds, free_since=free_since)
        self._watched = watched
        return trends

    def _trend(self, one: _GpuHistory, device: Device, counters: Counters | None, at: _Beginning) -> GpuTrend:
        busy, power = _means(one, counters or Counters(), self._window, at.monotonic)
        is_hung = _is_hung(one, device, at.monotonic)
        if not is_hung:
            one.hung = ABSENT
        elif one.hung is ABSENT:
            one.hung = at
        hung_seconds, hung_since = _seconds_and_time(one.hung, at.monotonic)
        free_seconds, free_since = self._free_time(device.uuid, at.monotonic)
        return GpuTrend(
            utilization_minute_ratio=busy if busy is ABSENT else min(1.0, busy),
            power_minute_watts=power,
            hung_seconds=ABSENT if is_hung is None else hung_seconds,
            hung_since=hung_since,
            free_seconds=free_seconds,
            free_since=free_since,
        )

    def _free_time(self, uuid: Uuid, monotonic: float) -> tuple[Maybe[float], Maybe[float]]:
        begun = self._free.get(uuid)
        return (ABSENT, ABSENT) if begun is None else _seconds_and_time(begun, monotonic)

    def _find_free(
        self,
        devices: Sequence[Device],
        processes: Maybe[Sequence[Process]],
        allocations: Maybe[Sequence[Allocation]],
        at: _Beginning,
    ) -> dict[Uuid, Maybe[_Beginning]]:
        """Since when each unit has been free; a unit whose processes are unknown is left out."""
        if processes is ABSENT:
            return {}
        held: set[Maybe[Uuid]] = {unit_uuid(process) for process in processes}
        held |= {unit_uuid(allocation) for allocation in (() if allocations is ABSENT else allocations)}
        free: dict[Uuid, Maybe[_Beginning]] = {}
        for device in devices:
            for uuid in _units(device):
                before = self._free.get(uuid, ABSENT)
                free[uuid] = ABSENT if uuid in held else at if before is ABSENT else before
        return free


def _seconds_and_time(begun: Maybe[_Beginning], monotonic: float) -> tuple[float, Maybe[float]]:
    """Whole seconds, 0 before the beginning; and when it began, since the epoch."""
    return (0.0, ABSENT) if begun is ABSENT else (float(int(monotonic - begun.monotonic)), begun.now)


def _units(device: Device) -> Iterable[Uuid]:
    """What can be held: the instances of a split GPU, else the GPU; none while its processes are unknown."""
    if device.lost or not device.processes_known:
        return ()
    if device.instances:
        return [instance.uuid for instance in device.instances if instance.processes_known]
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
    links = _link_rate(one, device, at)
    limit = device.power_limit_watts.get("enforced")
    if device.utilization_ratio is ABSENT or device.power_watts is ABSENT or not limit:
        return None
    if not device.pcie_bytes_per_second:
        return None
    traffic = max(*device.pcie_bytes_per_second.values(), links)
    computes = device.engine_active_ratio.get("dram", 0.0) > IDLE_DRAM_RATIO
    return (
        device.utilization_ratio >= FULL_UTILIZATION
        and device.power_watts < HUNG_POWER_SHARE * limit
        and traffic < IDLE_BYTES_PER_SECOND
        and not computes
    )


def _link_rate(one: _GpuHistory, device: Device, at: float) -> float:
    """Bytes per second since the last cycle; 0 without links."""
    if not device.link_bytes:
        return 0.0
    before, total = one.link_bytes, sum(device.link_bytes.values())
    one.link_bytes = at, total
    return 0.0 if before is ABSENT or at <= before[0] else max(0.0, total - before[1]) / (at - before[0])
