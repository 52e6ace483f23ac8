"""A `Storage` in memory for rule unit tests: the series of the test, and those that rules write.

Samples of the test become visible as time passes (`show_until`), as in promtool.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.value_matching import predicate
from gpuscope.judge.rules.interfaces import ForStateSample, RuleSample
from gpuscope.judge.rules.store_writer import STALE
from gpuscope.model.series import Labels, Matcher, MatchOp, Series


class _Column:
    """The samples of one series, appended in time order."""

    __slots__ = ("_size", "times", "values")

    def __init__(self) -> None:
        self._size = 0
        self.times: NDArray[np.int64] = np.empty(16, np.int64)
        self.values: NDArray[np.float64] = np.empty(16, np.float64)

    def append(self, time_ms: int, value: float) -> None:
        if self._size and time_ms <= self.times[self._size - 1]:
            return  # a second sample for the same time, for example a stale marker of a renamed rule
        if self._size == len(self.times):
            self.times = np.concatenate([self.times, np.empty_like(self.times)])
            self.values = np.concatenate([self.values, np.empty_like(self.values)])
        self.times[self._size], self.values[self._size] = time_ms, value
        self._size += 1

    def between(self, start_ms: int, end_ms: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        times = self.times[: self._size]
        low, high = np.searchsorted(times, [start_ms, end_ms + 1])
        return times[low:high], self.values[low:high]


class MemoryStorage:
    """Implements `series.Storage` and `SampleWriter`."""

    def __init__(self) -> None:
        self._columns: dict[Labels, _Column] = {}
        self._until_ms = 0

    def add(self, labels: Labels, time_ms: int, value: float) -> None:
        column = self._columns.get(labels)
        if column is None:
            column = self._columns[labels] = _Column()
        column.append(time_ms, value)

    def show_until(self, time_ms: int) -> None:
        self._until_ms = time_ms

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        accept = [(one.name, predicate(one)) for one in matchers]
        found: list[Series] = []
        for labels, column in self._columns.items():
            values = dict(labels)
            if all(accepts(values.get(name, "")) for name, accepts in accept):
                times, numbers = column.between(start_ms, min(end_ms, self._until_ms))
                if len(times):
                    found.append(Series(labels, times, numbers))
        return found

    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        for labels, value in samples:
            self.add(labels, at_ms, value)
        for labels in stale:
            self.add(labels, at_ms, STALE)
        return ""

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        matchers = [Matcher(name, MatchOp.EQUAL, value) for name, value in labels]
        return [
            (series.labels, int(series.timestamps[-1]), float(series.values[-1]))
            for series in self.select(matchers, start_ms, end_ms)
        ]
