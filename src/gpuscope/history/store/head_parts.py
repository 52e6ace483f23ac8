"""What a `Head` consists of: layouts of ticks, segments of rows, and a list of scattered samples."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.tick import Float64s, Int64s


@dataclass(slots=True)
class Layout:
    """The distinct series of a tick, with their columns and the id of their row in table `layout`."""

    series: NDArray[np.uint32]
    columns: NDArray[np.int32] | None
    """None if they are 0, 1, 2, … in order."""
    epoch: int
    """The index epoch in which the series were last known to exist."""
    row_id: int | None = None


@dataclass(slots=True)
class Segment:
    """Rows of one width; it only grows."""

    first: int
    """Number of its first row."""
    cells: Float64s
    used: int = 0


@dataclass(slots=True)
class SideList:
    """Samples with times of their own."""

    times: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    series: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    values: Float64s = field(default_factory=lambda: np.empty(0, np.float64))

    def add(self, used: int, times: Int64s, series: Int64s, values: Float64s) -> SideList:
        need = used + len(times)
        side = self
        if need > len(self.times):
            size = max(64, need, 2 * len(self.times))
            side = SideList(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.float64))
            side.times[:used] = self.times[:used]
            side.series[:used] = self.series[:used]
            side.values[:used] = self.values[:used]
        side.times[used:need] = times
        side.series[used:need] = series
        side.values[used:need] = values
        return side
