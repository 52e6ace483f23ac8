"""The GPUs and MIG instances of one cycle, each with what every owner has on it now.

A unit is what can be held: a whole GPU, or, where a GPU is split, each of its instances. Instances that share
one memory each report all of it: it counts once, under the first of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuscope.agent.owners.gpu_work import is_service, working
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Device,
    Instance,
    Maybe,
    OwnerKey,
    Process,
    Uuid,
    unit_uuid,
)


@dataclass(slots=True)
class Holding:
    """What one owner, or all together, have on one unit."""

    processes: int = 0
    memory_bytes: Maybe[float] = ABSENT
    sm_ratio: Maybe[float] = ABSENT
    allocated: bool = False
    holders: int = 0
    """Of the processes: those that are no service of the machine."""
    working: int = 0
    """Of the holders: those that work."""
    unknown: int = 0
    """Of the holders: those whose work is not known."""

    @property
    def works(self) -> Maybe[bool]:
        """Whether one of them works. A service is neither working nor idle; without a process nobody works."""
        if self.working:
            return True
        return ABSENT if self.unknown or (self.processes and not self.holders) else False

    def add(self, process: Process, works: Maybe[bool], *, is_holder: bool) -> None:
        self.processes += 1
        if is_holder:
            self.holders += 1
            self.working += works is True
            self.unknown += works is ABSENT
        self.memory_bytes = plus(self.memory_bytes, process.memory_bytes)
        self.sm_ratio = plus(self.sm_ratio, process.sm_ratio)

    def add_all(self, other: Holding) -> None:
        self.processes += other.processes
        self.memory_bytes = plus(self.memory_bytes, other.memory_bytes)
        self.sm_ratio = plus(self.sm_ratio, other.sm_ratio)


@dataclass(slots=True)
class GpuUnit:
    """A GPU or an instance. `memory_of` is the unit whose memory it uses: mostly itself."""

    device: Device
    instance_uuid: Maybe[Uuid]
    memory_used: Maybe[float]
    memory_of: Uuid
    total: Holding = field(default_factory=Holding)
    owners: dict[OwnerKey, Holding] = field(default_factory=dict)

    def owned(self, owners: Iterable[OwnerKey]) -> Holding:
        """What these owners have together."""
        together = Holding()
        for owner in owners:
            together.add_all(self.owners[owner])
        return together


GpuUnits = Mapping[Uuid, GpuUnit]


def unit_of(process: Process) -> Uuid:
    """What the process is on: its MIG instance, or the whole GPU."""
    return unit_uuid(process)


def group_by_unit(
    devices: Sequence[Device], processes: Sequence[Process], allocations: Maybe[Sequence[Allocation]]
) -> GpuUnits:
    units: dict[Uuid, GpuUnit] = {}
    for device in devices:
        if device.lost:
            continue
        if not device.instances:
            units[device.uuid] = GpuUnit(device, ABSENT, device.memory_used_bytes, device.uuid)
        first_of: dict[int, Uuid] = {}
        for instance in device.instances:
            first = first_of.setdefault(instance.memory_group, instance.uuid)
            units[instance.uuid] = GpuUnit(device, instance.uuid, instance.memory_used_bytes, first)
    for process, works in zip(processes, working(processes, devices), strict=True):
        unit = units.get(unit_of(process))
        if unit is not None:
            is_holder = not is_service(process)
            unit.total.add(process, works, is_holder=is_holder)
            for owner in process_owners(process):
                holding = unit.owners.get(owner)
                if holding is None:
                    holding = unit.owners[owner] = Holding()
                holding.add(process, works, is_holder=is_holder)
    if allocations is not ABSENT:
        _add_allocations(units, allocations)
    return units


def unlisted_memory(devices: Sequence[Device], processes: Iterable[Process]) -> dict[Uuid, float]:
    """Bytes in use that no process listed by the driver has, whether /proc shows it or not. A unit is left out
    unless its list of processes and the memory of each of them are known."""
    listed: dict[Uuid, Maybe[float]] = {}
    for process in processes:
        unit, more = unit_of(process), process.memory_bytes
        before = listed.get(unit, 0.0)
        listed[unit] = ABSENT if before is ABSENT or more is ABSENT else before + more
    unlisted: dict[Uuid, float] = {}
    for device in devices:
        if device.lost or not device.processes_known:
            continue
        if not device.instances:
            _add_unlisted(unlisted, device.uuid, device.memory_used_bytes, [listed.get(device.uuid, 0.0)])
        sharing: dict[int, list[Instance]] = {}
        for instance in device.instances:
            sharing.setdefault(instance.memory_group, []).append(instance)
        for first, *others in sharing.values():
            if all(instance.processes_known for instance in (first, *others)):
                parts = [listed.get(instance.uuid, 0.0) for instance in (first, *others)]
                _add_unlisted(unlisted, first.uuid, first.memory_used_bytes, parts)
    return unlisted


def _add_unlisted(
    unlisted: dict[Uuid, float], uuid: Uuid, used: Maybe[float], parts: Sequence[Maybe[float]]
) -> None:
    known = [part for part in parts if part is not ABSENT]
    if used is not ABSENT and len(known) == len(parts):
        unlisted[uuid] = max(0.0, used - sum(known))


def _add_allocations(units: GpuUnits, allocations: Sequence[Allocation]) -> None:
    for allocation in allocations:
        uuid = unit_uuid(allocation)
        unit = None if uuid is ABSENT else units.get(uuid)
        if unit is None:
            continue
        for owner in allocation_holders(allocation):
            unit.owners.setdefault(owner, Holding()).allocated = True


def process_owners(process: Process) -> Iterable[OwnerKey]:
    owner = process.owner
    return _owners(owner.user, owner.pod, owner.namespace, owner.job, owner.job_account)


def allocation_holders(allocation: Allocation) -> Iterable[OwnerKey]:
    """Also the user of a job: an allocation without a process is the user's, as it is the job's."""
    return _owners(allocation.user, allocation.pod, allocation.namespace, allocation.job, allocation.account)


def _owners(
    user: Maybe[str], pod: Maybe[str], namespace: Maybe[str], job: Maybe[str], account: Maybe[str]
) -> Iterable[OwnerKey]:
    if user is not ABSENT:
        yield OwnerKey("user", user)
    if pod is not ABSENT:
        yield OwnerKey("pod", pod, "" if namespace is ABSENT else namespace)
    if job is not ABSENT:
        yield OwnerKey("job", job)
        if account is not ABSENT:
            yield OwnerKey("account", account)


def plus(total: Maybe[float], more: Maybe[float]) -> Maybe[float]:
    if more is ABSENT:
        return total
    return more if total is ABSENT else total + more


def minus(whole: Maybe[float], part: Maybe[float]) -> Maybe[float]:
    """Never below 0: the driver reads the two at different moments."""
    if whole is ABSENT:
        return ABSENT
    return whole if part is ABSENT else max(0.0, whole - part)
