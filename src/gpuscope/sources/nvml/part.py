"""Reads the tables of calls and fields for one GPU or MIG instance, tier by tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpuscope.sources import Tier
from gpuscope.sources.nvml.fields import FieldBatch, FieldRow
from gpuscope.sources.nvml.gate import Gate
from gpuscope.sources.nvml.rows import Row, read_rows


class PartReader:
    """The latest values of each tier; a tier is replaced as a whole, so a failed call leaves no old number."""

    def __init__(self, gate: Gate, rows: Sequence[Row], fields: Mapping[Tier, Sequence[FieldRow]]) -> None:
        self._gate = gate
        self._rows = {tier: tuple(row for row in rows if row.tier is tier) for tier in Tier}
        self._batches = {tier: FieldBatch(gate, table, tier.name.lower()) for tier, table in fields.items()}
        self._values: dict[Tier, dict[str, Any]] = {}

    def read(self, tier: Tier) -> dict[str, Any]:
        values: dict[str, Any] = {}
        self._values.pop(tier, None)
        read_rows(self._gate, self._rows[tier], values)
        if tier in self._batches:
            self._batches[tier].read(values)
        self._values[tier] = values
        return values

    def lacks(self, tier: Tier) -> bool:
        return tier not in self._values

    def values(self) -> dict[str, Any]:
        merged: dict[str, Any] = {}
        for values in self._values.values():
            merged |= values
        return merged

    def clear(self) -> None:
        self._values.clear()

    def forget(self) -> None:
        self._gate.forget()
        for batch in self._batches.values():
            batch.forget()
