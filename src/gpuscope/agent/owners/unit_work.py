"""What one cycle gave each owner of a GPU or MIG instance: its share of the time, its work, its energy.

The time of a shared unit is split by SM time, or by memory while none of the owners works, or equally. Work is
the SM time of the owner's processes. Under MIG the driver does not report it by process: the instance's own
activity (GPM, DCGM) goes to its only owner; with several owners the work of each is ABSENT, never 0. Energy
goes by SM time; that of the pauses goes to the holders as the time does; work of unknown processes stays
unattributed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.owners.gpu_units import GpuUnit, Holding, minus, plus
from gpuscope.agent.owners.gpu_work import WORKING_RATIO
from gpuscope.model.readings import ABSENT, Instance, Maybe, OwnerKey, Uuid, compute_activity


@dataclass(frozen=True, slots=True)
class OwnerPart:
    """Of one unit in one cycle."""

    share: float
    """Of the unit's time; 1 for a single owner."""
    busy_ratio: Maybe[float]
    """SM time, 0 to 1 of the unit; 0 without a process, ABSENT if it is not known."""
    works: Maybe[bool]
    """Whether the owner works, in the sense of `gpu_work`; ABSENT if it is not known, or for services."""
    energy_joules: Maybe[float]


def owner_parts(unit: GpuUnit, kind: str, energy_joules: Maybe[float]) -> dict[OwnerKey, OwnerPart]:
    """Of every owner of one kind; what is left to 1 belongs to processes without such an owner."""
    owners = {owner: now for owner, now in unit.owners.items() if owner.kind == kind}
    others = _without(unit.total, owners.values())
    is_only = len(owners) == 1 and others.processes <= 0
    shares = _split(owners, others)
    return {
        owner: _part(unit, now, shares[owner], energy_joules, is_only=is_only) for owner, now in owners.items()
    }


def whole_part(unit: GpuUnit, energy_joules: Maybe[float]) -> OwnerPart:
    """All holders of the unit together."""
    return _part(unit, unit.total, 1.0, energy_joules, is_only=True)


def _part(
    unit: GpuUnit, now: Holding, share: float, energy_joules: Maybe[float], *, is_only: bool
) -> OwnerPart:
    busy = _busy_ratio(unit, now, is_only=is_only)
    works = now.works
    if works is ABSENT and now.holders and now.sm_ratio is ABSENT and busy is not ABSENT:
        works = busy >= WORKING_RATIO  # the instance's own activity
    return OwnerPart(share, busy, works, _energy(unit, busy, share, energy_joules))


def _busy_ratio(unit: GpuUnit, now: Holding, *, is_only: bool) -> Maybe[float]:
    if not now.processes:
        return 0.0
    if now.sm_ratio is not ABSENT:
        return now.sm_ratio / _scale(unit)
    return instance_activity(unit) if is_only else ABSENT


def _energy(unit: GpuUnit, busy: Maybe[float], share: float, joules: Maybe[float]) -> Maybe[float]:
    if joules is ABSENT:
        return ABSENT
    working = _working_ratio(unit)
    if busy is ABSENT or working is ABSENT:
        # Who worked is not known: only a single holder can be charged without a guess.
        return joules if share >= 1.0 else ABSENT
    return joules * (busy + (1.0 - working) * share)


def _working_ratio(unit: GpuUnit) -> Maybe[float]:
    """How much of the time somebody worked: the processes together, or more if the GPU says so."""
    total = unit.total.sm_ratio
    if unit.instance_uuid is not ABSENT:
        return instance_activity(unit) if total is ABSENT else min(1.0, total)
    if total is ABSENT:
        return ABSENT if unit.total.processes else 0.0
    utilization = unit.device.utilization_ratio
    return min(1.0, total if utilization is ABSENT else max(total, utilization))


def _scale(unit: GpuUnit) -> float:
    """The samples of several processes may add up to more than the whole."""
    total = unit.total.sm_ratio
    return 1.0 if total is ABSENT else max(1.0, total)


def instance_activity(unit: GpuUnit) -> Maybe[float]:
    """A MIG instance's own activity, 0 to 1 of the instance; ABSENT for a whole GPU."""
    instance = instance_of(unit)
    if instance is None:
        return ABSENT
    ratio = compute_activity(instance)
    return ABSENT if ratio is ABSENT else min(1.0, max(0.0, ratio))


def instance_of(unit: GpuUnit) -> Instance | None:
    return next((instance for instance in unit.device.instances if instance.uuid == unit.instance_uuid), None)


def _without(total: Holding, owned: Iterable[Holding]) -> Holding:
    """The processes that no owner of a kind has."""
    rest = Holding(total.processes, total.memory_bytes, total.sm_ratio)
    for holding in owned:
        rest.processes -= holding.processes
        rest.memory_bytes = minus(rest.memory_bytes, holding.memory_bytes)
        rest.sm_ratio = minus(rest.sm_ratio, holding.sm_ratio)
    return rest


def _split(owners: Mapping[OwnerKey, Holding], others: Holding) -> dict[OwnerKey, float]:
    everyone = [*owners.values(), *([others] if others.processes > 0 else [])]
    for value in (_sm, _memory):
        total = sum(value(holder) for holder in everyone)
        if total > 0:
            return {owner: value(now) / total for owner, now in owners.items()}
    return dict.fromkeys(owners, 1 / len(everyone))


def _sm(holding: Holding) -> float:
    return 0.0 if holding.sm_ratio is ABSENT else holding.sm_ratio


def _memory(holding: Holding) -> float:
    return 0.0 if holding.memory_bytes is ABSENT else holding.memory_bytes


# The account of one owner on one GPU or MIG instance: seconds, work and energy since it was first seen.
#
# GPU-seconds are weighted: a shared GPU is split, a MIG instance counts by its slices. They are either busy,
# or unknown, or neither; a stretch of at least 15 minutes without work counts as idle, from its beginning.
# Busy is SM time; `gpu_work` says what work is.

IDLE_STRETCH_SECONDS: Final = 900.0
"""Shorter pauses are not idle: a checkpoint, an evaluation, reading the output of a notebook."""


@dataclass(slots=True)
class OwnerAccount:
    gpu_uuid: Uuid
    instance_uuid: Maybe[Uuid]
    here_at: float
    """The last cycle in which the owner held the unit, monotonic."""
    held_seconds: float = 0.0
    gpu_seconds: float = 0.0
    busy_seconds: Maybe[float] = ABSENT
    unknown_seconds: float = 0.0
    """Of `gpu_seconds`: those in which the work is not known."""
    idle_gpu_seconds: float = 0.0
    """Of `gpu_seconds`: those of idle stretches."""
    energy_joules: Maybe[float] = ABSENT
    idle_seconds: Maybe[float] = ABSENT
    """How long the owner has not worked; 0 while it works, ABSENT if its work is not known."""
    _short_pause: float = 0.0
    """GPU-seconds of a pause that may become an idle stretch."""

    def leave(self) -> None:
        """The owner left; a pause does not last beyond that."""
        self.idle_seconds, self._short_pause = ABSENT, 0.0

    def charge(self, part: OwnerPart, weight: float, elapsed: float) -> float:
        """Adds one cycle, and returns its GPU-seconds. `weight` is the unit's share of the board."""
        gpu_seconds = weight * part.share * elapsed
        self.gpu_seconds += gpu_seconds
        self.energy_joules = plus(self.energy_joules, part.energy_joules)
        if part.busy_ratio is ABSENT:
            self.unknown_seconds += gpu_seconds
            self.idle_seconds, self._short_pause = ABSENT, 0.0
            return gpu_seconds
        self.busy_seconds = plus(self.busy_seconds, weight * part.busy_ratio * elapsed)
        if part.works is not False:
            self.idle_seconds, self._short_pause = ABSENT if part.works is ABSENT else 0.0, 0.0
            return gpu_seconds
        self.idle_seconds = plus(self.idle_seconds, elapsed)
        self._short_pause += gpu_seconds
        if self.idle_seconds is not ABSENT and self.idle_seconds >= IDLE_STRETCH_SECONDS:
            self.idle_gpu_seconds += self._short_pause
            self._short_pause = 0.0
        return gpu_seconds
