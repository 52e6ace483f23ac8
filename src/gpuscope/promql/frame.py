"""The evaluator's data types: the steps of a query, and vectors over all steps.

A `Frame` is an instant vector at every step: one row per series, one column per step. `present` marks the cells
that have a sample, because NaN is an ordinary value. Values of other cells are undefined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuscope.promql import labels as label_sets
from gpuscope.promql.budget import ITEMS_PER_CHECK, SAMPLES_PER_LABEL_SET, Budget, reserve_running_copy
from gpuscope.promql.query_errors import ExecutionError
from gpuscope.series import Labels

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
    labels: list[Labels]
    values: Floats
    present: Bools

    @staticmethod
    def empty(steps: int) -> Frame:
        return Frame([], np.empty((0, steps)), np.empty((0, steps), dtype=np.bool_))

    def rows(self, chosen: NDArray[np.intp] | Sequence[int]) -> Frame:
        index = np.asarray(chosen, dtype=np.intp)
        return Frame([self.labels[i] for i in index], self.values[index], self.present[index])

    def without_empty_rows(self) -> Frame:
        alive = self.present.any(axis=1)
        if alive.all():
            return self
        kept = np.flatnonzero(alive)
        reserve_running_copy(len(kept) * self.values.shape[1])
        return self.rows(kept)

    def relabel(self, change: Callable[[Labels], Labels], budget: Budget) -> Frame:
        return Frame([change(one) for one in budget.watch(self.labels)], self.values, self.present)

    def without_metric_names(self, budget: Budget) -> Frame:
        """Remove the metric names and merge rows that then have equal labels."""
        if len(self.labels) > ITEMS_PER_CHECK:
            budget.charge(0, len(self.labels) * SAMPLES_PER_LABEL_SET)
        return self.relabel(label_sets.drop_name, budget).merged(budget)

    def merged(self, budget: Budget) -> Frame:
        """Merge rows with equal labels; two samples at one step are an error."""
        if len(set(self.labels)) == len(self.labels):
            return self
        first: dict[Labels, int] = {}
        target = [first.setdefault(one, len(first)) for one in budget.watch(self.labels)]
        values = np.zeros((len(first), self.values.shape[1]))
        present = np.zeros(values.shape, dtype=np.bool_)
        for row, to in enumerate(budget.watch(target)):
            here = self.present[row]
            if (present[to] & here).any():
                raise ExecutionError(f"{SAME_LABELS}: {label_sets.render(self.labels[row])}")
            values[to, here] = self.values[row, here]
            present[to] |= here
        return Frame(list(first), values, present)

    @staticmethod
    def concatenate(parts: Sequence[Frame], budget: Budget) -> Frame:
        """Concatenate frames of consecutive steps; a series may be missing in some of them."""
        row_of: dict[Labels, int] = {}
        for part in parts:
            for one in budget.watch(part.labels):
                row_of.setdefault(one, len(row_of))
        steps = sum(part.values.shape[1] for part in parts)
        budget.reserve(len(row_of) * steps)
        values = np.zeros((len(row_of), steps))
        present = np.zeros(values.shape, dtype=np.bool_)
        begin = 0
        for part in parts:
            end = begin + part.values.shape[1]
            rows = [row_of[one] for one in part.labels]
            values[rows, begin:end], present[rows, begin:end] = part.values, part.present
            begin = end
        return Frame(list(row_of), values, present)

    def repeat_steps(self, count: int) -> Frame:
        """Repeat the only step `count` times, without copying."""
        shape = (len(self.labels), count)
        return Frame(self.labels, np.broadcast_to(self.values, shape), np.broadcast_to(self.present, shape))
