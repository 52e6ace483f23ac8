"""Converts DCGM's values by field id to devices in base units, and keeps the unchanged values.

A lost GPU keeps its row but all values in it are blank, also its UUID, so UUIDs are remembered by entity. In
the row of a MIG instance only fields that DCGM has per instance are the instance's; the others repeat the
GPU's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuscope.model.readings import ABSENT, Device, Driver, Instance, Uuid
from gpuscope.vendors.nvidia.dcgm.dmon_table import DmonEntity, Value
from gpuscope.vendors.nvidia.dcgm.field_ids import CUDA_VERSION_ID, INDEX_ID, UUID_ID
from gpuscope.vendors.nvidia.dcgm.hierarchy import MigSlot
from gpuscope.vendors.nvidia.dcgm_fields import (
    DRIVER_READINGS,
    ENTITY_NUMBER_ID,
    FIELD_READINGS,
    TEXT_READINGS,
    dcgm_fields,
)
from gpuscope.vendors.nvidia.nvidia_values import (
    INSTANCE_NAMES,
    NVIDIA,
    cuda_version,
    make_device,
    make_instance,
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
