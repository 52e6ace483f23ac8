"""absent and absent_over_time: 1 where nothing is, with the labels that were asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from gpuscope.promql import labels as label_sets
from gpuscope.promql.frame import Bools, Frame, Steps
from gpuscope.promql.syntax import Call, Expr, MatrixSelector, VectorSelector
from gpuscope.series import Labels, MatchOp

if TYPE_CHECKING:
    from gpuscope.promql.evaluate import Evaluator


def absent(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    frame = evaluator.vector(call.args[0], steps)
    return _absence(call.args[0], frame.present, steps)


def absent_over_time(evaluator: Evaluator, call: Call, steps: Steps) -> Frame:
    labels, chunks = evaluator.windows(call.args[0], steps)
    evaluator.budget.afford(len(labels) * steps.count)
    present = np.zeros((len(labels), steps.count), dtype=np.bool_)
    for rows, windows in chunks:
        evaluator.budget.check()
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
