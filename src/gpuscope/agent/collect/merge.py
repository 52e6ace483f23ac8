"""Merges the readings of several sources of one machine into one reading, field by field.

Readings come in order of trust: a value is that of the first source that has it. Devices are matched by UUID. A
mapping is merged key by key: NVML may have the GPU's temperature and DCGM the memory's. The fields are those of
the dataclasses, so that a new one is merged without a change here; `tests/collect/test_every_field.py` follows
each of them to `/metrics`. Errors are not merged: the workers hand on each of them once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from gpuscope.model.readings import ABSENT, Device, Driver, Instance, Reading, Uuid, VendorValues
from gpuscope.model.readings.device import NO_VENDOR_VALUES, GpuOrInstance

R = TypeVar("R", bound=GpuOrInstance | Driver | Reading | VendorValues)
U = TypeVar("U", Device, Instance)


def merge_readings(readings: Sequence[Reading]) -> Reading:
    merged = Reading()
    for reading in readings:
        merged = _fill(merged, reading)
    devices = _merge_units(device for reading in readings for device in reading.devices)
    return replace(
        merged,
        devices=tuple(sorted(devices, key=lambda device: (device.index, device.uuid))),
        simulated=any(reading.simulated for reading in readings),
    )


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
