"""All functions of the stable language, by name.

A function of an instant vector drops the metric name unless it keeps the values (sort, label_replace); series
that then have equal labels are merged. `call_scalar` contains the functions that return a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.history.promql import histogram, numeric, range_functions
from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql.frame import Bools, Floats, Frame, Steps
from gpuscope.history.promql.parse import NATIVE_HISTOGRAM_FUNCTIONS
from gpuscope.history.promql.syntax import (
    BadQueryError,
    Expr,
    FunctionCall,
    MatrixSelector,
    String,
    VectorSelector,
)
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Labels, MatchOp

if TYPE_CHECKING:
    from gpuscope.history.promql.evaluate import Evaluator

# absent and absent_over_time: 1 where no sample exists, with the labels of the selector.


def absent(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    frame = evaluator.vector(call.args[0], steps)
    return _absence(call.args[0], frame.present, steps)


def absent_over_time(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    if evaluator.has_newest(call.args[0], steps):
        return Frame.empty(steps.count)
    labels, chunks = evaluator.windows(call.args[0], steps)
    evaluator.budget.reserve(len(labels) * steps.count)
    present = np.zeros((len(labels), steps.count), dtype=np.bool_)
    for rows, windows in chunks:
        evaluator.budget.check()
        present[rows] = windows.counts > 0
    return _absence(call.args[0], present, steps)


def _absence(expr: Expr, present: Bools, steps: Steps) -> Frame:
    missing = np.logical_not(present.any(axis=0, keepdims=True))
    labels = LabelColumns.of([_labels_of_equal_matchers(expr)])
    frame = Frame(labels, np.ones((1, steps.count)), missing)
    return frame.without_empty_rows()


def _labels_of_equal_matchers(expr: Expr) -> Labels:
    """Return the labels that a selector sets exactly once with `=`; () for any other expression."""
    if isinstance(expr, MatrixSelector):
        expr = expr.vector
    if not isinstance(expr, VectorSelector):
        return ()
    labels: Labels = ()
    seen: set[str] = set()
    for matcher in expr.matchers:
        if matcher.name == label_sets.METRIC_NAME:
            continue
        if matcher.op is MatchOp.EQUAL and matcher.name not in seen:
            seen.add(matcher.name)
            labels = label_sets.assign(labels, matcher.name, matcher.value)
        else:
            labels = label_sets.drop(labels, (matcher.name,))
    return labels


SORT_IN_RANGE = "sort is ineffective for range queries since results are always ordered by labels"

VectorFunction = Callable[["Evaluator", FunctionCall, Steps], Frame]


def call_vector(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    simple = numeric.SIMPLE.get(call.name)
    if simple is not None:
        frame = evaluator.vector(call.args[0], steps)
        return Frame(frame.labels, simple(frame.values), frame.present).without_metric_names(evaluator.budget)
    if call.name in numeric.CALENDAR:
        return _date(evaluator, call, steps)
    kernel = range_functions.KERNELS.get(call.name)
    if kernel is not None:
        return range_functions.over_range(evaluator, call, call.args[0], steps, kernel)
    return _VECTOR_FUNCTIONS[call.name](evaluator, call, steps)


def call_scalar(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Floats:
    if call.name == "time":
        return steps.times / 1000
    if call.name == "pi":
        return np.full(steps.count, np.pi)
    if call.name != "scalar":
        raise BadQueryError(f"{call.name} does not return a scalar")
    frame = evaluator.vector(call.args[0], steps)
    only = frame.present.sum(axis=0) == 1
    value = np.where(frame.present, frame.values, 0.0).sum(axis=0)
    return np.where(only, value, np.nan)


def _text(expr: Expr) -> str:
    if not isinstance(expr, String):
        raise BadQueryError("expected a string literal")
    return expr.value


def _timestamp(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    argument = call.args[0]
    if isinstance(argument, VectorSelector):
        frame = evaluator.latest_times(argument, steps)
        return (frame if argument.at is None else frame.repeat_steps(steps.count)).without_metric_names(
            evaluator.budget
        )
    frame = evaluator.vector(argument, steps)
    now = np.broadcast_to(steps.times / 1000, frame.values.shape)
    return Frame(frame.labels, now, frame.present).without_metric_names(evaluator.budget)


def _date(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    if not call.args:
        now = numeric.calendar_field(call.name, steps.times / 1000)
        return Frame.single((), now)
    frame = evaluator.vector(call.args[0], steps)
    values = numeric.calendar_field(call.name, frame.values)
    return Frame(frame.labels, values, frame.present).without_metric_names(evaluator.budget)


def _round(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    frame = evaluator.vector(call.args[0], steps)
    nearest = evaluator.scalar(call.args[1], steps) if len(call.args) > 1 else np.ones(steps.count)
    return Frame(frame.labels, numeric.round_to(frame.values, nearest), frame.present).without_metric_names(
        evaluator.budget
    )


def _clamp(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    frame = evaluator.vector(call.args[0], steps)
    bounds = [evaluator.scalar(arg, steps) for arg in call.args[1:]]
    endless = np.full(steps.count, np.inf)
    if call.name == "clamp_min":
        low, high = bounds[0], endless
    elif call.name == "clamp_max":
        low, high = -endless, bounds[0]
    else:
        low, high = bounds
    values, present = numeric.clamp(frame.values, frame.present, low, high)
    return Frame(frame.labels, values, present).without_empty_rows().without_metric_names(evaluator.budget)


def _vector(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    value = evaluator.scalar(call.args[0], steps)
    return Frame.single((), value)


def _of_native_histograms(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    """Return an empty vector, as Prometheus does for floats: native histograms are not stored."""
    evaluator.vector(call.args[0], steps)  # for errors and annotations
    return Frame.empty(steps.count)


def _sort(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    """Sort by value, NaN last; has no effect in a range query, whose result is sorted by labels."""
    if steps.count > 1:
        evaluator.annotations.warn(SORT_IN_RANGE)
    frame = evaluator.vector(call.args[0], steps)
    if steps.count > 1 or not frame.labels:
        return frame
    values = frame.values[:, 0]
    return frame.rows(np.argsort(values if call.name == "sort" else -values, kind="stable"))


def _label_replace(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    target, template, source, pattern = (_text(arg) for arg in call.args[1:])
    frame = evaluator.vector(call.args[0], steps)
    return label_sets.label_replace(frame, target, template, source, pattern, evaluator.budget)


def _label_join(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    target, separator, *sources = (_text(arg) for arg in call.args[1:])
    frame = evaluator.vector(call.args[0], steps)
    return label_sets.label_join(frame, target, separator, sources, evaluator.budget)


def _histogram_quantile(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    rank = evaluator.scalar(call.args[0], steps)
    return histogram.quantile(
        rank, evaluator.vector(call.args[1], steps), evaluator.annotations, evaluator.budget
    )


def _histogram_fraction(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    lower, upper = evaluator.scalar(call.args[0], steps), evaluator.scalar(call.args[1], steps)
    frame = evaluator.vector(call.args[2], steps)
    return histogram.fraction(lower, upper, frame, evaluator.annotations, evaluator.budget)


_VECTOR_FUNCTIONS: dict[str, VectorFunction] = {
    "absent": absent,
    "absent_over_time": absent_over_time,
    "clamp": _clamp,
    "clamp_max": _clamp,
    "clamp_min": _clamp,
    **dict.fromkeys(NATIVE_HISTOGRAM_FUNCTIONS, _of_native_histograms),
    "histogram_fraction": _histogram_fraction,
    "histogram_quantile": _histogram_quantile,
    "label_join": _label_join,
    "label_replace": _label_replace,
    "predict_linear": range_functions.predict_linear,
    "quantile_over_time": range_functions.quantile_over_time,
    "round": _round,
    "sort": _sort,
    "sort_desc": _sort,
    "timestamp": _timestamp,
    "vector": _vector,
}
