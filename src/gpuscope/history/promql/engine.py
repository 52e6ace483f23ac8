"""PromQL over any `Storage`: query text and times in, a `Result` out.

As in Prometheus 3.x, windows exclude their start, samples older than the lookback delta are ignored, and a
range query returns at most 11,001 points per series. Native histograms and experimental functions are refused
by name.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from operator import attrgetter
from typing import TypeVar

import numpy as np

from gpuscope.base.limits import Limits
from gpuscope.history.promql.budget import Budget, SamplePool
from gpuscope.history.promql.durations import INSTANT, QueryTimes
from gpuscope.history.promql.evaluate import EvaluationSettings, Evaluator, Frames
from gpuscope.history.promql.frame import Frame, Steps
from gpuscope.history.promql.parse import parse
from gpuscope.history.promql.result import Annotations, Matrix, RangeVector, Result, Scalar, Text, Vector
from gpuscope.history.promql.statistics import CountingEvaluator, Statistics
from gpuscope.history.promql.syntax import (
    Aggregate,
    BadQueryError,
    Binary,
    Expr,
    FunctionCall,
    MatrixSelector,
    Negation,
    Number,
    PromQLError,
    String,
    Subquery,
    ValueType,
    VectorSelector,
    value_type,
)
from gpuscope.model.series import Series, Storage

# Decides whether a query is so small that running it in a thread costs more than evaluating it at once.
#
# A small query reads few samples of few series, all of which the store has in memory (`count_in_memory`; a
# store without it has no small queries). Safe to call on an event loop: nothing here reads a file, waits, or
# searches an index.

MAX_CHARACTERS = 500
"""Longer queries are not parsed to find out."""
MAX_SERIES = 32
MAX_SAMPLES = 4_000
"""Samples read: about a millisecond of work."""

_Selector = tuple[VectorSelector, int | None]


def is_small(text: str, storage: Storage, steps: Steps, lookback_ms: int, times: QueryTimes = INSTANT) -> bool:
    count_in_memory = getattr(storage, "count_in_memory", None)
    if count_in_memory is None or len(text) > MAX_CHARACTERS:
        return False
    series = numbers = 0
    for selector, range_ms in _selectors(parse(text, times)):
        if selector.at is not None:
            return False
        start_ms = steps.start_ms - selector.offset_ms - (range_ms or lookback_ms)
        counts: tuple[int, int] | None = count_in_memory(
            selector.matchers, start_ms, steps.end_ms - selector.offset_ms
        )
        if counts is None:
            return False
        series += counts[0]
        # Each step reads one sample of a series, or all samples of its window.
        numbers += counts[1] * steps.count if range_ms else counts[1] + counts[0] * steps.count
    return series <= MAX_SERIES and numbers <= MAX_SAMPLES


def _selectors(expr: Expr) -> Iterator[_Selector]:
    """Yield every selector with its range; `_NEVER_SMALL` for expressions that may be expensive otherwise."""
    match expr:
        case Number() | String():
            return
        case VectorSelector():
            yield expr, None
        case MatrixSelector():
            yield expr.vector, expr.range_ms
        case Negation():
            yield from _selectors(expr.expr)
        case Binary():
            yield from _selectors(expr.left)
            yield from _selectors(expr.right)
        case Aggregate():
            yield from _selectors(expr.expr)
            if expr.param is not None:
                yield from _selectors(expr.param)
        case FunctionCall(name=("label_replace" | "label_join")):
            yield _NEVER_SMALL  # 500 characters of nested calls can use the whole budget for label text
        case FunctionCall():
            for arg in expr.args:
                yield from _selectors(arg)
        case _:
            yield _NEVER_SMALL


_NEVER_SMALL: _Selector = VectorSelector((), at="start"), None


T = TypeVar("T")

MAX_POINTS_PER_SERIES = 11_001  # Prometheus allows 11,000 steps between the first point and the last


@dataclass(frozen=True, slots=True)
class Engine:
    """Evaluates queries; has no state between them, so threads can share an engine."""

    storage: Storage
    lookback_ms: int = 300_000
    max_samples: int = Limits().query_max_samples
    timeout_seconds: float | None = Limits().query_timeout
    subquery_step_ms: int = 60_000
    max_label_bytes: int = Limits().query_max_label_bytes
    pool: SamplePool = field(default_factory=lambda: SamplePool(Limits().query_max_total_samples))
    skips_unneeded: bool = False
    """See `EvaluationSettings`."""

    def instant(
        self,
        expr: str,
        time_ms: int,
        *,
        timeout_seconds: float | None = None,
        lookback_ms: int | None = None,
        cancelled: threading.Event | None = None,
        statistics: Statistics | None = None,
        budget: Budget | None = None,
        shared: Frames | None = None,
    ) -> Result:
        """Evaluate `expr` at one time; fill `statistics` if given. A caller that continues to work with the
        result passes its own `budget`, which then determines time limit and cancellation. Queries at one time
        that have parts in common may pass the same `shared`, which is empty at first."""
        if statistics is not None:
            statistics.begin()
        tree = parse(expr)
        steps = Steps(time_ms, 1, 1)
        evaluator = self._evaluator(
            self._settings(time_ms, time_ms, lookback_ms),
            budget or self.budget(timeout_seconds, cancelled),
            steps,
            statistics,
            shared,
        )
        return _evaluated(lambda: _instant(evaluator, tree, steps), evaluator.budget, statistics)

    def range(
        self,
        expr: str,
        start_ms: int,
        end_ms: int,
        step_ms: int,
        *,
        timeout_seconds: float | None = None,
        lookback_ms: int | None = None,
        cancelled: threading.Event | None = None,
        statistics: Statistics | None = None,
        budget: Budget | None = None,
    ) -> Matrix:
        """Evaluate `expr` at start, start + step, ... up to end."""
        if statistics is not None:
            statistics.begin()
        if step_ms <= 0:
            raise BadQueryError("zero or negative query resolution step widths are not accepted")
        if end_ms < start_ms:
            raise BadQueryError("end timestamp must not be before start time")
        steps = Steps.between(start_ms, end_ms, step_ms)
        if steps.count > MAX_POINTS_PER_SERIES:
            raise BadQueryError(
                f"{steps.count} points per series are more than {MAX_POINTS_PER_SERIES}; use a longer step"
            )
        tree = parse(expr, QueryTimes(step_ms, end_ms - start_ms))
        evaluator = self._evaluator(
            self._settings(start_ms, end_ms, lookback_ms),
            budget or self.budget(timeout_seconds, cancelled),
            steps,
            statistics,
        )
        return _evaluated(lambda: _range(evaluator, tree, steps), evaluator.budget, statistics)

    def is_small(self, expr: str, steps: Steps, times: QueryTimes, lookback_ms: int | None) -> bool:
        """Return whether evaluation is cheaper than passing the query to a thread; True for an invalid
        query."""
        try:
            return is_small(expr, self.storage, steps, lookback_ms or self.lookback_ms, times)
        except BadQueryError:
            return True

    def budget(
        self,
        timeout_seconds: float | None = None,
        cancelled: threading.Event | None = None,
        *,
        received_at: float | None = None,
    ) -> Budget:
        """Create the budget of one query. Its time starts now, or at `received_at` of `time.monotonic`: as in
        Prometheus, the time limit includes the time that the query waits for others."""
        limit = self.timeout_seconds
        if timeout_seconds is not None and (limit is None or timeout_seconds < limit):
            limit = timeout_seconds
        budget = Budget(self.max_samples, limit, cancelled, self.max_label_bytes, self.pool)
        budget.check("query execution")
        if received_at is not None:
            budget.start_at(received_at)
            budget.check("query queue")
        return budget

    def _settings(self, start_ms: int, end_ms: int, lookback_ms: int | None) -> EvaluationSettings:
        lookback_ms = lookback_ms or self.lookback_ms
        return EvaluationSettings(start_ms, end_ms, lookback_ms, self.subquery_step_ms, self.skips_unneeded)

    def _evaluator(
        self,
        settings: EvaluationSettings,
        budget: Budget,
        steps: Steps,
        statistics: Statistics | None,
        shared: Frames | None = None,
    ) -> Evaluator:
        if statistics is None:
            return Evaluator(self.storage, settings, budget, Annotations(), shared)
        statistics.prepared(steps, budget)
        evaluator = CountingEvaluator(self.storage, settings, budget, Annotations())
        evaluator.count = statistics.count
        return evaluator


def _evaluated(evaluate: Callable[[], T], budget: Budget, statistics: Statistics | None) -> T:
    """Report a tree that is too deep for the stack as a query error."""
    try:
        result = budget.run(evaluate)
    except RecursionError as error:
        raise BadQueryError("the query is nested too deeply") from error
    except PromQLError:
        budget.close()
        raise
    if statistics is not None:
        statistics.end()
    return result


def _instant(evaluator: Evaluator, tree: Expr, steps: Steps) -> Result:
    time_ms, annotations = steps.start_ms, evaluator.annotations
    if isinstance(tree, String):
        return Text(time_ms, tree.value)
    if isinstance(tree, MatrixSelector):
        return _samples(evaluator.samples(tree, time_ms), annotations, evaluator.budget)
    with _arithmetic():
        if isinstance(tree, Subquery):
            return _samples(evaluator.subquery(tree, time_ms), annotations, evaluator.budget)
        if value_type(tree) is ValueType.SCALAR:
            value = float(evaluator.scalar(tree, steps)[0])
            return Scalar(time_ms, value, annotations.warnings, annotations.infos)
        frame = evaluator.vector(tree, steps).without_empty_rows()
    return Vector(time_ms, frame.labels, frame.values[:, 0], annotations.warnings, annotations.infos)


def _arithmetic() -> np.errstate:
    """Division by zero and overflow give values, not errors."""
    return np.errstate(all="ignore")


def _samples(rows: Iterable[Series], annotations: Annotations, budget: Budget) -> RangeVector:
    """Return the result of a query that is a range selector or a subquery."""
    series = budget.sort((row for row in rows if len(row.timestamps)), key=attrgetter("labels"))
    return RangeVector(
        [row.labels for row in series],
        [row.timestamps for row in series],
        [row.values for row in series],
        annotations.warnings,
        annotations.infos,
    )


def _range(evaluator: Evaluator, tree: Expr, steps: Steps) -> Matrix:
    kind = value_type(tree)
    with _arithmetic():
        if kind is ValueType.SCALAR:
            value = evaluator.scalar(tree, steps)
            frame = Frame.single((), value)
        elif kind is ValueType.VECTOR:
            frame = evaluator.vector(tree, steps).without_empty_rows()
        else:
            raise BadQueryError(
                f"invalid expression type {kind.value} for range query, must be scalar or instant vector"
            )
    order = frame.labels.order(partial(evaluator.budget.check, "sorting"))
    if (order[1:] < order[:-1]).any():
        evaluator.budget.reserve_copy(frame.values.size)
        frame = frame.rows(order)
    annotations = evaluator.annotations
    return Matrix(
        steps.times, frame.labels, frame.values, frame.present, annotations.warnings, annotations.infos
    )
