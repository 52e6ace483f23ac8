"""Converts DCGM's values by field id to devices in base units, and keeps the unchanged values.

A lost GPU keeps its row but all values in it are blank, also its UUID, so UUIDs are remembered by entity. In
the row of a MIG instance only fields that DCGM has per instance are the instance's; the others repeat the
GPU's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Device, Driver, Instance, Uuid
from gpuscope.vendors.nvidia.dcgm.dmon_table import DmonEntity, Value
from gpuscope.vendors.nvidia.dcgm_fields import (
    DRIVER_READINGS,
    ENTITY_NUMBER_ID,
    FIELD_READINGS,
    P2P_BITMAP_ID,
    PROFILING_IDS,
    TEXT_READINGS,
    dcgm_fields,
    ids_by_name,
)
from gpuscope.vendors.nvidia.nvidia_values import (
    INSTANCE_NAMES,
    NVIDIA,
    cuda_version,
    make_device,
    make_instance,
)

# The fields that the stream requests, and the parser of DCGM's own list of fields.
#
# One unknown id ends the whole run, so the requested ids are first checked against `dcgmi dmon -l`. The
# stream requests as many profiling ids as the GPUs allow: all, then those that every profiled GPU has, then
# none.

UUID_ID = 54
INDEX_ID = 52
CUDA_VERSION_ID = 5
MAX_IDS = 127  # in one `-e` list; with more, DCGM reports "Bad parameter"

# The driver measures PCIe throughput for 20 ms per call and direction, too long for every second and GPU. The
# profiling fields have the same number without that cost.
_COSTLY_IDS = frozenset({200, 201})

# Fields that the dcgm families export but no reading contains: XID, NVLink errors and throughput, vGPU licence.
_FAMILY_IDS = (230, 254, 409, 419, 429, 439, 449, 526)

# dcgm-exporter's own counters by id -> the field they are computed from.
_OWN_COUNTER_SOURCES = {9001: 230, 9002: 112, 9004: P2P_BITMAP_ID}

DEFAULT_IDS = (
    UUID_ID,
    INDEX_ID,
    CUDA_VERSION_ID,
    *DRIVER_READINGS,
    *TEXT_READINGS,
    *(row.id for row in FIELD_READINGS if row.id not in _COSTLY_IDS),
    *_FAMILY_IDS,
)

BASIC_PROFILING_IDS = frozenset({1001, 1002, 1003, 1004, 1005, 1009, 1010})

# The fields that the exporters of 2018 requested from DCGM 1.x; every DCGM has them.
EARLIEST_IDS = frozenset(
    {UUID_ID, 100, 101, 140, 150, 155, 202, 203, 204, 206, 207, 230, 251, 252}
    | {*range(240, 247), *range(310, 314), 390, 391, 392, 409, 419, 429, 439}
)

_LIST_ROW = re.compile(r"(\S+)\s+(\S+)\s+(\d+)\s*\Z")


def wanted_ids(settings: Settings) -> tuple[int, ...]:
    """The ids of our readings, of --fields and of the counters file, without duplicates."""
    ids = [*DEFAULT_IDS, *_added_ids(settings.fields), *_counters_file_ids(settings.counters)]
    ids += [_OWN_COUNTER_SOURCES.get(field_id, field_id) for field_id in settings.dcgm_fields]
    if "dcgm_legacy" in settings.families:
        ids += sorted(_COSTLY_IDS)
    return tuple(dict.fromkeys(ids))


def _added_ids(fields: Sequence[str]) -> Iterator[int]:
    for text in fields:
        digits = text.removeprefix("+")
        if digits.isascii() and digits.isdigit():
            yield int(digits)


def _counters_file_ids(path: str) -> Iterator[int]:
    """The ids of known names. Errors in the file are reported by the family that exports it."""
    if not path:
        return
    try:
        text = Path(path).read_text("utf-8", "replace")
    except OSError:
        return
    known = {**ids_by_name(), "DCGM_EXP_P2P_STATUS": P2P_BITMAP_ID}
    for line in text.splitlines():
        name = line.partition(",")[0].strip(' "')
        if name in known:
            yield known[name]


def parse_field_list(text: str) -> frozenset[int]:
    """The ids in the output of `dcgmi dmon -l`, independent of its banner and columns."""
    rows = (_LIST_ROW.match(line.strip()) for line in text.splitlines())
    return frozenset(int(row[3]) for row in rows if row)


def usable_ids(wanted: Iterable[int], known: frozenset[int]) -> tuple[int, ...]:
    """The requested ids that this DCGM has, without binary fields, which dmon cannot print."""
    fields = dcgm_fields()
    known = known or EARLIEST_IDS  # the list could not be parsed
    return tuple(
        field_id
        for field_id in wanted
        if field_id in known and not (field_id in fields and fields[field_id].kind == "b")
    )


def profiling_steps(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """The id lists to try in order until the profiling module accepts one."""
    steps = [
        tuple(ids),
        tuple(i for i in ids if i not in PROFILING_IDS or i in BASIC_PROFILING_IDS),
        tuple(i for i in ids if i not in PROFILING_IDS),
    ]
    return list(dict.fromkeys(steps))


def id_lists(ids: Sequence[int]) -> list[tuple[int, ...]]:
    """`ids` split into lists for one stream each; every list has the UUID, which identifies the rows."""
    others = [field_id for field_id in ids if field_id != UUID_ID]
    size = MAX_IDS - 1
    return [(UUID_ID, *others[at : at + size]) for at in range(0, len(others), size)] or [(UUID_ID,)]


# Maps DCGM's MIG entity numbers to GPUs and instances. Input: `dcgmi discovery -c`; output: one slot per
# instance.
#
# The number in `GPU-I 2` is DCGM's own and contains neither the GPU nor the driver's instance id; only this
# table has both. A machine without MIG, or a DCGM without the command, has no slots.

_INSTANCE = re.compile(r"->\s*I (\d+)/(\d+)\s*\|[^|]*\(EntityID: (\d+)\)")
_COMPUTE = re.compile(r"->\s*CI (\d+)/(\d+)/(\d+)\s*\|[^|]*\(EntityID: (\d+)\)")


@dataclass(frozen=True, slots=True)
class MigSlot:
    """`entity` is dmon's number after GPU-I; `gpu` is DCGM's GPU id, the other ids are the driver's."""

    entity: int
    gpu: int
    gpu_instance: int
    compute_instance: int = 0


def parse_hierarchy(text: str) -> tuple[MigSlot, ...]:
    slots: dict[tuple[int, int], MigSlot] = {}
    first_compute: dict[tuple[int, int], int] = {}
    for line in text.splitlines():
        if instance := _INSTANCE.search(line):
            gpu, gpu_instance, entity = map(int, instance.groups())
            slots[gpu, gpu_instance] = MigSlot(entity, gpu, gpu_instance)
        elif compute := _COMPUTE.search(line):
            gpu, gpu_instance, compute_instance, _ = map(int, compute.groups())
            first_compute.setdefault((gpu, gpu_instance), compute_instance)
    return tuple(
        MigSlot(slot.entity, slot.gpu, slot.gpu_instance, first_compute.get(key, 0))
        for key, slot in slots.items()
    )


Values = Mapping[int, Value]

_ALIVE_IDS = (100, 101, 150, 155, 203, 204, 251, 252)  # a GPU without any of these has left the bus
_PROFILE_ID = 50  # the name field; on an instance's row it holds the profile
_INSTANCE_LEVELS = frozenset({4, 5})

# id -> (attribute, key in its mapping or None, unit)
_Target = tuple[str, str | tuple[str, ...] | None, float]


def _target(path: str, unit: float) -> _Target:
    attribute, *keys = path.split(".")
    return attribute, (None if not keys else keys[0] if len(keys) == 1 else tuple(keys)), unit


_DEVICE_TARGETS: Mapping[int, _Target] = {
    **{row.id: _target(row.reading, row.unit) for row in FIELD_READINGS},
    **{field_id: _target(path, 1.0) for field_id, path in TEXT_READINGS.items()},
}
_DRIVER_TARGETS: Mapping[int, _Target] = {
    field_id: _target(path, 1.0) for field_id, path in DRIVER_READINGS.items()
}
_INSTANCE_TARGETS: Mapping[int, _Target] = {
    field_id: target
    for field_id, target in _DEVICE_TARGETS.items()
    if target[0] in INSTANCE_NAMES and dcgm_fields()[field_id].level in _INSTANCE_LEVELS
}


class DeviceBuilder:
    """Builds devices; remembers the UUID of each row, because a lost GPU's row has none."""

    def __init__(self) -> None:
        self._uuids: dict[DmonEntity, Uuid] = {}
        self.without_uuid = 0

    def to_devices(self, rows: Mapping[DmonEntity, Values], slots: Iterable[MigSlot]) -> tuple[Device, ...]:
        """Sets `without_uuid` to the number of rows whose UUID is not known."""
        self.without_uuid = 0
        slots = tuple(slots)
        gpus = (item for item in rows.items() if item[0].kind == "GPU")
        devices = (self._to_device(entity, values, rows, slots) for entity, values in gpus)
        return tuple(sorted((device for device in devices if device is not None), key=lambda d: d.index))

    def _to_device(
        self, entity: DmonEntity, values: Values, rows: Mapping[DmonEntity, Values], slots: tuple[MigSlot, ...]
    ) -> Device | None:
        uuid = self._uuid(entity, values, "GPU-")
        if uuid is None:
            self.without_uuid += 1
            return None
        index = values.get(INDEX_ID)
        instances = (self._to_instance(uuid, slot, rows) for slot in slots if slot.gpu == entity.id)
        return make_device(
            uuid=uuid,
            index=index if isinstance(index, int) else entity.id,
            lost=not any(field_id in values for field_id in _ALIVE_IDS),
            instances=tuple(instance for instance in instances if instance is not None),
            dcgm_fields={ENTITY_NUMBER_ID: entity.id, **values},
            **_attributes(values, _DEVICE_TARGETS),
        )

    def _to_instance(self, gpu: Uuid, slot: MigSlot, rows: Mapping[DmonEntity, Values]) -> Instance | None:
        entity = DmonEntity("GPU-I", slot.entity)
        values = rows.get(entity)
        if values is None:
            return None
        # Before driver 470 an instance had no UUID of its own; this was its name.
        uuid = self._uuid(entity, values, "MIG-") or Uuid(
            f"MIG-{gpu}/{slot.gpu_instance}/{slot.compute_instance}"
        )
        profile = values.get(_PROFILE_ID)
        return make_instance(
            uuid=uuid,
            gpu_instance=slot.gpu_instance,
            compute_instance=slot.compute_instance,
            profile=profile if isinstance(profile, str) else ABSENT,
            dcgm_fields={ENTITY_NUMBER_ID: entity.id, **values},
            **_attributes(values, _INSTANCE_TARGETS),
        )

    def _uuid(self, entity: DmonEntity, values: Values, prefix: str) -> Uuid | None:
        uuid = values.get(UUID_ID)
        if isinstance(uuid, str) and uuid.startswith(prefix):
            self._uuids[entity] = Uuid(uuid)
        return self._uuids.get(entity)


def _attributes(values: Values, targets: Mapping[int, _Target]) -> dict[str, Any]:
    attributes: dict[str, Any] = {}
    for field_id, value in values.items():
        target = targets.get(field_id)
        if target is None:
            continue
        attribute, key, unit = target
        if unit != 1.0 and not isinstance(value, str):
            value = value * unit
        if key is None:
            attributes[attribute] = value
        else:
            attributes.setdefault(attribute, {})[key] = value
    return attributes


def to_drivers(rows: Iterable[Values]) -> dict[str, Driver]:
    """The versions from the first row that has them; every GPU's row repeats them."""
    for values in rows:
        readings = _attributes(values, _DRIVER_TARGETS)
        cuda = values.get(CUDA_VERSION_ID)
        if isinstance(cuda, int):
            readings.setdefault("library_versions", {})["cuda"] = cuda_version(cuda)
        if readings:
            return {NVIDIA: Driver(**readings)}
    return {}
