"""The evaluator's data types: the steps of a query, vectors over all steps, and windows of range vectors.

A `Frame` is an instant vector at every step: one row per series, one column per step. `present` marks the cells
that have a sample, because NaN is an ordinary value. Values of other cells are undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql.budget import (
    BYTES_PER_SAMPLE,
    ITEMS_PER_CHECK,
    SAMPLES_PER_LABEL_SET,
    Budget,
    check_running,
    reserve_running_copy,
)
from gpuscope.history.promql.syntax import ExecutionError
from gpuscope.model.label_columns import LabelColumns, PairTable, concatenate
from gpuscope.model.series import Labels

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Ints = NDArray[np.int64]

SAME_LABELS = "vector cannot contain metrics with the same labelset"


@dataclass(frozen=True)
class Steps:
    """The evaluation times: `count` times, `step_ms` apart, starting at `start_ms`."""

    start_ms: int
    step_ms: int
    count: int

    @staticmethod
    def between(start_ms: int, end_ms: int, step_ms: int) -> Steps:
        return Steps(start_ms, step_ms, max(0, (end_ms - start_ms) // step_ms + 1))

    @property
    def end_ms(self) -> int:
        """Return the last evaluation time."""
        return self.start_ms + self.step_ms * (self.count - 1)

    @cached_property
    def times(self) -> Ints:
        if self.count == 1:
            return np.array((self.start_ms,), dtype=np.int64)
        return self.start_ms + self.step_ms * np.arange(self.count, dtype=np.int64)

    def first(self) -> Steps:
        return Steps(self.start_ms, self.step_ms, 1)

    def split(self, length_ms: int) -> Iterator[Steps]:
        """Yield the steps of each period of `length_ms`, counted from 1970."""
        period = self.times // length_ms
        begins = np.flatnonzero(np.diff(period, prepend=period[0] - 1))
        for begin, end in pairwise([*begins.tolist(), self.count]):
            yield Steps(self.start_ms + begin * self.step_ms, self.step_ms, end - begin)


@dataclass(frozen=True, slots=True)
class Frame:
    labels: LabelColumns
    values: Floats
    present: Bools

    @staticmethod
    def empty(steps: int) -> Frame:
        return Frame(LabelColumns.of(()), np.empty((0, steps)), np.empty((0, steps), dtype=np.bool_))

    @staticmethod
    def single(labels: Labels, values: Floats) -> Frame:
        """Return one series that is present at every step."""
        return Frame(LabelColumns.of([labels]), values[None, :], np.ones((1, len(values)), dtype=np.bool_))

    def rows(self, chosen: NDArray[np.intp] | Sequence[int]) -> Frame:
        index = np.asarray(chosen, dtype=np.intp)
        return Frame(self.labels.take(index), self.values[index], self.present[index])

    def without_empty_rows(self) -> Frame:
        alive = self.present.any(axis=1)
        if alive.all():
            return self
        kept = np.flatnonzero(alive)
        reserve_running_copy(len(kept) * self.values.shape[1])
        return self.rows(kept)

    def always_present(self) -> LabelColumns:
        """Return the label sets that have a sample at every step."""
        always = self.present.all(axis=1)
        return self.labels if always.all() else self.labels.take(np.flatnonzero(always))

    def set_label(
        self,
        target: str,
        sources: Collection[str],
        value_of: Callable[[Labels, int], str | None],
        budget: Budget,
    ) -> Frame:
        """Set one label to what `value_of` returns: "" removes the label, None keeps it.

        `value_of` is called once for each distinct combination of the labels `sources`, with the number of
        series that have it.
        """
        labels = self.labels
        if len(labels) > ITEMS_PER_CHECK:
            budget.charge(0, labels.codes.size * labels.codes.itemsize // BYTES_PER_SAMPLE)
        source_labels = labels.keep(sources)
        groups = source_labels.groups
        # A table with a base belongs to this query: it can be extended without copying.
        table = labels.table if labels.table.base is not None else PairTable.over(labels.table)
        numbers = np.zeros(len(groups.first), np.int32)
        is_kept = np.zeros(len(groups.first), np.bool_)
        counts = np.bincount(groups.member, minlength=len(groups.first)).tolist()
        for group, one in enumerate(budget.watch(source_labels.take(groups.first))):
            value = value_of(one, counts[group])
            is_kept[group] = value is None
            if value:
                numbers[group] = table.number((target, value))
        member = groups.member
        column = np.where(is_kept[member], labels.column(target), numbers[member])
        return Frame(labels.with_table(table).with_column(target, column), self.values, self.present)

    def drop_metric_names(self, budget: Budget) -> Frame:
        """Remove the metric names; rows may then have equal labels."""
        if len(self.labels) > ITEMS_PER_CHECK:
            budget.charge(0, len(self.labels) * SAMPLES_PER_LABEL_SET)
        return Frame(self.labels.drop(label_sets.IDENTITY), self.values, self.present)

    def without_metric_names(self, budget: Budget) -> Frame:
        """Remove the metric names and merge rows that then have equal labels."""
        return self.drop_metric_names(budget).merged()

    def merged(self) -> Frame:
        """Merge rows with equal labels; two samples at one step are an error."""
        if self.labels.distinct:
            return self
        groups = self.labels.groups
        row, step = np.nonzero(self.present)
        cell = groups.member[row] * self.values.shape[1] + step
        reserve_running_copy(4 * len(cell))
        first = np.full(len(groups.first) * self.values.shape[1], len(row), dtype=np.intp)
        np.minimum.at(first, cell, np.arange(len(row)))
        again = np.flatnonzero(first[cell] < np.arange(len(row)))
        if again.size:
            raise ExecutionError(f"{SAME_LABELS}: {label_sets.render(self.labels[int(row[again[0]])])}")
        values = np.zeros((len(groups.first), self.values.shape[1]))
        values[groups.member[row], step] = self.values[row, step]
        present = (first < len(row)).reshape(values.shape)
        return Frame(self.labels.take(groups.first), values, present)

    @staticmethod
    def concatenate(parts: Sequence[Frame], budget: Budget) -> Frame:
        """Concatenate frames of consecutive steps; a series may be missing in some of them."""
        every = concatenate(part.labels for part in parts)
        groups = every.groups
        steps = sum(part.values.shape[1] for part in parts)
        budget.reserve(len(groups.first) * steps)
        values = np.zeros((len(groups.first), steps))
        present = np.zeros(values.shape, dtype=np.bool_)
        begin = row = 0
        for part in parts:
            end = begin + part.values.shape[1]
            rows = groups.member[row : row + len(part.labels)]
            values[rows, begin:end], present[rows, begin:end] = part.values, part.present
            begin, row = end, row + len(part.labels)
        return Frame(every.take(groups.first), values, present)

    def repeat_steps(self, count: int) -> Frame:
        """Repeat the only step `count` times, without copying."""
        shape = (len(self.labels), count)
        return Frame(self.labels, np.broadcast_to(self.values, shape), np.broadcast_to(self.present, shape))


# Range windows over many series.
#
# The samples of all series are in flat arrays, one series after the other; a window is a pair of positions.
# So a function over windows is the same few array operations for one series or a thousand. `SampleColumns`
# visits all windows in parallel, oldest samples first, for functions that must be computed in order.

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
