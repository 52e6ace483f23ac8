"""Composes one node's snapshots: readings go in, an immutable snapshot with counters and owners comes out.

The readings of several sources are merged field by field, the most trusted first. A composer remembers what one
reading alone cannot tell: integrated counters, owners' accounts, counted errors, identities of lost GPUs. `now`
and `monotonic` come from the caller, so that a simulated past takes the same path as the present.
Log lines about events and the agent's own cost belong to the collector, not to this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

from gpuscope.agent.collect.error_ledger import ErrorLedger, normal_pci_bus_id
from gpuscope.agent.collect.gpu_trends import GpuTrends
from gpuscope.agent.owners.owner_join import OwnerJoin
from gpuscope.model.readings import (
    ABSENT,
    Counters,
    Device,
    Driver,
    ErrorEvent,
    HostReading,
    Instance,
    Maybe,
    Process,
    Reading,
    Snapshot,
    SourceStatus,
    Uuid,
    VendorValues,
)
from gpuscope.model.readings.device import NO_VENDOR_VALUES, GpuOrInstance, identity_names
from gpuscope.model.vendor import idle_reasons

# Busy seconds, energy and throttled seconds, integrated at the agent's own clock.
#
# A scrape every 15 s misses a burst of 3 s; a counter does not. The driver's own counters and samples are
# used where they exist; elsewhere a reading is multiplied by the time since the last one. Nothing is added
# for time in which a GPU was not read. A counter is ABSENT until its GPU has given a value.


@dataclass(slots=True)
class _Totals:
    last_at: float
    busy_seconds: Maybe[float] = ABSENT
    driver_busy: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT
    throttled_seconds: dict[str, float] = field(default_factory=dict)
    driver_throttled: Mapping[str, float] = field(default_factory=dict)


class Integrator:
    """Call `advance` with every cycle's devices and a monotonic time; it returns each GPU's counters."""

    def __init__(self, max_gap_seconds: float) -> None:
        self._max_gap = max_gap_seconds
        self._totals: dict[Uuid, _Totals] = {}

    def advance(self, devices: Sequence[Device], at: float) -> dict[Uuid, Counters]:
        return {device.uuid: self._advance_one(device, at) for device in devices if not device.lost}

    def _advance_one(self, device: Device, at: float) -> Counters:
        totals = self._totals.setdefault(device.uuid, _Totals(last_at=at))
        elapsed = at - totals.last_at
        if not 0 <= elapsed <= self._max_gap:
            elapsed = 0.0
        totals.last_at = at
        _add_busy(totals, device, elapsed)
        _add_energy(totals, device, elapsed)
        _add_throttled(totals, device, elapsed)
        return Counters(
            busy_seconds=totals.busy_seconds,
            energy_joules=totals.energy_joules,
            throttled_seconds=dict(totals.throttled_seconds),
        )


def _add_busy(totals: _Totals, device: Device, elapsed: float) -> None:
    """From the driver's samples where they exist: they have the exact start and end of a burst."""
    last, totals.driver_busy = totals.driver_busy, device.busy_seconds
    gained: Maybe[float]
    if device.busy_seconds is not ABSENT:
        gained = 0.0 if last is ABSENT or device.busy_seconds < last else device.busy_seconds - last
    elif device.utilization_mean_ratio is not ABSENT:
        gained = device.utilization_mean_ratio * elapsed
    elif device.utilization_ratio is not ABSENT:
        gained = device.utilization_ratio * elapsed
    else:
        return
    totals.busy_seconds = gained + (0.0 if totals.busy_seconds is ABSENT else totals.busy_seconds)


def _add_energy(totals: _Totals, device: Device, elapsed: float) -> None:
    if device.energy_joules is not ABSENT:
        totals.energy_joules = device.energy_joules
    elif device.power_watts is not ABSENT:
        before = 0.0 if totals.energy_joules is ABSENT else totals.energy_joules
        totals.energy_joules = before + device.power_watts * elapsed


def _add_throttled(totals: _Totals, device: Device, elapsed: float) -> None:
    by_reason = totals.throttled_seconds
    for reason, now in device.throttled_seconds.items():
        before = totals.driver_throttled.get(reason)
        gained = now - before if before is not None and now >= before else 0.0
        by_reason[reason] = by_reason.get(reason, 0.0) + gained
    totals.driver_throttled = device.throttled_seconds
    idle = idle_reasons()
    for reason, is_active in device.throttle_reasons.items():
        if reason not in device.throttled_seconds and reason not in idle:
            by_reason[reason] = by_reason.get(reason, 0.0) + (elapsed if is_active else 0.0)


# How busy the machine's CPUs are, from two readings of their counters; absent until there are two.

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


# The identity of a lost GPU (model, serial number, PCI address, …), kept from when it answered.
#
# Some sources give no identity of a lost GPU (a row without values, or no row at all). Its info series must
# stay the same series, so missing fields are filled in here for every source. A lost GPU whose slot has
# another card was replaced: it is forgotten, though a source may remember it for as long as it runs.

MAX_GPUS: Final = 256
Known = TypeVar("Known", Device, VendorValues)


class Identities:
    def __init__(self) -> None:
        self._known: dict[Uuid, Device] = {}  # each GPU as it was when it last answered
        self._replaced: set[Uuid] = set()  # until they answer again, or no source lists them

    def complete(self, devices: Sequence[Device]) -> tuple[Device, ...]:
        self._replaced &= {device.uuid for device in devices if device.lost}
        if any(device.lost for device in devices):
            devices = [self._complete(device) if device.lost else device for device in devices]
            devices = self._without_replaced(devices)
        for device in devices:
            if device.uuid in self._known or len(self._known) < MAX_GPUS:
                self._known[device.uuid] = device
        return tuple(devices)

    def _without_replaced(self, devices: Sequence[Device]) -> list[Device]:
        present = [device for device in devices if not device.lost]
        addresses = {
            normal_pci_bus_id(device.pci_bus_id) for device in present if device.pci_bus_id is not ABSENT
        }
        # An index moves to the next GPU when one is lost: only a card that was never seen has taken the slot.
        indices = (
            {device.index for device in present if device.uuid not in self._known} if self._known else set()
        )
        kept = []
        for device in devices:
            address = device.pci_bus_id
            is_taken = device.index in indices if address is ABSENT else normal_pci_bus_id(address) in addresses
            if device.lost and is_taken:
                self._replaced.add(device.uuid)
            if device.uuid in self._replaced:
                self._known.pop(device.uuid, None)
            else:
                kept.append(device)
        return kept

    def _complete(self, device: Device) -> Device:
        known = self._known.get(device.uuid)
        return device if known is None else _completed(device, known)


def _completed(lost: Known, known: Known) -> Known:
    """With the fields of its identity that it does not have any more."""
    missing: dict[str, Any] = {}
    for name in identity_names(type(known)):
        now, before = getattr(lost, name, ABSENT), getattr(known, name)
        if isinstance(before, Mapping):
            if isinstance(now, Mapping) and before.keys() - now.keys():
                missing[name] = {**before, **now}
        elif now is ABSENT and before is not ABSENT:
            missing[name] = before
    if isinstance(lost, Device) and isinstance(known, Device):
        mine, before = lost.vendor_values, known.vendor_values
        missing["vendor_values"] = _completed(mine if type(mine) is type(before) else type(before)(), before)
    return replace(lost, **missing) if missing else lost


# Merges the readings of several sources of one machine into one reading, field by field.
#
# Readings come in order of trust: a value is that of the first source that has it. Devices are matched by
# UUID. A mapping is merged key by key: NVML may have the GPU's temperature and DCGM the memory's. The fields
# are those of the dataclasses, so that a new one is merged without a change here;
# `tests/collect/test_every_field.py` follows each of them to `/metrics`. Errors are not merged: the workers
# hand on each of them once.

R = TypeVar("R", bound=GpuOrInstance | Driver | Reading | VendorValues)
U = TypeVar("U", Device, Instance)


def merge_readings(readings: Sequence[Reading]) -> Reading:
    merged = Reading()
    for reading in readings:
        merged = _fill(merged, reading)
    devices = _merge_units(device for reading in readings for device in reading.devices)
    return replace(
        merged,
        processes=_merge_processes(readings),
        devices=tuple(sorted(devices, key=lambda device: (device.index, device.uuid))),
        simulated=any(reading.simulated for reading in readings),
    )


def _merge_processes(readings: Sequence[Reading]) -> Maybe[tuple[Process, ...]]:
    """Of each GPU those of the first source that knows its processes. Each vendor has sources of its own."""
    known = [reading for reading in readings if reading.processes is not ABSENT]
    if len(known) < 2:
        return known[0].processes if known else ABSENT
    processes: list[Process] = []
    listed: set[Uuid] = set()
    for reading in known:
        own = () if reading.processes is ABSENT else reading.processes
        processes += [process for process in own if process.gpu_uuid not in listed]
        listed |= {device.uuid for device in reading.devices} | {process.gpu_uuid for process in own}
    return tuple(processes)


def _merge_units(units: Iterable[U]) -> tuple[U, ...]:
    by_uuid: dict[Uuid, U] = {}
    for unit in units:
        known = by_uuid.get(unit.uuid)
        by_uuid[unit.uuid] = unit if known is None else _fill(known, unit)
    return tuple(by_uuid.values())


def _fill(first: R, second: R) -> R:
    """`first` with each absent value taken from `second`."""
    changes: dict[str, Any] = {}
    for name in first.__dataclass_fields__:
        mine, theirs = getattr(first, name), getattr(second, name)
        if mine is theirs:
            continue
        if mine is ABSENT or mine is NO_VENDOR_VALUES:
            changes[name] = theirs
        elif name == "drivers":
            both = mine.keys() & theirs.keys()
            changes[name] = {
                **theirs,
                **mine,
                **{vendor: _fill(mine[vendor], theirs[vendor]) for vendor in both},
            }
        elif isinstance(mine, Mapping):
            if not theirs.keys() <= mine.keys():
                changes[name] = {**theirs, **mine}
        elif isinstance(mine, VendorValues):
            if type(mine) is type(theirs):
                changes[name] = _fill(mine, theirs)
        elif name == "is_split":
            changes[name] = mine or theirs
        elif name == "instances":
            changes[name] = _merge_units((*mine, *theirs))
    return replace(first, **changes) if changes else first


class SnapshotComposer:
    def __init__(
        self,
        node: str,
        *,
        ledger: ErrorLedger,
        integrator: Integrator,
        owners: OwnerJoin,
        expected_gpus: Maybe[int] = ABSENT,
        trends: GpuTrends | None = None,
    ) -> None:
        self._node = node
        self._ledger = ledger
        self._integrator = integrator
        self._owners = owners
        self._expected_gpus = expected_gpus
        self._identities = Identities()
        self._cpu = CpuMeter()
        self._trends = trends or GpuTrends()

    def compose(
        self,
        readings: Sequence[Reading],
        errors: Iterable[ErrorEvent],
        *,
        now: float,
        monotonic: float,
        sources: tuple[SourceStatus, ...],
    ) -> Snapshot:
        merged = merge_readings(readings)
        devices = self._identities.complete(merged.devices)
        self._ledger.add(_with_monotonic(event, now, monotonic) for event in errors)
        counters = self._integrator.advance(devices, monotonic)
        processes, ownership = self._owners.advance(
            merged.processes,
            devices,
            counters,
            simulated=merged.simulated,
            now=now,
            monotonic=monotonic,
            slurm=merged.slurm,
        )
        trends = self._trends.advance(
            devices, counters, processes, ownership.allocations, now=now, monotonic=monotonic
        )
        return Snapshot(
            node=self._node,
            taken_at=now,
            monotonic=monotonic,
            simulated=merged.simulated,
            drivers=merged.drivers,
            devices=devices,
            processes=processes,
            ownership=ownership,
            host=merged.host,
            infiniband=merged.infiniband,
            collectives=merged.collectives,
            slurm=merged.slurm,
            cpu_ratio=self._cpu.advance(merged.host),
            counters=counters,
            trends=trends,
            errors=self._ledger.totals(devices),
            sources=sources,
            expected_gpus=self._expected_gpus,
        )

    def take_new_errors(self) -> list[ErrorEvent]:
        """The errors counted since the last call, each once."""
        return self._ledger.take_new()

    def stop_waiting(self) -> None:
        """The next snapshot is the last: no process is held back until its owner is known."""
        self._owners.stop_waiting()


def _with_monotonic(event: ErrorEvent, now: float, monotonic: float) -> ErrorEvent:
    """A simulated event brings only its time since the epoch, of the clock that `now` is from."""
    if event.monotonic is not ABSENT:
        return event
    return replace(event, monotonic=monotonic - max(0.0, now - event.at))
