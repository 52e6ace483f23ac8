"""What is appended: one target's scrape as arrays, and what became of it.

A tick carries one timestamp for all its samples, or one per sample (honor_timestamps, remote write). Series
ids come from `Store.resolve`. Refused samples are counted by reason, never raised.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Int64s = NDArray[np.int64]
Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]

TOO_OLD = "too_old"
"""Older than late samples may be, or beyond retention."""
DUPLICATE = "duplicate"
"""Another value for the same series and millisecond."""
IN_FUTURE = "in_future"
"""Stamped further ahead of the clock than `StoreOptions.max_ahead_ms`."""


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
            raise ValueError("a tick needs one value for each series id")
        if self.timestamps is not None and self.timestamps.shape != self.series.shape:
            raise ValueError("a tick's own timestamps must be one for each sample")


@dataclass(frozen=True, slots=True)
class Appended:
    """What became of a tick once its commit returned."""

    accepted: int
    repeated: int = 0
    """The same sample again, or one that Prometheus would drop without a word: not an error to the sender."""
    refused: dict[str, int] = field(default_factory=dict)
