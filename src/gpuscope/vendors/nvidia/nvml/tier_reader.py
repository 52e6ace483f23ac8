"""Reads the tables of calls and fields for one GPU or MIG instance, tier by tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvml.call_table import CallRow, read_rows
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls
from gpuscope.vendors.nvidia.nvml.nvml_fields import FieldBatch, NvmlField, link_totals


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
