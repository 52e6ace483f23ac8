"""Numbers that NVML gives by field id, many with one call, and the table of those we read that way.

In goes a table of readings with, for each, the field ids that can give it; out come values by reading. What
the card refuses is left out of the following calls. A field id never changes its meaning; its scope is a link.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuscope.sources.nvml import codes
from gpuscope.sources.nvml.call_table import Convert, Label, as_is, divided_by, milliwatts, put, times
from gpuscope.sources.nvml.driver_calls import Gate
from gpuscope.sources.nvml.library import plain

CALL: Final = "nvmlDeviceGetFieldValues"
LINK_COUNT: Final = 91
ALL_LINKS: Final = 0xFFFFFFFF

# nvmlValueType_t -> member of the union nvmlValue_t
_VALUE_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

nanoseconds: Final = divided_by(1e9)
millijoules: Final = divided_by(1000.0)
kibibytes: Final = times(1024)


@dataclass(frozen=True, slots=True)
class FieldRow:
    """A reading and a field that gives it. Of several rows for one reading the first that answers counts."""

    field: str
    label: Label
    id: int
    scope: int = 0
    convert: Convert = as_is


FAST_FIELDS: Final = (
    FieldRow("temperature_celsius", "memory", 82),
    FieldRow("energy_joules", None, 83, convert=millijoules),
    FieldRow("power_average_watts", None, 185, convert=milliwatts),
    FieldRow("power_instant_watts", None, 186, convert=milliwatts),
)

MEDIUM_FIELDS: Final = (
    FieldRow("throttled_seconds", "sw_power_cap", 74, convert=nanoseconds),
    FieldRow("throttled_seconds", "sync_boost", 76, convert=nanoseconds),
    FieldRow("throttled_seconds", "sw_thermal_slowdown", 269, convert=nanoseconds),
    FieldRow("throttled_seconds", "hw_thermal_slowdown", 270, convert=nanoseconds),
    FieldRow("throttled_seconds", "hw_power_brake_slowdown", 271, convert=nanoseconds),
    FieldRow("violation_seconds", "power", 74, convert=nanoseconds),
    FieldRow("violation_seconds", "thermal", 75, convert=nanoseconds),
    FieldRow("violation_seconds", "sync_boost", 76, convert=nanoseconds),
    FieldRow("violation_seconds", "board_limit", 77, convert=nanoseconds),
    FieldRow("violation_seconds", "low_utilization", 78, convert=nanoseconds),
    FieldRow("violation_seconds", "reliability", 79, convert=nanoseconds),
    FieldRow("violation_seconds", "total_app_clocks", 80, convert=nanoseconds),
    FieldRow("violation_seconds", "total_base_clocks", 81, convert=nanoseconds),
)

SLOW_FIELDS: Final = (
    FieldRow("retired_pages", "single_bit", 29),
    FieldRow("retired_pages", "double_bit", 30),
    FieldRow("retired_pages_pending", None, 31),
    FieldRow("remapped_rows", "correctable", 142),
    FieldRow("remapped_rows", "uncorrectable", 143),
    FieldRow("row_remap_pending", None, 144),
    FieldRow("row_remap_failed", None, 145),
    FieldRow("temperature_margin_threshold_celsius", "shutdown", 193),
    FieldRow("temperature_margin_threshold_celsius", "slowdown", 194),
    FieldRow("temperature_margin_threshold_celsius", "memory_max", 195),
    FieldRow("temperature_margin_threshold_celsius", "gpu_max", 196),
    FieldRow("recovery_action", None, 230),
)

# Each error's field of link 0, of link 6 (the ids go on from there), and the one that takes the link as scope:
# links above 11 have no field of their own.
_LINK_ERRORS: Final = {
    "crc_flit": (32, 96, 163),
    "crc_data": (39, 102, None),
    "replay": (46, 108, 161),
    "recovery": (53, 114, 162),
}


def nvlink_fields(links: int) -> tuple[FieldRow, ...]:
    if not links:
        return ()
    rows = []
    for direction, kibibytes_id, bytes_id in (("tx", 138, 202), ("rx", 139, 204)):
        rows.append(FieldRow("nvlink_aggregate_bytes", direction, kibibytes_id, ALL_LINKS, kibibytes))
        for link in range(links):
            label = (str(link), direction)
            rows.append(FieldRow("nvlink_link_bytes", label, kibibytes_id, link, kibibytes))
            rows.append(FieldRow("nvlink_link_bytes", label, bytes_id, link))
    for link in range(links):
        rows += _link_error_fields(link)
    return tuple(rows)


def link_totals(of_links: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Bytes by direction from bytes by (link, direction)."""
    totals: dict[str, float] = {}
    for (_, direction), count in of_links.items():
        totals[direction] = totals.get(direction, 0.0) + count
    return totals


def _link_error_fields(link: int) -> list[FieldRow]:
    rows = []
    for error, (of_link_0, of_link_6, scoped) in _LINK_ERRORS.items():
        label = (str(link), error)
        if link < 12:
            rows.append(
                FieldRow("nvlink_errors", label, of_link_0 + link if link < 6 else of_link_6 + link - 6)
            )
        if scoped is not None:
            rows.append(FieldRow("nvlink_errors", label, scoped, link))
    return rows


class FieldBatch:
    """One call for all fields of a GPU's tier, with an array that is made once and filled again."""

    def __init__(self, gate: Gate, rows: Sequence[FieldRow], about: Hashable = None) -> None:
        """`about` tells this batch from others of the same GPU, of which one may be stuck."""
        self._gate = gate
        self._about = about
        self._all = tuple(rows)
        self.forget()

    def forget(self) -> None:
        self._settled = False
        self._take(self._all)

    def _take(self, rows: Sequence[FieldRow]) -> None:
        self._rows = tuple(rows)
        self._array = (plain(self._gate.library.nvml.c_nvmlFieldValue_t) * len(self._rows))()
        for row, value in zip(self._rows, self._array, strict=True):
            value.fieldId, value.scopeId = row.id, row.scope

    def read(self, values: dict[str, Any]) -> None:
        count = len(self._rows)
        if not count:
            return
        gate = self._gate
        if not gate.run(CALL, gate.handle, ctypes.c_int(count), ctypes.byref(self._array), about=self._about):
            return
        keep = []
        for row, value in zip(self._rows, self._array, strict=True):
            code = value.nvmlReturn
            if code == codes.SUCCESS:
                if not self._settled and _has(values, row):
                    continue  # a better field gave it
                put(values, row.field, row.label, row.convert(field_number(value)))
            elif code in codes.REFUSED:
                continue
            else:
                gate.judge((CALL, row.id, row.scope), f"{CALL}({row.id})", code)
            keep.append(row)
        if len(keep) < count:
            self._take(keep)
        self._settled = True


def _has(values: dict[str, Any], row: FieldRow) -> bool:
    return row.field in values and (row.label is None or row.label in values[row.field])


def field_number(value: Any) -> Any:
    kind = value.valueType
    return getattr(value.value, _VALUE_MEMBERS[kind] if kind < len(_VALUE_MEMBERS) else "ullVal")


def link_count(gate: Gate) -> int:
    """How many NVLinks this GPU has, connected or not."""
    value = plain(gate.library.nvml.c_nvmlFieldValue_t)(fieldId=LINK_COUNT)
    asked = gate.run(CALL, gate.handle, ctypes.c_int(1), ctypes.byref(value), about=LINK_COUNT)
    return int(field_number(value)) if asked and value.nvmlReturn == codes.SUCCESS else 0
