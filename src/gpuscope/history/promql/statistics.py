"""Query statistics for the API parameter `stats`: timings and sample counts, also per step.

Samples are counted as in Prometheus: every sample that a selector finds for a step, for each such step; for a
subquery its results, not the samples it reads. Only the peak is specific to this engine: the most samples held
at once. Counting needs a pass over each result, so it is done only on request.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.evaluate import Evaluator
from gpuscope.history.promql.frame import Frame, Ints, Steps, Windows
from gpuscope.history.promql.syntax import Expr, MatrixSelector, Subquery, VectorSelector
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Series


class _Count:
    """Samples in total and, if the steps are given, per step."""

    __slots__ = ("_first_ms", "_step_ms", "at_step", "total")

    def __init__(self, steps: Steps | None = None) -> None:
        self.total = 0
        self.at_step = [0] * steps.count if steps is not None else []
        self._first_ms, self._step_ms = (steps.start_ms, steps.step_ms) if steps is not None else (0, 1)

    def add(self, steps: Steps, samples: Ints) -> None:
        """`samples` has one number per step of `steps`, which may be a part of the query's steps."""
        self.total += int(samples.sum())
        if self.at_step:
            first = (steps.start_ms - self._first_ms) // self._step_ms
            for position, count in enumerate(samples.tolist(), first):
                self.at_step[position] += count

    def repeat(self, steps: Steps, samples: int) -> None:
        self.add(steps, steps.times * 0 + samples)


@dataclass(slots=True)
class Statistics:
    """`received_at` is the time of the request by `time.perf_counter`: the query may have been queued."""

    per_step: bool = False
    received_at: float = field(default_factory=time.perf_counter)
    began_at: float = 0.0
    prepared_at: float = 0.0
    ended_at: float = 0.0
    steps: Steps | None = None
    count: _Count = field(default_factory=_Count)
    budget: Budget = field(default_factory=Budget)

    def begin(self) -> None:
        self.began_at = time.perf_counter()

    def prepared(self, steps: Steps, budget: Budget) -> None:
        self.prepared_at = time.perf_counter()
        self.steps, self.budget = steps, budget
        self.count = _Count(steps if self.per_step else None)

    def end(self) -> None:
        self.ended_at = time.perf_counter()

    def as_json(self) -> dict[str, Any]:
        """Return the statistics in the API's format. Sorting is included in the inner evaluation."""
        samples: dict[str, Any] = {
            "totalQueryableSamples": self.count.total,
            "peakSamples": self.budget.peak,
        }
        if self.per_step and self.steps is not None:
            times = (at / 1000 for at in self.steps.times.tolist())
            pairs = zip(times, self.count.at_step, strict=True)
            samples["totalQueryableSamplesPerStep"] = [list(pair) for pair in pairs]
        return {
            "timings": {
                "evalTotalTime": self.ended_at - self.began_at,
                "resultSortTime": 0,
                "queryPreparationTime": self.prepared_at - self.began_at,
                "innerEvalTime": self.ended_at - self.prepared_at,
                "execQueueTime": self.began_at - self.received_at,
                "execTotalTime": self.ended_at - self.received_at,
            },
            "samples": samples,
        }


class CountingEvaluator(Evaluator):
    """An evaluator that counts the samples of its selectors."""

    count: _Count

    def vector(self, expr: Expr, steps: Steps) -> Frame:
        if steps.count == 1 or not self._is_constant(expr):
            return super().vector(expr, steps)
        # Evaluated once and repeated: every step is counted as if it had been evaluated.
        whole, self.count = self.count, _Count()
        try:
            return super().vector(expr, steps)
        finally:
            whole.repeat(steps, self.count.total)
            self.count = whole

    def latest(self, selector: VectorSelector, steps: Steps) -> Frame:
        return self._counted(super().latest(selector, steps), steps)

    def latest_times(self, selector: VectorSelector, steps: Steps) -> Frame:
        return self._counted(super().latest_times(selector, steps), steps)

    def _counted(self, frame: Frame, steps: Steps) -> Frame:
        self.count.add(steps, frame.present.sum(axis=0))
        return frame

    def windows(self, expr: Expr, steps: Steps) -> tuple[LabelColumns, Iterator[tuple[slice, Windows]]]:
        if not isinstance(expr, Subquery):
            names, chunks = super().windows(expr, steps)
            return names, self._counted_windows(chunks, steps)
        whole, self.count = self.count, _Count()
        try:
            names, chunks = super().windows(expr, steps)
        finally:
            self.count = whole
        return names, self._counted_windows(chunks, steps)

    def _counted_windows(
        self, chunks: Iterator[tuple[slice, Windows]], steps: Steps
    ) -> Iterator[tuple[slice, Windows]]:
        for rows, windows in chunks:
            self.count.add(steps, (windows.high - windows.low).sum(axis=0))
            yield rows, windows

    def samples(self, expr: MatrixSelector, time_ms: int) -> list[Series]:
        series_list = super().samples(expr, time_ms)
        self.count.repeat(Steps(time_ms, 1, 1), sum(len(series.timestamps) for series in series_list))
        return series_list

    def subquery(self, expr: Subquery, time_ms: int) -> list[Series]:
        whole, self.count = self.count, _Count()
        try:
            return super().subquery(expr, time_ms)
        finally:
            whole.repeat(Steps(time_ms, 1, 1), self.count.total)
            self.count = whole
