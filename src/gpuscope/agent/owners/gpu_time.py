"""How the time of every GPU is spent, in GPU-seconds: held by owners, free or stranded.

For each kind of owner, a board's seconds are exactly `owners + unattributed + free + stranded = observed`. A
split GPU's instance counts by its share of the GPU; what no instance has is stranded. Time in which the process
list is unknown is not observed: a report counts it as lost, never as free.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuscope.agent.owners.gpu_units import GpuUnit, GpuUnits
from gpuscope.agent.owners.unit_work import OwnerAccount, instance_activity, instance_of, whole_part
from gpuscope.model.readings import ABSENT, Device, GpuTime, Maybe, UnitTime, Uuid
from gpuscope.model.vendor import vendor_of

KEPT_SECONDS: Final = 300.0
"""Counters of an owner, instance or board that left: long enough for the last scrape to see them."""


def unit_weight(unit: GpuUnit) -> float:
    """The unit's share of the board: 1, or an instance's share; 0 if that is not known."""
    if unit.instance_uuid is ABSENT:
        return 1.0
    instance = instance_of(unit)
    vendor = vendor_of(unit.device.vendor)
    if vendor is None or instance is None or instance.profile is ABSENT:
        return 0.0
    model = unit.device.model
    return vendor.instance_share(instance.profile, "" if model is ABSENT else model)


@dataclass(slots=True)
class _BoardTime:
    seen_at: float
    observed: float = 0.0
    stranded: float = 0.0
    units: dict[Uuid, _UnitSeconds] = field(default_factory=dict)


@dataclass(slots=True)
class _UnitSeconds:
    holders: OwnerAccount
    """All holders together."""
    free: float = 0.0
    attributed: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By kind of owner."""


class GpuTimes:
    """Call `advance` once a cycle with the units of that cycle, then `attribute` for what owners were charged.

    `at` is monotonic."""

    def __init__(self) -> None:
        self._boards: dict[Uuid, _BoardTime] = {}

    def advance(
        self,
        devices: Sequence[Device],
        units: GpuUnits,
        energy_joules: Mapping[Uuid, Maybe[float]],
        elapsed: float,
        at: float,
        *,
        processes_known: bool = True,
    ) -> None:
        """`energy_joules` is by unit, for this cycle."""
        used: dict[Uuid, float] = defaultdict(float)
        for uuid, unit in units.items():
            seconds, weight = self._unit(uuid, unit, at), unit_weight(unit)
            if not (processes_known and unit.device.processes_known):
                continue
            used[unit.device.uuid] += weight
            if unit.total.processes or unit.owners:
                seconds.holders.charge(whole_part(unit, energy_joules.get(uuid, ABSENT)), weight, elapsed)
            else:
                seconds.free += weight * elapsed
        for device in devices:
            if device.lost:
                self._keep_lost(device.uuid, at)
            elif device.processes_known and processes_known:
                board = self._board(device.uuid, at)
                board.observed += elapsed
                board.stranded += max(0.0, 1.0 - used[device.uuid]) * elapsed
        self._forget(at)

    def _keep_lost(self, uuid: Uuid, at: float) -> None:
        """A lost GPU keeps its counters, which do not advance."""
        board = self._boards.get(uuid)
        if board is not None:
            board.seen_at = at
            for unit in board.units.values():
                unit.holders.here_at = at

    def _board(self, uuid: Uuid, at: float) -> _BoardTime:
        board = self._boards.setdefault(uuid, _BoardTime(at))
        board.seen_at = at
        return board

    def _unit(self, uuid: Uuid, unit: GpuUnit, at: float) -> _UnitSeconds:
        units = self._board(unit.device.uuid, at).units
        seconds = units.get(uuid)
        if seconds is None:
            seconds = units[uuid] = _UnitSeconds(OwnerAccount(unit.device.uuid, unit.instance_uuid, at))
        seconds.holders.here_at = at
        return seconds

    def attribute(self, kind: str, unit: GpuUnit, gpu_seconds: float) -> None:
        """An owner of this kind was charged for these seconds of the unit."""
        uuid = unit.device.uuid if unit.instance_uuid is ABSENT else unit.instance_uuid
        self._boards[unit.device.uuid].units[uuid].attributed[kind] += gpu_seconds

    def unattributed(self, kind: str, gpu_uuid: Uuid, uuid: Uuid) -> float:
        """GPU-seconds in which the unit was held, and not by an owner of this kind."""
        unit = self._boards[gpu_uuid].units[uuid]
        return max(0.0, unit.holders.gpu_seconds - unit.attributed[kind])

    def read(self) -> tuple[GpuTime, ...]:
        """Also of boards and instances that left a short time ago."""
        return tuple(
            GpuTime(
                gpu_uuid=uuid,
                observed_seconds=board.observed,
                stranded_seconds=board.stranded,
                units=tuple(_unit_time(unit_uuid, one) for unit_uuid, one in board.units.items()),
            )
            for uuid, board in self._boards.items()
        )

    def _forget(self, at: float) -> None:
        for uuid, board in list(self._boards.items()):
            if at - board.seen_at > KEPT_SECONDS:
                del self._boards[uuid]
                continue
            gone = [key for key, unit in board.units.items() if at - unit.holders.here_at > KEPT_SECONDS]
            for key in gone:
                del board.units[key]


def _unit_time(uuid: Uuid, unit: _UnitSeconds) -> UnitTime:
    holders = unit.holders
    return UnitTime(
        uuid=uuid,
        held_seconds=holders.gpu_seconds,
        free_seconds=unit.free,
        busy_seconds=holders.busy_seconds,
        unknown_seconds=holders.unknown_seconds,
        idle_seconds=holders.idle_gpu_seconds,
        energy_joules=holders.energy_joules,
    )


# The energy of each GPU or MIG instance in one cycle.
#
# A whole GPU has its own counter. A split one has only the board's, so the energy of an instance is an
# estimate: the board's lowest power seen goes to the instances by their compute slices, what is above it by
# their activity. Where the activity of one of them is not known, all of it goes by slices. Stranded slices
# keep their part.


class UnitEnergy:
    def __init__(self) -> None:
        self._lowest_watts: dict[Uuid, float] = {}

    def split(
        self, units: GpuUnits, gains: Mapping[Uuid, Maybe[float]], elapsed: float
    ) -> dict[Uuid, Maybe[float]]:
        """`gains` are the boards' joules in this cycle of `elapsed` seconds; the result is by unit."""
        found: dict[Uuid, Maybe[float]] = {}
        split_boards: dict[Uuid, dict[Uuid, GpuUnit]] = defaultdict(dict)
        for uuid, unit in units.items():
            if unit.instance_uuid is ABSENT:
                found[uuid] = gains.get(uuid, ABSENT)
            else:
                split_boards[unit.device.uuid][uuid] = unit
        for board, instances in split_boards.items():
            joules = gains.get(board, ABSENT)
            if joules is ABSENT:
                found.update(dict.fromkeys(instances, ABSENT))
            else:
                found.update(self._of_instances(board, instances, joules, elapsed))
        self._lowest_watts = {
            board: self._lowest_watts[board] for board in split_boards if board in self._lowest_watts
        }
        return found

    def _of_instances(
        self, board: Uuid, instances: Mapping[Uuid, GpuUnit], joules: float, elapsed: float
    ) -> dict[Uuid, Maybe[float]]:
        idle = 0.0
        if elapsed > 0 and joules > 0:  # 0: the counter was read for the first time, or started over
            watts = joules / elapsed
            self._lowest_watts[board] = min(self._lowest_watts.get(board, watts), watts)
            idle = self._lowest_watts[board] * elapsed
        weights = {uuid: unit_weight(unit) for uuid, unit in instances.items()}
        work = _work_shares(instances, weights)
        if work is None:
            parts = {uuid: joules * weight for uuid, weight in weights.items()}
        else:
            parts = {uuid: idle * weight + (joules - idle) * work[uuid] for uuid, weight in weights.items()}
        # An unknown profile has no weight; its energy is not 0 but not known.
        return {uuid: parts[uuid] if weight else ABSENT for uuid, weight in weights.items()}


def _work_shares(instances: Mapping[Uuid, GpuUnit], weights: Mapping[Uuid, float]) -> dict[Uuid, float] | None:
    """Each instance's part of the work on the board; None if it is not known, or if there is none."""
    work: dict[Uuid, float] = {}
    for uuid, unit in instances.items():
        activity = instance_activity(unit)
        if activity is ABSENT:
            return None
        work[uuid] = activity * weights[uuid]
    total = sum(work.values())
    return {uuid: one / total for uuid, one in work.items()} if total > 0 else None
