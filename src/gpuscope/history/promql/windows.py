"""Range windows over many series.

The samples of all series are in flat arrays, one series after the other; a window is a pair of positions.
So a function over windows is the same few array operations for one series or a thousand. `SampleColumns` visits
all windows in parallel, oldest samples first, for functions that must be computed in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.promql.budget import check_running
from gpuscope.history.promql.frame import Floats, Ints

MAX_UNCHECKED_WORK = 10_000_000
"""Samples processed between two checks of the time limit: about 100 ms."""
_STEP_WORK = 1_000  # cost of a step of `SampleColumns` besides its samples: numpy calls on few numbers


@dataclass(frozen=True, slots=True)
class AxisWindows:
    """The times of the windows: once for all series of a scrape, which have the same time axis."""

    times: Ints
    low: Ints
    """Window (a, j) of axis a at step j contains the times low[a, j] to high[a, j] - 1."""
    high: Ints
    axis: Ints
    """Of each series."""


@dataclass(frozen=True)
class Windows:
    """Window (i, j) of series i at step j contains the flat positions low[i, j] to high[i, j] - 1. Between two
    series there may be values that no window contains."""

    make_timestamps: Callable[[], Ints]
    values: Floats
    low: Ints
    high: Ints
    ends: Ints
    range_ms: int
    axes: AxisWindows | None = None

    @cached_property
    def timestamps(self) -> Ints:
        """The time of each value; of a value that no window contains it is undefined."""
        return self.make_timestamps()

    @property
    def counts(self) -> Ints:
        return self.high - self.low


class SampleColumns:
    """Windows ordered by length, longest first: the windows that have a k-th sample are always the first
    ones."""

    __slots__ = ("_low", "_with_at_least", "length", "order")

    def __init__(self, low: Ints, counts: Ints) -> None:
        self.length = int(counts.max()) if counts.size else 0
        # numpy sorts 16-bit integers by radix sort, in linear time.
        keys = (self.length - counts).astype(np.uint16 if self.length < 65536 else np.int64)
        self.order = np.argsort(keys, kind="stable")
        self._low = low[self.order]
        # with_at_least[k]: number of windows with more than k samples.
        lengths = np.bincount(counts, minlength=self.length + 1)
        self._with_at_least = counts.size - np.cumsum(lengths)

    def __iter__(self) -> Iterator[tuple[int, Ints]]:
        """Yield for k = 0, 1, ... the number of windows with a k-th sample, and the positions of these
        samples."""
        work = 0
        for k in range(self.length):
            active = int(self._with_at_least[k])
            work += active + _STEP_WORK
            if work > MAX_UNCHECKED_WORK:
                check_running()
                work = 0
            yield active, self._low[:active] + k

    def restore(self, ordered: Floats) -> Floats:
        """Return results in `order` in the original order of the windows."""
        back = np.empty_like(ordered)
        back[self.order] = ordered
        return back


def groups_of_equal_length(counts: Ints) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Yield each length that occurs (except 0), and the windows that have it."""
    order = np.argsort(counts, kind="stable")
    lengths, first = np.unique(counts[order], return_index=True)
    bounds = [*first.tolist(), counts.size]
    for length, begin, end in zip(lengths.tolist(), bounds, bounds[1:], strict=False):
        if length:
            yield length, order[begin:end]
