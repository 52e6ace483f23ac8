"""The samples of many series in flat arrays: what a wide query reads from a store.

Series of one scrape have the same times, so times are kept once per time axis: axis `a` has the times
`times[axis_starts[a] : axis_starts[a + 1]]`, and series `i` has as many values, from `value_starts[i]` on.
Values may also be one array per series: a store that has them so need not copy them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Admit, Matcher, Series

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

Choose = Callable[[LabelColumns], NDArray[np.intp]]
"""Rows of label sets that are needed."""

MAX_KEY = 1 << 62
_CELLS_PER_PORTION = 1 << 17
"""Picked at a time: their positions take twice the memory of the values."""
_FEW_AXES = 16
"""Searched one by one; more are searched together, which first makes a key of every time."""


@dataclass(frozen=True, slots=True)
class SeriesColumns:
    """See the module docstring."""

    labels: LabelColumns
    axis: Ints
    """Number of each series' time axis."""
    times: Ints
    axis_starts: Ints
    values: Floats | list[Floats]
    value_starts: Ints

    @staticmethod
    def of(series: Sequence[Series], labels: LabelColumns | None = None) -> SeriesColumns:
        """Return series as columns; `labels` are theirs, if the caller has them as columns."""
        axes = TimeAxes()
        axis = np.array([axes.number(row.timestamps) for row in series], np.int64)
        return SeriesColumns(
            LabelColumns.of([row.labels for row in series]) if labels is None else labels,
            axis,
            *axes.flat(),
            [row.values for row in series],
            np.zeros(len(series), np.int64),
        )

    def __len__(self) -> int:
        return len(self.axis)

    @property
    def lengths(self) -> Ints:
        """Number of samples of each series."""
        lengths: Ints = (self.axis_starts[1:] - self.axis_starts[:-1])[self.axis]
        return lengths

    def count_samples(self) -> int:
        return int(self.lengths.sum())

    def rows(self, chosen: slice) -> SeriesColumns:
        """Return some of the series; the axes stay, also those that no series has any more."""
        values = self.values[chosen] if isinstance(self.values, list) else self.values
        return replace(
            self,
            labels=self.labels[chosen],
            axis=self.axis[chosen],
            values=values,
            value_starts=self.value_starts[chosen],
        )

    def newest(self) -> tuple[Ints, Floats]:
        """Return time and value of each series' last sample; every series must have one."""
        times = self.times[self.axis_starts[self.axis + 1] - 1]
        if isinstance(self.values, list):
            return times, np.array([value[-1] for value in self.values], np.float64)
        return times, self.values[self.value_starts + self.lengths - 1]

    def pick(self, positions: Ints) -> Floats:
        """Return values of each series at the positions of its axis: a matrix from one with a line per
        axis."""
        picked = np.empty((len(self), positions.shape[1]))
        if isinstance(self.values, list):
            for row, (axis, values) in enumerate(zip(self.axis.tolist(), self.values, strict=True)):
                values.take(positions[axis], out=picked[row])
            return picked
        portion = max(1, _CELLS_PER_PORTION // max(1, positions.shape[1]))
        for begin in range(0, len(self), portion):
            rows = slice(begin, begin + portion)
            places = positions[self.axis[rows]] + self.value_starts[rows, None]
            self.values.take(places, out=picked[rows], mode="clip")
        return picked

    def flat(self) -> tuple[Ints, Floats, Ints]:
        """Return times and values of all samples, series after series, and where each series begins."""
        lengths = self.lengths
        starts = np.cumsum(lengths) - lengths
        if isinstance(self.values, list):
            if not self.values:
                return self.times[:0], np.empty(0), starts
            begins = self.axis_starts.tolist()
            axes = [self.times[begins[axis] : begins[axis + 1]] for axis in self.axis.tolist()]
            return np.concatenate(axes), np.concatenate(self.values), starts
        inside = np.arange(int(lengths.sum())) - np.repeat(starts, lengths)
        times = self.times[np.repeat(self.axis_starts[self.axis], lengths) + inside]
        return times, self.values.take(np.repeat(self.value_starts, lengths) + inside), starts

    def series(self) -> list[Series]:
        """Return one object per series; those with the same axis share the times array."""
        axes = [self.times[a:b] for a, b in zip(self.axis_starts[:-1], self.axis_starts[1:], strict=True)]
        if isinstance(self.values, list):
            values = self.values
        else:
            ends = (self.value_starts + self.lengths).tolist()
            values = [self.values[a:b] for a, b in zip(self.value_starts.tolist(), ends, strict=True)]
        return [
            Series(labels, axes[axis], some)
            for labels, axis, some in zip(self.labels, self.axis.tolist(), values, strict=True)
        ]

    def search(self, at: Ints) -> Ints:
        """Return for each axis (line) how many of its times are at or before each time in `at`."""
        axes = len(self.axis_starts) - 1
        found = np.empty((axes, len(at)), np.int64)
        if not axes or not len(at):
            return found
        low = min(int(at.min()), int(self.times.min(initial=at.min())))
        span = max(int(at.max()), int(self.times.max(initial=at.max()))) - low + 1
        if axes <= _FEW_AXES or axes * span > MAX_KEY:
            for axis, line in enumerate(found):
                times = self.times[self.axis_starts[axis] : self.axis_starts[axis + 1]]
                line[:] = times.searchsorted(at, side="right")
            return found
        offset = np.arange(axes, dtype=np.int64) * span - low
        keys = self.times + np.repeat(offset, np.diff(self.axis_starts))
        found[:] = keys.searchsorted(at[None, :] + offset[:, None], side="right")
        found -= self.axis_starts[:-1, None]
        return found


class TimeAxes:
    """Numbers the distinct timestamps arrays."""

    def __init__(self) -> None:
        self._by_identity: dict[int, int] = {}
        self._by_ends: dict[tuple[int, int, int], list[tuple[int, Ints]]] = {}
        self.arrays: list[Ints] = []
        """By number."""

    def number(self, timestamps: Ints) -> int:
        """Return the array's number; a new array gets the next one. The caller keeps arrays alive: ids are
        unique."""
        known = self._by_identity.get(id(timestamps))
        if known is None:
            known = self._by_identity[id(timestamps)] = self._by_content(timestamps)
        return known

    def _by_content(self, timestamps: Ints) -> int:
        ends = (len(timestamps), int(timestamps[0]), int(timestamps[-1])) if len(timestamps) else (0, 0, 0)
        candidates = self._by_ends.setdefault(ends, [])
        for number, known in candidates:
            if np.array_equal(known, timestamps):
                return number
        candidates.append((len(self.arrays), timestamps))
        self.arrays.append(timestamps)
        return len(self.arrays) - 1

    def flat(self) -> tuple[Ints, Ints]:
        """Return the times of all axes, and where each axis begins and the last one ends."""
        return flat_axes(self.arrays)


def flat_axes(arrays: Sequence[Ints]) -> tuple[Ints, Ints]:
    if len(arrays) == 1:
        return arrays[0], np.array((0, len(arrays[0])), np.int64)
    starts = np.zeros(len(arrays) + 1, np.int64)
    np.cumsum([len(array) for array in arrays], out=starts[1:])
    return (np.concatenate(arrays) if arrays else np.empty(0, np.int64)), starts


class ColumnStorage(Protocol):
    """A `Storage` that returns columns, and calls `admit` before it loads many samples."""

    def select(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, admit: Admit | None = None
    ) -> Sequence[Series]: ...

    def select_columns(
        self,
        matchers: Sequence[Matcher],
        start_ms: int,
        end_ms: int,
        admit: Admit,
        choose: Choose | None = None,
    ) -> SeriesColumns:
        """As `Storage.select`; with `choose` at least the chosen ones of the series that match."""
        ...

    def latest_columns(
        self,
        matchers: Sequence[Matcher],
        start_ms: int,
        end_ms: int,
        admit: Admit,
        choose: Choose | None = None,
    ) -> SeriesColumns:
        """As `select_columns`, with only the newest sample of each series."""
        ...
