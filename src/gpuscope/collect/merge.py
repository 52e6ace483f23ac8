"""Merges the readings of several sources of one machine, field by field.

Readings come in order of trust: a value is that of the first source that has it. Devices are matched by UUID. A
mapping is merged key by key: NVML may have the GPU's temperature and DCGM the memory's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

from gpuscope.readings import (
    ABSENT,
    Device,
    Driver,
    HostReading,
    Maybe,
    MigInstance,
    Process,
    Reading,
    SlurmState,
    Uuid,
)
from gpuscope.readings.device import GpuOrInstance

P = TypeVar("P", Device, MigInstance)

_DEVICE_FIELDS = tuple(f.name for f in fields(Device) if f.name not in ("uuid", "index", "lost", "instances"))
_INSTANCE_FIELDS = tuple(
    f.name for f in fields(MigInstance) if f.name not in ("uuid", "gpu_instance", "compute_instance")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    driver: Driver
    devices: tuple[Device, ...]
    processes: Maybe[tuple[Process, ...]]
    host: Maybe[HostReading]
    slurm: Maybe[SlurmState]
    simulated: bool


def merge_readings(readings: Sequence[Reading]) -> Merged:
    return Merged(
        driver=_merge_drivers(readings),
        devices=_merge_devices(readings),
        processes=next((r.processes for r in readings if r.processes is not ABSENT), ABSENT),
        host=next((r.host for r in readings if r.host is not ABSENT), ABSENT),
        slurm=next((r.slurm for r in readings if r.slurm is not ABSENT), ABSENT),
        simulated=any(r.simulated for r in readings),
    )


def _merge_drivers(readings: Sequence[Reading]) -> Driver:
    merged = Driver()
    for reading in readings:
        if reading.driver is not ABSENT:
            merged = _fill(merged, reading.driver, ("driver_version", "nvml_version", "cuda_version"))
    return merged


def _merge_devices(readings: Sequence[Reading]) -> tuple[Device, ...]:
    by_uuid: dict[Uuid, Device] = {}
    for reading in readings:
        for device in reading.devices:
            known = by_uuid.get(device.uuid)
            by_uuid[device.uuid] = device if known is None else _merge_device(known, device)
    return tuple(sorted(by_uuid.values(), key=lambda device: (device.index, device.uuid)))


def _merge_device(first: Device, second: Device) -> Device:
    merged = _fill(first, second, _DEVICE_FIELDS)
    instances = _merge_instances((*first.instances, *second.instances))
    return merged if instances == merged.instances else replace(merged, instances=instances)


def _merge_instances(instances: Iterable[MigInstance]) -> tuple[MigInstance, ...]:
    by_uuid: dict[Uuid, MigInstance] = {}
    for instance in instances:
        known = by_uuid.get(instance.uuid)
        by_uuid[instance.uuid] = instance if known is None else _fill(known, instance, _INSTANCE_FIELDS)
    return tuple(by_uuid.values())


F = TypeVar("F", bound=GpuOrInstance | Driver)


def _fill(first: F, second: F, names: Iterable[str]) -> F:
    """`first` with each absent value taken from `second`."""
    changes: dict[str, Any] = {}
    for name in names:
        mine, theirs = getattr(first, name), getattr(second, name)
        if isinstance(mine, Mapping):
            if theirs and not theirs.keys() <= mine.keys():
                changes[name] = {**theirs, **mine}
        elif mine is ABSENT and theirs is not ABSENT:
            changes[name] = theirs
    return replace(first, **changes) if changes else first
