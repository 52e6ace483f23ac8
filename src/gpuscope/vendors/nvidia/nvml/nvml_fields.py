"""Numbers that NVML returns by field id, many per call, and the table of the field ids that are read.

Input: rows of reading and field id; output: values by reading. A refused field is left out of later calls. The
scope of a field is a link number.
"""

from __future__ import annotations

import ctypes
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from gpuscope.model.readings import Maybe
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvidia_values import throttle_time_ids
from gpuscope.vendors.nvidia.nvml import library
from gpuscope.vendors.nvidia.nvml.call_table import (
    CallRow,
    Convert,
    Label,
    as_is,
    divided_by,
    milliwatts,
    put,
    read_rows,
    times,
)
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls
from gpuscope.vendors.nvidia.nvml.library import plain

CALL: Final = "nvmlDeviceGetFieldValues"
LINK_COUNT: Final = 91
ALL_LINKS: Final = 0xFFFFFFFF

# nvmlValueType_t -> member of the union nvmlValue_t
_VALUE_MEMBERS: Final = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

nanoseconds: Final = divided_by(1e9)
millijoules: Final = divided_by(1000.0)
kibibytes: Final = times(1024)


@dataclass(frozen=True, slots=True)
class NvmlField:
    """A reading and its field id. If a reading has several rows, the first that has a value is used."""

    field: str
    label: Label
    id: int
    scope: int = 0
    convert: Convert = as_is


FAST_FIELDS: Final = (
    NvmlField("temperature_celsius", "memory", 82),
    NvmlField("energy_joules", None, 83, convert=millijoules),
    NvmlField("power_average_watts", None, 185, convert=milliwatts),
    NvmlField("power_instant_watts", None, 186, convert=milliwatts),
)

MEDIUM_FIELDS: Final = (
    NvmlField("throttled_seconds", "sw_power_cap", 74, convert=nanoseconds),
    NvmlField("throttled_seconds", "sync_boost", 76, convert=nanoseconds),
    NvmlField("violation_seconds", "power", 74, convert=nanoseconds),
    NvmlField("violation_seconds", "thermal", 75, convert=nanoseconds),
    NvmlField("violation_seconds", "sync_boost", 76, convert=nanoseconds),
    NvmlField("violation_seconds", "board_limit", 77, convert=nanoseconds),
    NvmlField("violation_seconds", "low_utilization", 78, convert=nanoseconds),
    NvmlField("violation_seconds", "reliability", 79, convert=nanoseconds),
    NvmlField("violation_seconds", "total_app_clocks", 80, convert=nanoseconds),
    NvmlField("violation_seconds", "total_base_clocks", 81, convert=nanoseconds),
)


def throttle_time_fields(driver_version: Maybe[str]) -> tuple[NvmlField, ...]:
    ids = throttle_time_ids(driver_version)
    if ids is None:
        return ()
    return tuple(
        NvmlField("throttled_seconds", reason, field_id, convert=nanoseconds)
        for reason, field_id in ids._asdict().items()
    )


SLOW_FIELDS: Final = (
    NvmlField("retired_pages", "single_bit", 29),
    NvmlField("retired_pages", "double_bit", 30),
    NvmlField("retired_pages_pending", None, 31),
    NvmlField("remapped_rows", "correctable", 142),
    NvmlField("remapped_rows", "uncorrectable", 143),
    NvmlField("row_remap_pending", None, 144),
    NvmlField("row_remap_failed", None, 145),
    NvmlField("temperature_margin_threshold_celsius", "shutdown", 193),
    NvmlField("temperature_margin_threshold_celsius", "slowdown", 194),
    NvmlField("temperature_margin_threshold_celsius", "memory_max", 195),
    NvmlField("temperature_margin_threshold_celsius", "gpu_max", 196),
    NvmlField("recovery_action", None, 230),
)

# Field ids per error: the first for links 0 to 5, the first for links 6 to 11, and the field that takes the
# link as scope. Links above 11 have no field id of their own.
_LINK_ERRORS: Final = {
    "crc_flit": (32, 96, 163),
    "crc_data": (39, 102, None),
    "replay": (46, 108, 161),
    "recovery": (53, 114, 162),
}


def nvlink_fields(links: int) -> tuple[NvmlField, ...]:
    if not links:
        return ()
    rows = []
    for direction, kibibytes_id, bytes_id in (("tx", 138, 202), ("rx", 139, 204)):
        rows.append(NvmlField("nvlink_aggregate_bytes", direction, kibibytes_id, ALL_LINKS, kibibytes))
        for link in range(links):
            label = (str(link), direction)
            rows.append(NvmlField("link_bytes_each", label, kibibytes_id, link, kibibytes))
            rows.append(NvmlField("link_bytes_each", label, bytes_id, link))
    for link in range(links):
        rows += _link_error_fields(link)
    return tuple(rows)


# Of NVLink 5, with the link as scope; older links refuse them. 205 and 216 to 218 are deprecated.
_LINK_5_ERRORS: Final = {
    "malformed_packet": 206,
    "buffer_overrun": 207,
    "receive": 208,
    "receive_remote": 209,
    "receive_general": 210,
    "local_integrity": 211,
    "transmit_discard": 212,
    "recovery_successful": 213,
    "recovery_failed": 214,
    "recovery": 215,
    "effective": 219,
    "symbol": 221,
}
_LINK_5_RATIOS: Final = {"effective": 220, "symbol": 222}


def bit_error_ratio(value: float) -> float:
    """A double as it is; an integer has the exponent in bits 0 to 7 and the mantissa in bits 8 to 11."""
    if isinstance(value, float):
        return value
    return float((value >> 8 & 0xF) * 10.0 ** -(value & 0xFF))


def nvlink_5_fields(links: int) -> tuple[NvmlField, ...]:
    rows = []
    for link in map(str, range(links)):
        rows += [
            NvmlField("nvlink5_errors", (link, error), field_id, int(link))
            for error, field_id in _LINK_5_ERRORS.items()
        ]
        rows += [
            NvmlField("nvlink5_bit_error_ratio", (link, kind), field_id, int(link), bit_error_ratio)
            for kind, field_id in _LINK_5_RATIOS.items()
        ]
    return tuple(rows)


def link_totals(of_links: Mapping[tuple[str, str], float]) -> dict[str, float]:
    """Bytes by direction from bytes by (link, direction)."""
    totals: dict[str, float] = {}
    for (_, direction), count in of_links.items():
        totals[direction] = totals.get(direction, 0.0) + count
    return totals


def _link_error_fields(link: int) -> list[NvmlField]:
    rows = []
    for error, (of_link_0, of_link_6, scoped) in _LINK_ERRORS.items():
        label = (str(link), error)
        if link < 12:
            rows.append(NvmlField("link_errors", label, of_link_0 + link if link < 6 else of_link_6 + link - 6))
        if scoped is not None:
            rows.append(NvmlField("link_errors", label, scoped, link))
    return rows


class FieldBatch:
    """Reads all fields of a GPU's tier with one call into a reused array."""

    def __init__(self, calls: DriverCalls, rows: Sequence[NvmlField], qualifier: Hashable = None) -> None:
        """`qualifier` separates this batch from other batches of the GPU, which can be stuck independently."""
        self._calls = calls
        self._qualifier = qualifier
        self._all = tuple(rows)
        self.retry_refused()

    def retry_refused(self) -> None:
        self._settled = False
        self._take(self._all)

    def _take(self, rows: Sequence[NvmlField]) -> None:
        self._rows = tuple(rows)
        self._array = (plain(self._calls.library.nvml.c_nvmlFieldValue_t) * len(self._rows))()
        for row, value in zip(self._rows, self._array, strict=True):
            value.fieldId, value.scopeId = row.id, row.scope

    def read(self, values: dict[str, Any]) -> None:
        count = len(self._rows)
        if not count:
            return
        calls = self._calls
        if not calls.run(
            CALL, calls.handle, ctypes.c_int(count), ctypes.byref(self._array), qualifier=self._qualifier
        ):
            return
        keep = []
        for row, value in zip(self._rows, self._array, strict=True):
            code = value.nvmlReturn
            if code == library.SUCCESS:
                if not self._settled and _has(values, row):
                    continue  # an earlier row has a value
                put(values, row.field, row.label, row.convert(field_number(value)))
            elif code in library.REFUSED:
                continue
            else:
                calls.handle_error_code((CALL, row.id, row.scope), f"{CALL}({row.id})", code)
            keep.append(row)
        if len(keep) < count:
            self._take(keep)
        self._settled = True


def _has(values: dict[str, Any], row: NvmlField) -> bool:
    return row.field in values and (row.label is None or row.label in values[row.field])


def field_number(value: Any) -> Any:
    kind = value.valueType
    return getattr(value.value, _VALUE_MEMBERS[kind] if kind < len(_VALUE_MEMBERS) else "ullVal")


def link_count(calls: DriverCalls) -> int:
    """The number of NVLinks of this GPU, connected or not."""
    value = plain(calls.library.nvml.c_nvmlFieldValue_t)(fieldId=LINK_COUNT)
    asked = calls.run(CALL, calls.handle, ctypes.c_int(1), ctypes.byref(value), qualifier=LINK_COUNT)
    return int(field_number(value)) if asked and value.nvmlReturn == library.SUCCESS else 0


# Reads the tables of calls and fields for one GPU or MIG instance, tier by tier.


class TierReader:
    """The latest values of each tier. A tier is replaced as a whole, so a failed call leaves no old number."""

    def __init__(
        self, calls: DriverCalls, rows: Sequence[CallRow], fields: Mapping[Tier, Sequence[NvmlField]]
    ) -> None:
        self._calls = calls
        plan = calls.library.tier_plan
        self._rows: dict[Tier, list[CallRow]] = {tier: [] for tier in Tier}
        for row in rows:
            numbers = ((field.name, field.label) for field in row.fields)
            self._rows[plan.tier_of(row.tier, numbers)].append(row)
        tables: dict[Tier, list[NvmlField]] = {}
        for usual, table in fields.items():
            for field in table:
                tables.setdefault(plan.tier_of(usual, [(field.field, field.label)]), []).append(field)
        self._batches = {tier: FieldBatch(calls, table, tier.name.lower()) for tier, table in tables.items()}
        self._values: dict[Tier, dict[str, Any]] = {}
        self._counts_links = False
        self._links_with_errors: set[tuple[str, str, str]] = set()  # reading, link, kind

    def read(self, tier: Tier) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._values.pop(tier, None)
        read_rows(self._calls, self._rows[tier], values)
        if tier in self._batches:
            self._batches[tier].read(values)
        self._add_nvlink_totals(values)
        self._shorten_nvlink_5(values)
        self._values[tier] = values
        return values

    def _add_nvlink_totals(self, values: dict[str, Any]) -> None:
        """One rule for all GPUs: the sum over the links or, if no link has a counter, the driver's total."""
        if "link_bytes_each" in values:
            self._counts_links = True
            for others in self._values.values():
                others.pop("link_bytes", None)
            values["link_bytes"] = link_totals(values["link_bytes_each"])
        elif "nvlink_aggregate_bytes" in values and not self._counts_links:
            values["link_bytes"] = values["nvlink_aggregate_bytes"]

    def _shorten_nvlink_5(self, values: dict[str, Any]) -> None:
        """Hundreds of numbers, nearly all 0: what all links have together, and a link once it had any."""
        for name, total, combine in (
            ("nvlink5_errors", "nvlink5_errors_all_links", sum),
            ("nvlink5_bit_error_ratio", "nvlink5_bit_error_max_ratio", max),
        ):
            each: dict[tuple[str, str], float] = values.get(name, {})
            if not each:
                continue
            self._links_with_errors |= {(name, *label) for label, value in each.items() if value}
            by_kind: dict[str, list[float]] = {}
            for (_, kind), value in each.items():
                by_kind.setdefault(kind, []).append(value)
            values[total] = {kind: combine(numbers) for kind, numbers in by_kind.items()}
            values[name] = {
                label: value for label, value in each.items() if (name, *label) in self._links_with_errors
            }

    def has_not_read(self, tier: Tier) -> bool:
        return tier not in self._values

    def values(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for values in self._values.values():
            for field, value in values.items():
                # A reading can have labels in two tiers: a requested label may be read more often.
                merged[field] = {**merged[field], **value} if field in merged else value
        return merged

    def clear(self) -> None:
        self._values.clear()
        self._counts_links = False

    def retry_refused(self) -> None:
        self._calls.retry_refused()
        for batch in self._batches.values():
            batch.retry_refused()
