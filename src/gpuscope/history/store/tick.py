"""The input and the result of an append: one scrape of one target as arrays.

A tick has one timestamp for all its samples, or one per sample (honor_timestamps, remote write). Series ids
come from `Store.resolve`. Refused samples are counted by reason, not raised as exceptions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]

TOO_OLD = "too_old"
"""Older than late samples may be, or older than the retention."""
DUPLICATE = "duplicate"
"""Another value for the same series and millisecond."""
IN_FUTURE = "in_future"
"""Further ahead of the clock than `StoreOptions.max_ahead_ms`."""


@dataclass(frozen=True, slots=True)
class Tick:
    """One scrape of one target."""

    target: int
    timestamp: int
    series: Int64s
    values: Float64s
    timestamps: Int64s | None = None

    def __post_init__(self) -> None:
        if self.series.shape != self.values.shape or self.series.ndim != 1:
            raise ValueError("a tick needs one value per series id")
        if self.timestamps is not None and self.timestamps.shape != self.series.shape:
            raise ValueError("a tick needs one timestamp per sample if it has any")


@dataclass(frozen=True, slots=True)
class Appended:
    """The result of a committed tick."""

    accepted: int
    repeated: int = 0
    """Identical samples, or samples that Prometheus would drop silently: not an error for the sender."""
    refused: dict[str, int] = field(default_factory=dict)


# Array functions that numpy lacks, or that are slow to import.

T = TypeVar("T", bound=np.integer[Any])


def distinct(numbers: NDArray[T]) -> NDArray[T]:
    """Return the distinct numbers, ascending. `np.unique` would import `numpy.ma` for this, which takes 20
    ms."""
    ordered = np.sort(numbers)
    if len(ordered) < 2:
        return ordered
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))]
