"""absent and absent_over_time: 1 where no sample exists, with the labels of the selector."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql.frame import Bools, Frame, Steps
from gpuscope.history.promql.syntax import Expr, FunctionCall, MatrixSelector, VectorSelector
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Labels, MatchOp

if TYPE_CHECKING:
    from gpuscope.history.promql.evaluate import Evaluator


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
