"""An account for each user, pod, job and job's account on each GPU: use now, held and busy seconds, energy.

Integrated at the agent's own clock from the driver's samples for the owner's own processes (`unit_work`). What
no owner of a kind accounts for stays unattributed, once for each kind of owner; it is never distributed.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.owners.gpu_time import KEPT_SECONDS, GpuTimes, UnitEnergy, unit_weight
from gpuscope.agent.owners.gpu_units import GpuUnit, GpuUnits, Holding, group_by_unit, minus, plus
from gpuscope.agent.owners.unit_work import OwnerAccount, owner_parts
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Counters,
    Device,
    GpuTime,
    Maybe,
    OwnerKey,
    OwnerUse,
    Process,
    Unattributed,
    Uuid,
)

MAX_GONE: Final = 256  # owners that left and whose counters are exported
REMEMBERED_SECONDS: Final = 20 * 3600.0
"""An owner that returns goes on with its counters: a second job of 20 s that began at 0 again would end at the
value of the first. Less than the day that reports look back for a counter's last value."""
MAX_REMEMBERED: Final = 2048
MAX_ACCOUNTS: Final = 4096  # further owners stay unattributed: users decide how many names there are


@dataclass(slots=True)
class _Sum:
    busy_seconds: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT

    def add(self, busy: Maybe[float], energy: Maybe[float]) -> None:
        self.busy_seconds = plus(self.busy_seconds, busy)
        self.energy_joules = plus(self.energy_joules, energy)


@dataclass(frozen=True, slots=True)
class _Gain:
    """What a GPU's own counters gained since the last cycle."""

    busy_seconds: Maybe[float]
    energy_joules: Maybe[float]


class OwnerAccounts:
    """Call `advance` once a cycle. After a gap longer than `max_gap_seconds` nothing is charged for it."""

    def __init__(self, max_gap_seconds: float = 30.0) -> None:
        self._max_gap = max_gap_seconds
        self._last_at: float | None = None
        self._last_counters: Mapping[Uuid, Counters] = {}
        self._accounts: dict[tuple[OwnerKey, Uuid], OwnerAccount] = {}
        self._remembered: OrderedDict[tuple[OwnerKey, Uuid], OwnerAccount] = OrderedDict()
        """Of owners that left and are no longer exported, the oldest first."""
        self._left: dict[tuple[str, Uuid], _Sum] = {}
        self._times = GpuTimes()
        self._energy = UnitEnergy()
        self.times: tuple[GpuTime, ...] = ()
        """Where the time of each GPU went, up to the last cycle."""
        self._kinds = {"user"}

    def advance(
        self,
        processes: Sequence[Process],
        devices: Sequence[Device],
        allocations: Maybe[Sequence[Allocation]],
        counters: Mapping[Uuid, Counters],
        at: float,
        *,
        processes_known: bool = True,
        allocating: frozenset[str] = frozenset({"pod"}),
    ) -> tuple[tuple[OwnerUse, ...], tuple[Unattributed, ...]]:
        """`counters` are the GPUs' own of this cycle, `at` is monotonic; `allocating` are the kinds of owners
        whose scheduler is known."""
        elapsed = 0.0 if self._last_at is None else at - self._last_at
        if not 0 <= elapsed <= self._max_gap:
            elapsed = 0.0
        units = group_by_unit(devices, processes, allocations)
        self._kinds |= {owner.kind for unit in units.values() for owner in unit.owners}
        gains = {device.uuid: self._gain(device.uuid, counters, elapsed) for device in devices}
        energy = self._energy.split(units, {uuid: gain.energy_joules for uuid, gain in gains.items()}, elapsed)
        self._times.advance(devices, units, energy, elapsed, at, processes_known=processes_known)
        charged = self._charge(units, energy, elapsed, at, processes_known=processes_known)
        self._add_unattributed(gains, charged)
        self._last_at, self._last_counters = at, counters
        self._forget(at, gains)
        self.times = self._times.read()
        kinds = allocating if allocations is not ABSENT else frozenset[str]()
        uses = self._uses(units, kinds, processes_known=processes_known)
        return tuple(uses), tuple(self._unattributed(devices, units))

    def _gain(self, uuid: Uuid, counters: Mapping[Uuid, Counters], elapsed: float) -> _Gain:
        now = counters.get(uuid, Counters())
        before = self._last_counters.get(uuid, Counters())

        def gained(now: Maybe[float], before: Maybe[float]) -> Maybe[float]:
            if now is ABSENT:
                return ABSENT
            return 0.0 if before is ABSENT or now < before or not elapsed else now - before

        return _Gain(
            gained(now.busy_seconds, before.busy_seconds), gained(now.energy_joules, before.energy_joules)
        )

    def _charge(
        self,
        units: GpuUnits,
        energy: Mapping[Uuid, Maybe[float]],
        elapsed: float,
        at: float,
        *,
        processes_known: bool,
    ) -> dict[tuple[str, Uuid], _Sum]:
        """Adds this cycle to every owner's account, and returns how much that was by kind and GPU."""
        charged: dict[tuple[str, Uuid], _Sum] = {}
        for uuid, unit in units.items():
            gpu, weight = unit.device.uuid, unit_weight(unit)
            is_known = processes_known and unit.device.processes_known
            for kind in {owner.kind for owner in unit.owners}:
                for owner, part in owner_parts(unit, kind, energy.get(uuid, ABSENT)).items():
                    account = self._account(owner, uuid, unit, at)
                    if account is None:
                        continue
                    account.here_at = at
                    account.held_seconds += elapsed
                    if is_known:
                        self._times.attribute(kind, unit, account.charge(part, weight, elapsed))
                        busy = ABSENT if part.busy_ratio is ABSENT else part.busy_ratio * weight * elapsed
                        charged.setdefault((kind, gpu), _Sum()).add(busy, part.energy_joules)
        return charged

    def _account(self, owner: OwnerKey, uuid: Uuid, unit: GpuUnit, at: float) -> OwnerAccount | None:
        account = self._accounts.get((owner, uuid))
        if account is None and len(self._accounts) < MAX_ACCOUNTS:
            account = self._remembered.pop((owner, uuid), None)
            if account is None or at - account.here_at > REMEMBERED_SECONDS:
                account = OwnerAccount(unit.device.uuid, unit.instance_uuid, at)
            self._accounts[owner, uuid] = account
        return account

    def _add_unattributed(self, gains: Mapping[Uuid, _Gain], charged: Mapping[tuple[str, Uuid], _Sum]) -> None:
        for uuid, gain in gains.items():
            for kind in self._kinds:
                part = charged.get((kind, uuid), _Sum())
                self._left.setdefault((kind, uuid), _Sum()).add(
                    minus(gain.busy_seconds, part.busy_seconds), minus(gain.energy_joules, part.energy_joules)
                )

    def _unattributed(self, devices: Sequence[Device], units: GpuUnits) -> Iterable[Unattributed]:
        for device in devices:
            if device.lost or not device.processes_known:
                continue
            for kind in sorted(self._kinds):
                left = self._left[kind, device.uuid]
                # For a split GPU only energy is known as a whole; the rest belongs to its instances.
                whole = units.get(device.uuid)
                owned = Holding() if whole is None else self._owned(device.uuid, whole, kind)
                yield Unattributed(
                    kind=kind,
                    gpu_uuid=device.uuid,
                    processes=0 if whole is None else whole.total.processes - owned.processes,
                    memory_bytes=ABSENT if whole is None else minus(whole.memory_used, owned.memory_bytes),
                    sm_ratio=ABSENT if whole is None else minus(device.utilization_ratio, owned.sm_ratio),
                    gpu_seconds=ABSENT
                    if whole is None
                    else self._times.unattributed(kind, device.uuid, device.uuid),
                    busy_seconds=left.busy_seconds,
                    energy_joules=left.energy_joules,
                )
                for instance in device.instances:
                    yield self._unattributed_instance(instance.uuid, units, kind)

    def _unattributed_instance(self, uuid: Uuid, units: GpuUnits, kind: str) -> Unattributed:
        unit = units[uuid]
        memory: Maybe[float] = ABSENT
        if unit.memory_of == uuid:
            memory = unit.memory_used
            for other, sharing in units.items():
                if sharing.memory_of == uuid:
                    memory = minus(memory, self._owned(other, sharing, kind).memory_bytes)
        return Unattributed(
            kind=kind,
            gpu_uuid=unit.device.uuid,
            instance_uuid=uuid,
            processes=unit.total.processes - self._owned(uuid, unit, kind).processes,
            memory_bytes=memory,
            gpu_seconds=self._times.unattributed(kind, unit.device.uuid, uuid),
        )

    def _owned(self, uuid: Uuid, unit: GpuUnit, kind: str) -> Holding:
        """What all owners of one kind that have an account have here together."""
        return unit.owned(
            owner for owner in unit.owners if owner.kind == kind and (owner, uuid) in self._accounts
        )

    def _uses(
        self, units: GpuUnits, allocating: frozenset[str], *, processes_known: bool
    ) -> Iterable[OwnerUse]:
        nothing = Holding()
        for (owner, uuid), account in self._accounts.items():
            unit = units.get(uuid)
            now = unit.owners.get(owner) if unit is not None else None
            allocated = now is not None and owner.kind in allocating
            holding = now or nothing
            memory = holding.memory_bytes
            if unit is not None and now is not None and not now.processes:
                # Allocated and not used: no memory, as 0 % of the SM time, if all processes are known.
                memory = 0.0 if processes_known and unit.device.processes_known else ABSENT
            yield OwnerUse(
                owner=owner,
                gpu_uuid=account.gpu_uuid,
                instance_uuid=account.instance_uuid,
                here=now is not None,
                processes=holding.processes,
                allocated=holding.allocated if allocated else ABSENT,
                memory_bytes=memory,
                sm_ratio=holding.sm_ratio,
                held_seconds=account.held_seconds,
                gpu_seconds=account.gpu_seconds,
                busy_seconds=account.busy_seconds,
                unknown_seconds=account.unknown_seconds,
                idle_gpu_seconds=account.idle_gpu_seconds,
                idle_seconds=account.idle_seconds,
                energy_joules=account.energy_joules,
            )

    def _forget(self, at: float, gpus: Mapping[Uuid, _Gain]) -> None:
        left = [(account.here_at, key) for key, account in self._accounts.items() if account.here_at < at]
        gone = [key for here_at, key in left if at - here_at > KEPT_SECONDS]
        if len(left) > MAX_GONE:  # many short-lived owners: those that left first are forgotten first
            left.sort()
            gone += [key for _, key in left[:-MAX_GONE]]
        for key in gone:
            account = self._accounts.pop(key, None)
            if account is not None:
                account.leave()
                self._remembered[key] = account
        while len(self._remembered) > MAX_REMEMBERED:
            self._remembered.popitem(last=False)
        if len(self._left) > 1024:
            self._left = {key: sums for key, sums in self._left.items() if key[1] in gpus}
