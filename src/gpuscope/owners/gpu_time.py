"""Where the time of every GPU goes, in GPU-seconds: to owners, to processes without an owner, or to nobody.

For each kind of owner, a board's seconds are exactly `owners + unattributed + free + stranded = observed`. A
unit that several owners share is split by SM time, or by memory while none of them works, or equally. A MIG
instance counts by its compute slices; slices without an instance are stranded. Time in which the process list
is unknown is not observed: a report counts it as lost, never as free.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from gpuscope.owners.gpu_units import GpuUnit, GpuUnits, Holding, minus
from gpuscope.readings import ABSENT, Device, GpuTime, OwnerKey, UnitTime, Uuid

DEFAULT_COMPUTE_SLICES: Final = 7
COMPUTE_SLICES: Final = (
    (re.compile(r"A30\b|RTX PRO 6000"), 4),
    (re.compile(r"RTX PRO (5000|4500)"), 2),
)
"""Compute slices of a whole GPU, for the models that do not have seven."""
_PROFILE: Final = re.compile(r"(?:(\d+)c\.)?(\d+)g\.")

Charge = Callable[[OwnerKey, Uuid, float], bool]
"""Adds GPU-seconds to an owner's account; False if it has none."""


def unit_weight(unit: GpuUnit) -> float:
    """The part of the board that the unit is: 1, or its share of the compute slices; 0 if that is not known."""
    if unit.instance_uuid is ABSENT:
        return 1.0
    profile = next((one.profile for one in unit.device.instances if one.uuid == unit.instance_uuid), ABSENT)
    match = None if profile is ABSENT else _PROFILE.match(profile)
    if match is None:
        return 0.0
    return int(match[1] or match[2]) / _compute_slices(unit.device)


def _compute_slices(device: Device) -> int:
    model = "" if device.model is ABSENT else device.model
    return next((count for pattern, count in COMPUTE_SLICES if pattern.search(model)), DEFAULT_COMPUTE_SLICES)


class GpuTimes:
    """Call `advance` once a cycle with the units of that cycle and the seconds since the last one."""

    def __init__(self) -> None:
        self._observed: dict[Uuid, float] = defaultdict(float)
        self._stranded: dict[Uuid, float] = defaultdict(float)
        self._free: dict[Uuid, float] = defaultdict(float)
        self._held: dict[Uuid, float] = defaultdict(float)
        self._attributed: dict[tuple[str, Uuid], float] = defaultdict(float)

    def advance(
        self,
        devices: Sequence[Device],
        units: GpuUnits,
        seconds: float,
        charge: Charge,
        *,
        processes_known: bool = True,
    ) -> None:
        if not processes_known:
            return
        used: dict[Uuid, float] = defaultdict(float)
        for uuid, unit in units.items():
            if not unit.device.processes_known:
                continue
            weight = unit_weight(unit)
            used[unit.device.uuid] += weight
            if unit.total.processes or unit.owners:
                self._held[uuid] += weight * seconds
                self._split(uuid, unit, weight * seconds, charge)
            else:
                self._free[uuid] += weight * seconds
        for device in devices:
            if not device.lost and device.processes_known:
                self._observed[device.uuid] += seconds
                self._stranded[device.uuid] += max(0.0, 1.0 - used[device.uuid]) * seconds

    def _split(self, uuid: Uuid, unit: GpuUnit, gpu_seconds: float, charge: Charge) -> None:
        for kind in {owner.kind for owner in unit.owners}:
            owners = {owner: now for owner, now in unit.owners.items() if owner.kind == kind}
            others = _without(unit.total, owners.values())
            for owner, share in _shares(owners, others).items():
                if charge(owner, uuid, gpu_seconds * share):
                    self._attributed[kind, uuid] += gpu_seconds * share

    def unattributed(self, kind: str, uuid: Uuid) -> float:
        """GPU-seconds in which the unit was held, and not by an owner of this kind."""
        return max(0.0, self._held[uuid] - self._attributed[kind, uuid])

    def read(self, devices: Sequence[Device], units: GpuUnits) -> tuple[GpuTime, ...]:
        times: dict[Uuid, list[UnitTime]] = defaultdict(list)
        for uuid, unit in units.items():
            time = UnitTime(uuid=uuid, held_seconds=self._held[uuid], free_seconds=self._free[uuid])
            times[unit.device.uuid].append(time)
        return tuple(
            GpuTime(
                gpu_uuid=device.uuid,
                observed_seconds=self._observed[device.uuid],
                stranded_seconds=self._stranded[device.uuid],
                units=tuple(times[device.uuid]),
            )
            for device in devices
            if device.uuid in self._observed
        )


def _without(total: Holding, owned: Iterable[Holding]) -> Holding:
    """The processes that no owner of a kind has."""
    rest = Holding(total.processes, total.memory_bytes, total.sm_ratio)
    for one in owned:
        rest.processes -= one.processes
        rest.memory_bytes = minus(rest.memory_bytes, one.memory_bytes)
        rest.sm_ratio = minus(rest.sm_ratio, one.sm_ratio)
    return rest


def _shares(owners: Mapping[OwnerKey, Holding], others: Holding) -> dict[OwnerKey, float]:
    """Each owner's part of the unit; what is left to 1 belongs to processes without such an owner."""
    everyone = [*owners.values(), *([others] if others.processes > 0 else [])]
    for value in (_sm, _memory):
        total = sum(value(one) for one in everyone)
        if total > 0:
            return {owner: value(now) / total for owner, now in owners.items()}
    return dict.fromkeys(owners, 1 / len(everyone))


def _sm(holding: Holding) -> float:
    return 0.0 if holding.sm_ratio is ABSENT else holding.sm_ratio


def _memory(holding: Holding) -> float:
    return 0.0 if holding.memory_bytes is ABSENT else holding.memory_bytes
