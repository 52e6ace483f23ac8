"""Functions of a range vector: the kernel of each, and the labels of the result.

They drop the metric name, except last_over_time and first_over_time. Unlike functions of an instant vector they
do not merge series that then have equal labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql import over_time, rate, regression, sums
from gpuscope.history.promql.frame import SAME_LABELS, Bools, Floats, Frame, Steps
from gpuscope.history.promql.query_errors import ExecutionError
from gpuscope.history.promql.syntax import Expr, FunctionCall
from gpuscope.history.promql.windows import Windows

if TYPE_CHECKING:
    from gpuscope.history.promql.evaluate import Evaluator

Kernel = Callable[[Windows], tuple[Floats, Bools]]

_COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")
NOT_A_COUNTER = "metric might not be a counter, name does not end in _total/_sum/_count/_bucket"
_KEEPS_NAME = frozenset({"last_over_time", "first_over_time"})


def _over(kernel: over_time.Kernel) -> Kernel:
    return lambda windows: over_time.evaluate(windows, kernel)


KERNELS: dict[str, Kernel] = {
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


def over_range(evaluator: Evaluator, call: FunctionCall, argument: Expr, steps: Steps, kernel: Kernel) -> Frame:
    labels, chunks = evaluator.windows(argument, steps)
    evaluator.budget.reserve(len(labels) * steps.count)
    values = np.empty((len(labels), steps.count))
    present = np.empty(values.shape, dtype=np.bool_)
    for rows, windows in chunks:
        evaluator.budget.check()
        values[rows], present[rows] = kernel(windows)
    frame = Frame(labels, values, present).without_empty_rows()
    if call.name in ("rate", "increase"):
        _annotate_non_counters(evaluator, frame)
    if call.name in _KEEPS_NAME:
        return frame
    nameless = frame.drop_metric_names(evaluator.budget)
    # Unlike functions of an instant vector, these do not merge series that then have equal labels.
    if not nameless.labels.distinct:
        raise ExecutionError(SAME_LABELS)
    return nameless


def _annotate_non_counters(evaluator: Evaluator, frame: Frame) -> None:
    for name in sorted(frame.labels.values(label_sets.METRIC_NAME)):
        if name and not name.endswith(_COUNTER_SUFFIXES):
            evaluator.annotations.info(f"{NOT_A_COUNTER}: {label_sets.quote(name)}")


def quantile_over_time(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    rank = evaluator.scalar(call.args[0], steps)

    def kernel(windows: Windows) -> tuple[Floats, Bools]:
        there = windows.counts > 0
        evaluator.annotations.warn_of_quantile(rank, np.logical_or.reduce(there))
        return over_time.evaluate(windows, over_time.quantile(np.broadcast_to(rank, there.shape)[there]))

    return over_range(evaluator, call, call.args[1], steps, kernel)


def predict_linear(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    ahead = evaluator.scalar(call.args[1], steps)

    def kernel(windows: Windows) -> tuple[Floats, Bools]:
        return regression.prediction(windows, ahead, steps.times)

    return over_range(evaluator, call, call.args[0], steps, kernel)
