"""All fields with their names in each family: native metrics, DCGM field ids and nvidia-smi columns.

They are joined by their reading (`clock_hertz.sm`). A field that only DCGM or only nvidia-smi has is listed
alone.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from functools import cache

from gpuscope.agent.families.native.table import COUNTER_METRICS, GPU_METRICS, NativeMetric
from gpuscope.model.readings import ABSENT, Device, Snapshot
from gpuscope.vendors.nvidia.dcgm_fields import DRIVER_READINGS
from gpuscope.vendors.nvidia.families.dcgm.table import (
    DEFAULT_COUNTERS,
    KIND_NAMES,
    OPT_IN_COUNTERS,
    field_rows,
)
from gpuscope.vendors.nvidia.families.dcgm_legacy.builder import LEGACY_METRICS
from gpuscope.vendors.nvidia.families.nvidia_smi.table import SMI_COLUMNS
from gpuscope.vendors.nvidia.nvidia_values import nvidia_driver, own, reader

BINARY = KIND_NAMES["b"]


@dataclass(frozen=True, slots=True)
class Field:
    name: str  # as in `dcgmi dmon -l`, or the name of the reading
    unit: str
    help: str
    reading: str  # path in a reading; empty if only DCGM's unchanged values have it
    dcgm_id: int | None
    short_name: str
    names: dict[str, str]  # by family

    def is_here(self, snapshot: Snapshot) -> bool:
        """Whether the driver, a GPU or an instance has this field."""
        of_driver = DRIVER_READINGS.get(self.dcgm_id or 0)
        if of_driver is not None and reader(of_driver)(nvidia_driver(snapshot)) is not ABSENT:
            return True
        return any(self._is_in(device) for device in snapshot.devices)

    def _is_in(self, device: Device) -> bool:
        parts = (device, *device.instances)
        if self.dcgm_id is not None and any(self.dcgm_id in own(part).dcgm_fields for part in parts):
            return True
        return bool(self.reading) and any(_present(part, self.reading) for part in parts)


def _present(part: object, path: str) -> bool:
    value: object = reader(path)(part)
    return value is not ABSENT and value != {}


@cache
def all_fields() -> tuple[Field, ...]:
    native = {row.reading.removeprefix("vendor_values."): row for row in (*GPU_METRICS, *COUNTER_METRICS)}
    columns = {column.reading: column.header for column in SMI_COLUMNS}
    dcgm_names = {counter.id: counter.name for counter in (*OPT_IN_COUNTERS, *DEFAULT_COUNTERS)}
    legacy = {metric.id: f"dcgm_{metric.name}" for metric in LEGACY_METRICS}
    fields, seen = [], defaultdict(set)
    for row in field_rows():
        names = {}
        metric = native.get(row.reading) or native.get(row.reading.split(".")[0])
        if metric is not None:
            names["native"] = _native_name(metric, row.reading)
            seen["native"].add(metric.name)
        if row.names and row.is_of_gpus and row.kind != BINARY:  # allowed in a counters file
            names["dcgm"] = dcgm_names.get(row.id) or row.names[0]
        if row.reading in columns:
            names["nvidia_smi"] = columns[row.reading]
            seen["smi"].add(row.reading)
        if row.kind != BINARY:
            names["dcgm_legacy"] = legacy.get(row.id, f"dcgm_{row.tag}")
        unit, text = (metric.unit_name, metric.help) if metric else (row.kind, "")
        fields.append(Field(row.tag, unit, text, row.reading, row.id, row.short_name, names))
    for reading, metric in native.items():
        if metric.name not in seen["native"]:
            names = {"native": metric.name}
            if reading in columns:
                names["nvidia_smi"] = columns[reading]
                seen["smi"].add(reading)
            fields.append(Field(reading, metric.unit_name, metric.help, reading, None, "", names))
    for reading, header in columns.items():
        if reading not in seen["smi"]:
            fields.append(Field(header.split(" ")[0], "", "", reading, None, "", {"nvidia_smi": header}))
    return tuple(fields)


def _native_name(metric: NativeMetric, reading: str) -> str:
    keys = reading.split(".")[1:]
    if not keys or not metric.labels:
        return metric.name
    labels = ",".join(f'{label}="{key}"' for label, key in zip(metric.labels, keys, strict=False))
    return f"{metric.name}{{{labels}}}"
