"""Every function of the stable language, by name, on frames and windows.

Functions drop the metric name unless they only move a series in time (last_over_time, first_over_time) or leave
values alone (sort, label_replace). `call_scalar` has those that give a scalar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.promql import calendar, histogram, numeric, over_time, rate, regression, relabel, sums
from gpuscope.promql import labels as label_sets
from gpuscope.promql.errors import BadQueryError, ExecutionError
from gpuscope.promql.frame import SAME_LABELS, Bools, Floats, Frame, Steps
from gpuscope.promql.syntax import Call, Expr, MatrixSelector, String, VectorSelector
from gpuscope.promql.windows import Windows
from gpuscope.store.series import Labels, MatchOp

if TYPE_CHECKING:
    from gpuscope.promql.evaluate import Evaluator

VectorFunction = Callable[["Evaluator", Call, Steps], Frame]
Kernel = Callable[[Windows], tuple[Floats, Bools]]

_COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")
_KEEPS_NAME = frozenset({"last_over_time", "first_over_time"})


def call_vector(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    simple = numeric.SIMPLE.get(call.name)
    if simple is not None:
        frame = evaluator.vector(call.args[0], steps)
        return Frame(frame.labels, simple(frame.values), frame.present).nameless()
    if call.name in calendar.NAMES:
        return _date(evaluator, call, steps)
    kernel = _RANGE_KERNELS.get(call.name)
    if kernel is not None:
        return _over_range(evaluator, call, call.args[0], steps, kernel)
    return _VECTOR_FUNCTIONS[call.name](evaluator, call, steps)


def call_scalar(evaluator: Evaluator, call: Call, steps: Steps) -> Floats:
    if call.name == "time":
        return steps.times / 1000
    if call.name == "pi":
        return np.full(steps.count, np.pi)
    if call.name != "scalar":
        raise BadQueryError(f"{call.name} does not give a scalar")
    frame = evaluator.vector(call.args[0], steps)
    only = frame.present.sum(axis=0) == 1
    value = np.where(frame.present, frame.values, 0.0).sum(axis=0)
    return np.where(only, value, np.nan)


def _text(expr: Expr) -> str:
    if not isinstance(expr, String):
        raise BadQueryError("a string literal is expected")
    return expr.value


# --- over ranges


def _over(kernel: over_time.Kernel) -> Kernel:
    return lambda windows: over_time.evaluate(windows, kernel)


_RANGE_KERNELS: dict[str, Kernel] = {
    "avg_over_time": _over(sums.window_means),
    "sum_over_time": _over(sums.window_sums),
    "min_over_time": _over(over_time.minimum),
    "max_over_time": _over(over_time.maximum),
    "count_over_time": _over(over_time.count),
    "present_over_time": _over(over_time.present),
    "first_over_time": _over(over_time.first),
    "last_over_time": _over(over_time.last),
    "stddev_over_time": _over(over_time.deviation),
    "stdvar_over_time": _over(over_time.variance),
    "changes": lambda windows: over_time.evaluate(windows, over_time.changes(windows)),
    "resets": lambda windows: over_time.evaluate(windows, over_time.resets(windows)),
    "rate": lambda windows: rate.extrapolated(windows, counter=True, per_second=True),
    "increase": lambda windows: rate.extrapolated(windows, counter=True, per_second=False),
    "delta": lambda windows: rate.extrapolated(windows, counter=False, per_second=False),
    "irate": lambda windows: rate.instant(windows, per_second=True),
    "idelta": lambda windows: rate.instant(windows, per_second=False),
    "deriv": regression.derivative,
}


def _over_range(evaluator: Evaluator, call: Call, argument: Expr, steps: Steps, kernel: Kernel) -> Frame:
    labels, chunks = evaluator.windows(argument, steps)
    evaluator.budget.afford(len(labels) * steps.count)
    values = np.empty((len(labels), steps.count))
    present = np.empty(values.shape, dtype=np.bool_)
    for rows, windows in chunks:
        evaluator.budget.check()
        values[rows], present[rows] = kernel(windows)
    frame = Frame(labels, values, present).without_empty_rows()
    if call.name in ("rate", "increase"):
        _note_non_counters(evaluator, frame)
    if call.name in _KEEPS_NAME:
        return frame
    nameless = frame.relabelled(label_sets.drop_name)
    # Unlike the functions of one sample, those of a range do not join series that only look alike now.
    if len(set(nameless.labels)) < len(nameless.labels):
        raise ExecutionError(SAME_LABELS)
    return nameless


def _note_non_counters(evaluator: Evaluator, frame: Frame) -> None:
    for name in {label_sets.get(one, label_sets.METRIC_NAME) for one in frame.labels}:
        if name and not name.endswith(_COUNTER_SUFFIXES):
            evaluator.notes.info(f"metric might not be a counter, its name has no counter suffix: {name}")


def _quantile_over_time(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    rank = evaluator.scalar(call.args[0], steps)
    evaluator.notes.warn_of_quantiles(rank)

    def kernel(windows: Windows) -> tuple[Floats, Bools]:
        there = windows.counts > 0
        return over_time.evaluate(windows, over_time.quantile(np.broadcast_to(rank, there.shape)[there]))

    return _over_range(evaluator, call, call.args[1], steps, kernel)


def _predict_linear(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    ahead = evaluator.scalar(call.args[1], steps)

    def kernel(windows: Windows) -> tuple[Floats, Bools]:
        return regression.prediction(windows, ahead, steps.times)

    return _over_range(evaluator, call, call.args[0], steps, kernel)


# --- presence


def _absent(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    frame = evaluator.vector(call.args[0], steps)
    return _absence(call.args[0], frame.present, steps)


def _absent_over_time(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    labels, chunks = evaluator.windows(call.args[0], steps)
    present = np.zeros((len(labels), steps.count), dtype=np.bool_)
    for rows, windows in chunks:
        present[rows] = windows.counts > 0
    return _absence(call.args[0], present, steps)


def _absence(expr: Expr, present: Bools, steps: Steps) -> Frame:
    missing = np.logical_not(present.any(axis=0, keepdims=True))
    frame = Frame([_labels_asked_for(expr)], np.ones((1, steps.count)), missing)
    return frame.without_empty_rows()


def _labels_asked_for(expr: Expr) -> Labels:
    """The labels a selector demands exactly once with `=`; any other expression has none."""
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


# --- of one sample


def _timestamp(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    argument = call.args[0]
    if isinstance(argument, VectorSelector):
        frame = evaluator.latest_times(argument, steps)
        return (frame if argument.at is None else frame.spread(steps.count)).nameless()
    frame = evaluator.vector(argument, steps)
    now = np.broadcast_to(steps.times / 1000, frame.values.shape)
    return Frame(frame.labels, now, frame.present).nameless()


def _date(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    if not call.args:
        now = calendar.field(call.name, steps.times / 1000)
        return Frame([()], now[None, :], np.ones((1, steps.count), dtype=np.bool_))
    frame = evaluator.vector(call.args[0], steps)
    return Frame(frame.labels, calendar.field(call.name, frame.values), frame.present).nameless()


def _round(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    frame = evaluator.vector(call.args[0], steps)
    nearest = evaluator.scalar(call.args[1], steps) if len(call.args) > 1 else np.ones(steps.count)
    return Frame(frame.labels, numeric.round_to(frame.values, nearest), frame.present).nameless()


def _clamp(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    frame = evaluator.vector(call.args[0], steps)
    bounds = [evaluator.scalar(arg, steps) for arg in call.args[1:]]
    endless = np.full(steps.count, np.inf)
    if call.name == "clamp_min":
        least, most = bounds[0], endless
    elif call.name == "clamp_max":
        least, most = -endless, bounds[0]
    else:
        least, most = bounds
    values, present = numeric.clamp(frame.values, frame.present, least, most)
    return Frame(frame.labels, values, present).without_empty_rows().nameless()


def _vector(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    value = evaluator.scalar(call.args[0], steps)
    return Frame([()], value[None, :], np.ones((1, steps.count), dtype=np.bool_))


# --- of whole series


def _sort(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    """By value, NaN last; over several steps there is no one order, and a range query's result has its own."""
    frame = evaluator.vector(call.args[0], steps)
    if steps.count > 1 or not frame.labels:
        return frame
    values = frame.values[:, 0]
    return frame.rows(np.argsort(values if call.name == "sort" else -values, kind="stable"))


def _label_replace(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    target, template, source, pattern = (_text(arg) for arg in call.args[1:])
    return relabel.label_replace(evaluator.vector(call.args[0], steps), target, template, source, pattern)


def _label_join(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    target, separator, *sources = (_text(arg) for arg in call.args[1:])
    return relabel.label_join(evaluator.vector(call.args[0], steps), target, separator, sources)


def _histogram_quantile(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    rank = evaluator.scalar(call.args[0], steps)
    return histogram.quantile(rank, evaluator.vector(call.args[1], steps), evaluator.notes)


def _histogram_fraction(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    lower, upper = evaluator.scalar(call.args[0], steps), evaluator.scalar(call.args[1], steps)
    return histogram.fraction(lower, upper, evaluator.vector(call.args[2], steps), evaluator.notes)


_VECTOR_FUNCTIONS: dict[str, VectorFunction] = {
    "absent": _absent,
    "absent_over_time": _absent_over_time,
    "clamp": _clamp,
    "clamp_max": _clamp,
    "clamp_min": _clamp,
    "histogram_fraction": _histogram_fraction,
    "histogram_quantile": _histogram_quantile,
    "label_join": _label_join,
    "label_replace": _label_replace,
    "predict_linear": _predict_linear,
    "quantile_over_time": _quantile_over_time,
    "round": _round,
    "sort": _sort,
    "sort_desc": _sort,
    "timestamp": _timestamp,
    "vector": _vector,
}
