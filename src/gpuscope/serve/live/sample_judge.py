"""Judges the samples of one machine without an engine: for `top`, `snapshot`, `nodecheck` and `doctor`.

The samples of the last minutes are kept in memory, and the checks are evaluated over them with the same
expressions as everywhere. What needs a longer past holds only where a number itself says so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from gpuscope.history.promql import Engine, PromQLError
from gpuscope.history.promql.result import Vector
from gpuscope.history.store.series_pairs import predicate
from gpuscope.judge.checks.facts import Sample
from gpuscope.judge.checks.judgement import Judgement
from gpuscope.model.series import Labels, Matcher, Series

KEPT_MS = 300_000


class RecentSamples:
    """A `Storage` of the last five minutes."""

    def __init__(self) -> None:
        self._columns: dict[str, dict[Labels, list[tuple[int, float]]]] = {}  # by metric name

    def add(self, samples: Iterable[Sample], at_ms: int) -> None:
        before, self._columns = self._columns, {}
        for name, labels, value in samples:
            key = tuple(sorted([("__name__", name), *labels.items()]))
            # A series that is not there any more has ended: it is not looked up in the minutes before.
            recent = [sample for sample in before.get(name, {}).get(key, ()) if at_ms - sample[0] < KEPT_MS]
            self._columns.setdefault(name, {})[key] = [*recent, (at_ms, value)]

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        accept = [(matcher.name, predicate(matcher)) for matcher in matchers]
        accept_name = [accepts for label, accepts in accept if label == "__name__"]
        found: list[Series] = []
        for name, columns in self._columns.items():
            # Hundreds of names: the labels of those that are not asked for are not looked at.
            for labels, column in columns.items() if all(accepts(name) for accepts in accept_name) else ():
                values = dict(labels)
                inside = [sample for sample in column if start_ms <= sample[0] <= end_ms]
                if inside and all(accepts(values.get(label, "")) for label, accepts in accept):
                    times = np.array([at for at, _ in inside], np.int64)
                    found.append(Series(labels, times, np.array([value for _, value in inside], np.float64)))
        return found


class SampleJudge(Judgement):
    def __init__(self) -> None:
        super().__init__()
        self._samples = RecentSamples()
        self._engine = Engine(self._samples, skips_unneeded=True)

    def add(self, samples: Iterable[Sample], now: float) -> None:
        at_ms = int(now * 1000)
        self._samples.add(samples, at_ms)
        for check in self.due(now):
            try:
                vector = self._vector(check.promql, at_ms)
                others = self._vector(check.others, at_ms) if check.others and vector.labels else None
            except PromQLError as error:
                self.fail(check, str(error), now)
            else:
                self.apply(check, vector, now, others)

    def _vector(self, promql: str, at_ms: int) -> Vector:
        result = self._engine.instant(promql, at_ms)
        return result if isinstance(result, Vector) else Vector(at_ms, [], np.empty(0))
