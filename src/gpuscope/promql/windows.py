"""Range windows over many series at once.

The samples of all series lie one series after the other in two flat arrays; a window is a pair of positions in
them. A function over windows is then the same few array operations for one series or a thousand, whatever their
time axes. `Columns` walks all windows in step, oldest samples first, for what must be computed in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.promql.budget import check_running
from gpuscope.promql.frame import Floats, Ints

MAX_UNCHECKED_WORK = 10_000_000
"""Samples that are computed with between two looks at the clock: some 100 ms."""
_STEP_WORK = 1_000  # of one step of `Columns` beside its samples: numpy calls on few numbers


@dataclass(frozen=True, slots=True)
class Windows:
    """Window (i, j), of series i at step j, holds the flat positions low[i, j] to high[i, j] - 1."""

    timestamps: Ints
    values: Floats
    low: Ints
    high: Ints
    ends: Ints
    range_ms: int

    @property
    def counts(self) -> Ints:
        return self.high - self.low


class Columns:
    """Windows ordered longest first: those that have a k-th sample are always a leading part."""

    __slots__ = ("_low", "_with_at_least", "length", "order")

    def __init__(self, low: Ints, counts: Ints) -> None:
        self.length = int(counts.max()) if counts.size else 0
        # numpy sorts 16-bit integers by radix, in linear time.
        keys = (self.length - counts).astype(np.uint16 if self.length < 65536 else np.int64)
        self.order = np.argsort(keys, kind="stable")
        self._low = low[self.order]
        # with_at_least[k]: how many windows have more than k samples.
        lengths = np.bincount(counts, minlength=self.length + 1)
        self._with_at_least = counts.size - np.cumsum(lengths)

    def __iter__(self) -> Iterator[tuple[int, Ints]]:
        """For k = 0, 1, ...: how many windows have a k-th sample, and where those samples lie."""
        work = 0
        for k in range(self.length):
            active = int(self._with_at_least[k])
            work += active + _STEP_WORK
            if work > MAX_UNCHECKED_WORK:
                check_running()
                work = 0
            yield active, self._low[:active] + k

    def restore(self, ordered: Floats) -> Floats:
        """Results in `order` put back where their windows were."""
        back = np.empty_like(ordered)
        back[self.order] = ordered
        return back


def groups_of_equal_length(counts: Ints) -> Iterator[tuple[int, NDArray[np.intp]]]:
    """Each length that occurs (not 0), and the windows that have it."""
    order = np.argsort(counts, kind="stable")
    lengths, first = np.unique(counts[order], return_index=True)
    bounds = [*first.tolist(), counts.size]
    for length, begin, end in zip(lengths.tolist(), bounds, bounds[1:], strict=False):
        if length:
            yield length, order[begin:end]
