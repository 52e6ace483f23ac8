"""Evaluates a query's syntax tree, once for all steps.

Each node becomes a frame (one row per series, one column per step); a scalar becomes one number per step. Nodes
that do not depend on the step, such as a selector with `@`, are evaluated at the first step and repeated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import cast

import numpy as np

from gpuscope.history.promql import aggregate, functions, matching, numeric, select
from gpuscope.history.promql.budget import SAMPLES_PER_SERIES, Budget
from gpuscope.history.promql.frame import Floats, Frame, Ints, Steps, Windows
from gpuscope.history.promql.matching import (
    OPERATORS,
    LabelFilters,
    filter_by,
    needed_rows,
    operand_filters,
    reaches_back_ms,
    side_filters,
)
from gpuscope.history.promql.result import Annotations
from gpuscope.history.promql.syntax import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    At,
    BadQueryError,
    Binary,
    ExecutionError,
    Expr,
    FunctionCall,
    MatrixSelector,
    Negation,
    Number,
    String,
    Subquery,
    ValueType,
    VectorSelector,
    value_type,
)
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Matcher, Series, Storage
from gpuscope.model.series_columns import ColumnStorage, SeriesColumns

# Two months of seconds: more steps are probably a wrong unit.
MAX_SUBQUERY_STEPS = 5_000_000

# Functions whose result depends on the evaluation time even if their arguments do not.
_CLOCK_FUNCTIONS = numeric.CALENDAR | {"predict_linear", "time", "timestamp"}

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
MAX_PORTION_SAMPLES = 1_000_000

_Select = Callable[..., SeriesColumns]
"""Of matchers, start and end; a `ColumnStorage` also takes `choose`."""
_SelectSeries = Callable[[Sequence[Matcher], int, int], Sequence[Series]]


@dataclass(frozen=True, slots=True)
class EvaluationSettings:
    """`start_ms` and `end_ms` are the times of the request: `@ end()` may be after the last step."""

    start_ms: int
    end_ms: int
    lookback_ms: int
    subquery_step_ms: int
    skips_unneeded: bool = False
    """One side of an operator is read only for the label sets that the other one has (`label_filter`). Errors
    and warnings of what is not read are then missing, so it is not for queries of others."""


Frames = dict[tuple[Expr, Steps], Frame]
"""Results of parts of queries at the same steps, which several queries have in common."""


class Evaluator:
    """Evaluates the nodes of one query."""

    def __init__(
        self,
        storage: Storage,
        settings: EvaluationSettings,
        budget: Budget,
        annotations: Annotations,
        shared: Frames | None = None,
    ) -> None:
        if hasattr(storage, "select_columns"):
            columns = cast(ColumnStorage, storage)
            # The budget's method, not one of the evaluator: a reference cycle would delay freeing the samples.
            self._all: _Select = partial(columns.select_columns, admit=budget.admit)
            self._newest: _Select = partial(columns.latest_columns, admit=budget.admit)
            self._one_by_one: _SelectSeries = partial(columns.select, admit=budget.admit)
            self._can_choose = settings.skips_unneeded
        else:
            self._all = self._newest = partial(_to_columns, storage)
            self._one_by_one = storage.select
            self._can_choose = False
        self._settings = settings
        self._shared = shared
        self._filters: LabelFilters = ()
        """Which label sets of the node that is being evaluated are needed."""
        self._selected: dict[tuple[_Select, tuple[Matcher, ...], int, int, LabelFilters], SeriesColumns] = {}
        # By identity: the tree lives longer than the evaluator, and hashing a node hashes its whole subtree.
        self._constant: dict[int, bool] = {}
        self.budget = budget
        self.annotations = annotations

    def vector(self, expr: Expr, steps: Steps) -> Frame:
        """Return the instant vector of `expr` at every step."""
        if steps.count > 1 and self._is_constant(expr):
            once = self.vector(expr, steps.first())
            self.budget.charge(len(once.labels) * steps.count)
            return once.repeat_steps(steps.count)
        window_ms = self._window_ms(expr)
        if window_ms is not None and steps.step_ms * steps.count > max(DAY_MS, 4 * window_ms) + window_ms:
            return self._vector_by_period(expr, steps, max(DAY_MS, 4 * window_ms))
        return self._vector(expr, steps)

    def _window_ms(self, expr: Expr) -> int | None:
        """Return how far before each step an expression reads; None if it is not a selector or range
        function."""
        match expr:
            case VectorSelector() | FunctionCall(name="timestamp", args=(VectorSelector(),)):
                return self._settings.lookback_ms
            case (
                FunctionCall(args=(MatrixSelector() as ranged, *_))
                | FunctionCall(args=(_, MatrixSelector() as ranged, *_))
            ):
                return ranged.range_ms
            case _:
                return None

    def _vector_by_period(self, expr: Expr, steps: Steps, period_ms: int) -> Frame:
        """As `_vector`, in portions of one or more periods, so that only a portion's samples are in memory."""
        parts: list[Frame] = []
        days = list(steps.split(period_ms))
        period_count = 1
        while days:
            now, days = days[:period_count], days[period_count:]
            part = Steps(now[0].start_ms, steps.step_ms, sum(part_steps.count for part_steps in now))
            parts.append(self._vector(expr, part))
            samples = sum(selection.count_samples() for selection in self._selected.values())
            series = sum(map(len, self._selected.values()))
            self.budget.release(samples, series * SAMPLES_PER_SERIES)
            self._selected.clear()
            wanted = min(MAX_PORTION_SAMPLES, self.budget.left() // 10)
            period_count = max(1, wanted * len(now) // max(1, samples))
        return Frame.concatenate(parts, self.budget)

    def _vector(self, expr: Expr, steps: Steps) -> Frame:
        self.budget.check()
        shared = self._shared
        if shared is None or isinstance(expr, Binary | Negation):
            return self._evaluate(expr, steps)
        frame = shared.get((expr, steps))
        if frame is None:
            frame = self._evaluate(expr, steps)
            if not operand_filters(expr, self._filters):  # others need all of it
                shared[expr, steps] = frame
        return frame

    def _evaluate(self, expr: Expr, steps: Steps) -> Frame:
        if self._filters and not isinstance(expr, Binary):
            with self._needing(operand_filters(expr, self._filters)):
                return self._evaluate_node(expr, steps)
        return self._evaluate_node(expr, steps)

    @contextmanager
    def _needing(self, filters: LabelFilters) -> Iterator[None]:
        """Evaluate an operand of a node."""
        before, self._filters = self._filters, filters
        try:
            yield
        finally:
            self._filters = before

    def _evaluate_node(self, expr: Expr, steps: Steps) -> Frame:
        match expr:
            case VectorSelector():
                frame = self.latest(expr, steps)
            case Aggregate():
                frame = self._aggregate(expr, steps)
            case Binary():
                frame = self._binary(expr, steps)
            case Negation():
                inner = self.vector(expr.expr, steps)
                frame = Frame(inner.labels, -inner.values, inner.present).without_metric_names(self.budget)
            case FunctionCall():
                frame = functions.call_vector(self, expr, steps)
            case _:
                raise BadQueryError(f"expected an instant vector, got {value_type(expr).value}")
        self.budget.charge(frame.values.size)
        return frame

    def scalar(self, expr: Expr, steps: Steps) -> Floats:
        """Return one number per step."""
        with self._needing(()):
            return self._scalar(expr, steps)

    def _scalar(self, expr: Expr, steps: Steps) -> Floats:
        self.budget.charge(steps.count)
        match expr:
            case Number():
                return np.full(steps.count, expr.value)
            case Negation():
                return -self.scalar(expr.expr, steps)
            case Binary():
                operator = OPERATORS[expr.op]
                return operator(self.scalar(expr.left, steps), self.scalar(expr.right, steps))
            case FunctionCall():
                return functions.call_scalar(self, expr, steps)
            case _:
                raise BadQueryError(f"expected a scalar, got {value_type(expr).value}")

    def latest(self, selector: VectorSelector, steps: Steps) -> Frame:
        """Return the frame of an instant selector."""
        series, at = self._series_and_times(selector, steps)
        return select.latest(series, at, self._settings.lookback_ms, self.budget)

    def latest_times(self, selector: VectorSelector, steps: Steps) -> Frame:
        """Return the frame of an instant selector, with the time of each sample in seconds as its value."""
        series, at = self._series_and_times(selector, steps)
        return select.latest_times(series, at, self._settings.lookback_ms, self.budget)

    def _series_and_times(self, selector: VectorSelector, steps: Steps) -> tuple[SeriesColumns, Ints]:
        at = self._reference_times(selector.at, selector.offset_ms, steps)
        if selector.at is not None:
            at = at[:1]
        start_ms, end_ms = int(at[0]) - self._settings.lookback_ms + 1, int(at[-1])
        select = self._newest if len(at) == 1 else self._all
        series = self._select(select, selector, start_ms, end_ms)
        self.budget.reserve(len(series) * len(at))
        return series, at

    def windows(self, expr: Expr, steps: Steps) -> tuple[LabelColumns, Iterator[tuple[slice, Windows]]]:
        """Return the labels of a range's series, and their windows in portions of rows."""
        if isinstance(expr, Subquery):
            return self._subquery_windows(expr, steps)
        if not isinstance(expr, MatrixSelector):
            raise BadQueryError(f"expected a range vector, got {value_type(expr).value}")
        ends = self._reference_times(expr.vector.at, expr.vector.offset_ms, steps)
        start_ms, end_ms = int(ends[0]) - expr.range_ms + 1, int(ends[-1])
        series = self._select(self._all, expr.vector, start_ms, end_ms)
        return series.labels, select.windows(series, ends, expr.range_ms)

    def has_newest(self, expr: Expr, steps: Steps) -> bool:
        """Return whether the newest samples already tell that a range is not empty. Clients' queries read the
        range: its samples are counted."""
        if not self._settings.skips_unneeded or steps.count > 1 or not isinstance(expr, MatrixSelector):
            return False
        end = self._reference_times(expr.vector.at, expr.vector.offset_ms, steps)
        series = self._select(self._newest, expr.vector, int(end[0]) - expr.range_ms + 1, int(end[0]))
        return bool(len(select.latest(series, end, expr.range_ms, self.budget).labels))

    def samples(self, expr: MatrixSelector, time_ms: int) -> list[Series]:
        """Return the stored samples of a range selector at one time, without stale markers."""
        selector = expr.vector
        end_ms = (time_ms if selector.at is None else self._fixed_time(selector.at)) - selector.offset_ms
        series = self._one_by_one(selector.matchers, end_ms - expr.range_ms + 1, end_ms)
        self.budget.charge(sum(len(stored.timestamps) for stored in series), len(series) * SAMPLES_PER_SERIES)
        return [select.without_markers(stored) for stored in self.budget.watch(series)]

    def _subquery_windows(
        self, expr: Subquery, steps: Steps
    ) -> tuple[LabelColumns, Iterator[tuple[slice, Windows]]]:
        ends = self._reference_times(expr.at, expr.offset_ms, steps)
        inner = self._subquery_steps(expr, int(ends[0]), int(ends[-1]))
        frame = self.vector(expr.expr, inner) if inner.count else Frame.empty(0)
        self.budget.charge(3 * inner.count)  # the times, and the position of each sample
        return frame.labels, select.windows_of_frame(frame, inner.times, ends, expr.range_ms)

    def _subquery_steps(self, expr: Subquery, first_end: int, last_end: int) -> Steps:
        """Return a subquery's steps: multiples of its step, starting after the start of the first window."""
        step = expr.step_ms or self._settings.subquery_step_ms
        start = ((first_end - expr.range_ms) // step + 1) * step
        steps = Steps.between(start, last_end, step)
        if steps.count > MAX_SUBQUERY_STEPS:
            raise ExecutionError(
                f"a subquery has {steps.count} steps; at most {MAX_SUBQUERY_STEPS} are allowed"
            )
        return steps

    def subquery(self, expr: Subquery, time_ms: int) -> list[Series]:
        """Return the samples of a subquery at one time."""
        steps = Steps(time_ms, 1, 1)
        end = int(self._reference_times(expr.at, expr.offset_ms, steps)[0])
        inner = self._subquery_steps(expr, end, end)
        frame = self.vector(expr.expr, inner) if inner.count else Frame.empty(0)
        self.budget.charge(2 * frame.values.size)  # copies of times and values of each row
        return [
            Series(labels, inner.times[frame.present[row]], frame.values[row, frame.present[row]])
            for row, labels in enumerate(self.budget.watch(frame.labels))
        ]

    def _reference_times(self, at: At | None, offset_ms: int, steps: Steps) -> Ints:
        """Return the times at which a selector reads, ascending: each step or the `@` time, minus the
        offset."""
        if at is None:
            return steps.times - offset_ms if offset_ms else steps.times
        return np.full(steps.count, self._fixed_time(at), dtype=np.int64) - offset_ms

    def _fixed_time(self, at: At) -> int:
        if at == "start":
            return self._settings.start_ms
        return self._settings.end_ms if at == "end" else at

    def _select(self, select: _Select, selector: VectorSelector, start_ms: int, end_ms: int) -> SeriesColumns:
        """Return the series of a selector; a query may contain the same selector several times."""
        key = (select, selector.matchers, start_ms, end_ms, self._filters)
        series = self._selected.get(key)
        if series is None:
            series = self._selected[key] = self._load(select, selector, start_ms, end_ms)
        return series

    def _load(self, select: _Select, selector: VectorSelector, start_ms: int, end_ms: int) -> SeriesColumns:
        if self._filters and self._can_choose:
            series = select(selector.matchers, start_ms, end_ms, choose=partial(needed_rows, self._filters))
        else:
            series = select(selector.matchers, start_ms, end_ms)
        self.budget.charge(series.count_samples(), len(series) * SAMPLES_PER_SERIES)
        return series

    def _aggregate(self, expr: Aggregate, steps: Steps) -> Frame:
        frame = self.vector(expr.expr, steps)
        if expr.op == "count_values":
            if not isinstance(expr.param, String):
                raise BadQueryError("count_values requires a string literal")
            return aggregate.count_values(frame, expr.param.value, expr.grouping, expr.without, self.budget)
        param = None if expr.param is None else self.scalar(expr.param, steps)
        groups = aggregate.group_rows(frame.labels, expr.grouping, expr.without, self.budget)
        if expr.op in ("topk", "bottomk"):
            if param is None:
                raise BadQueryError(f"{expr.op} requires a number")
            return aggregate.top_or_bottom(frame, groups, param, largest=expr.op == "topk")
        if expr.op == "quantile" and param is not None:
            self.annotations.warn_of_quantile(param)
        return aggregate.aggregate(expr.op, frame, groups, param)

    def _binary(self, expr: Binary, steps: Steps) -> Frame:
        left_is_scalar = value_type(expr.left) is ValueType.SCALAR
        if left_is_scalar or value_type(expr.right) is ValueType.SCALAR:
            return self._with_scalar(expr, steps, left_is_scalar)
        left, right = self._sides(expr, steps)
        if expr.op in SET_OPERATORS:
            return matching.combine_sets(expr.op, left, right, expr.matching, self.budget)
        return matching.combine(expr, left, right, self.budget)

    def _sides(self, expr: Binary, steps: Steps) -> tuple[Frame, Frame]:
        """Evaluate both sides of an operator, the second only for label sets that the first one leaves open."""
        if not self._settings.skips_unneeded:
            return self.vector(expr.left, steps), self.vector(expr.right, steps)
        on_left = side_filters(expr, "left", self._filters)
        on_right = side_filters(expr, "right", self._filters)
        if self._right_is_first(expr, steps):
            with self._needing(on_right):
                right = self.vector(expr.right, steps)
            if not len(right.labels) and expr.op == "and":
                return Frame.empty(steps.count), right
            with self._needing((*on_left, *_other_side(expr, right, keeps=expr.op == "and"))):
                return self.vector(expr.left, steps), right
        with self._needing(on_left):
            left = self.vector(expr.left, steps)
        if not len(left.labels) and expr.op != "or":
            return left, Frame.empty(steps.count)
        new: LabelFilters = ()
        if expr.op != "or":
            new = _other_side(expr, left, keeps=True)
        elif reaches_back_ms(expr.right) > HOUR_MS:
            new = _other_side(expr, left, keeps=False)
        with self._needing((*on_right, *new)):
            return left, self.vector(expr.right, steps)

    def _right_is_first(self, expr: Binary, steps: Steps) -> bool:
        """Whether the left side is expensive, because it reads the past, and the right one tells how much of it
        is needed."""
        if expr.op not in ("and", "unless") or reaches_back_ms(expr.right) > self._settings.lookback_ms:
            return False
        return reaches_back_ms(expr.left) + steps.step_ms * steps.count > HOUR_MS

    def _with_scalar(self, expr: Binary, steps: Steps, left_is_scalar: bool) -> Frame:
        if left_is_scalar:
            number, frame = self.scalar(expr.left, steps), self.vector(expr.right, steps)
            outcome = OPERATORS[expr.op](number, frame.values)
        else:
            frame, number = self.vector(expr.left, steps), self.scalar(expr.right, steps)
            outcome = OPERATORS[expr.op](frame.values, number)
        if expr.op in COMPARISONS and not expr.returns_bool:
            return Frame(frame.labels, frame.values, frame.present & (outcome != 0)).without_empty_rows()
        return Frame(frame.labels, outcome, frame.present).without_metric_names(self.budget)

    def _is_constant(self, expr: Expr) -> bool:
        """Return whether the value is the same at every step."""
        known = self._constant.get(id(expr))
        if known is None:
            known = self._constant[id(expr)] = self._decide_constant(expr)
        return known

    def _decide_constant(self, expr: Expr) -> bool:
        match expr:
            case Number() | String():
                return True
            case VectorSelector() | Subquery():
                return expr.at is not None
            case MatrixSelector():
                return expr.vector.at is not None
            case Negation():
                return self._is_constant(expr.expr)
            case Aggregate():
                param_is_constant = expr.param is None or self._is_constant(expr.param)
                return param_is_constant and self._is_constant(expr.expr)
            case Binary():
                return self._is_constant(expr.left) and self._is_constant(expr.right)
            case FunctionCall():
                return expr.name not in _CLOCK_FUNCTIONS and all(map(self._is_constant, expr.args))


def _other_side(expr: Binary, frame: Frame, *, keeps: bool) -> LabelFilters:
    """Return which label sets of the other side are needed: those of this one, or all others."""
    return filter_by(frame.labels if keeps else frame.always_present(), expr.matching, keeps=keeps)


def _to_columns(storage: Storage, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> SeriesColumns:
    return SeriesColumns.of(storage.select(matchers, start_ms, end_ms))
