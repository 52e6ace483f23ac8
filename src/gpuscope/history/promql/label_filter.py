"""Which label sets of an expression an operator can use: read the other side only for these.

`gpuscope_gpu_xid_age_seconds < 300 and on (instance, uuid) …` needs the right side of a few GPUs. The evaluator
passes a `LabelFilter` down to the selectors, through every node whose result has the labels of its operand
(`operand_filters`, `side_filters`). A filter need not be exact: the operator itself drops what does not match.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql.calendar import NAMES as CALENDAR
from gpuscope.history.promql.numeric import SIMPLE
from gpuscope.history.promql.range_functions import KERNELS
from gpuscope.history.promql.syntax import (
    SET_OPERATORS,
    Aggregate,
    Binary,
    Expr,
    FunctionCall,
    Matching,
    MatrixSelector,
    Negation,
    String,
    Subquery,
    VectorSelector,
)
from gpuscope.model.label_columns import LabelColumns, concatenate

Index = NDArray[np.intp]
_DROPPED = label_sets.IDENTITY - {label_sets.METRIC_NAME}
"""Labels that a selector may have and its rate has not."""
Side = Literal["left", "right"]

MAX_KEPT = 1_000
"""Label sets to which a filter restricts a side. A side of more is evaluated whole: other checks share it."""

_KEEPS_LABELS = frozenset(
    {*SIMPLE, *CALENDAR, *KERNELS, "clamp", "clamp_max", "clamp_min", "round", "sort", "sort_desc", "timestamp",
     "predict_linear", "quantile_over_time"}
)  # fmt: skip
"""Functions whose result has the labels of their only vector, but for the metric name."""


def signatures(labels: LabelColumns, matching: Matching) -> LabelColumns:
    """Return the labels by which an operator matches series."""
    if matching.on:
        return labels.keep(matching.labels)
    return labels.drop((*matching.labels, label_sets.METRIC_NAME))


@dataclass(frozen=True, slots=True, eq=False)
class LabelFilter:
    matching: Matching
    known: LabelColumns
    """Labels by which the operator matches, of the side that was evaluated first."""
    keeps: bool
    """Whether only these are needed, or only others."""

    def rows(self, labels: LabelColumns) -> Index:
        """Return the rows that may be needed."""
        if not self.matching.on and not _DROPPED.isdisjoint(labels.names):
            return np.arange(len(labels))
        found = signatures(labels, self.matching)
        # The known ones last: they are few, and get the numbers of the first.
        groups = concatenate((found.of_groups, self.known)).groups
        count = len(found.of_groups)
        is_known = np.zeros(len(groups.first), np.bool_)
        is_known[groups.member[count:]] = True
        is_needed = is_known[groups.member[:count]] == self.keeps
        return np.flatnonzero(is_needed[found.groups.member])

    def is_decided_by(self, names: Iterable[str]) -> bool:
        """Return whether label sets with equal labels of these names are both needed or both not."""
        return self.matching.on and {*self.matching.labels} <= {*names}

    def ignores(self, names: Iterable[str]) -> bool:
        """Return whether labels of these names do not matter."""
        ignored = {*names}
        return not ignored or (self.matching.on and ignored.isdisjoint(self.matching.labels))


LabelFilters = tuple[LabelFilter, ...]


def filter_by(labels: LabelColumns, matching: Matching, *, keeps: bool) -> LabelFilters:
    """Return a filter for the other side of an operator, none if it is not worth it."""
    if matching.on and not label_sets.IDENTITY.isdisjoint(matching.labels):
        return ()
    if (keeps and len(labels) > MAX_KEPT) or not (keeps or len(labels)):
        return ()
    return (LabelFilter(matching, signatures(labels, matching).of_groups, keeps),)


def needed_rows(filters: LabelFilters, labels: LabelColumns) -> Index:
    """Return the rows that may be needed of a selector."""
    rows = filters[0].rows(labels)
    for other in filters[1:]:
        rows = np.intersect1d(rows, other.rows(labels), assume_unique=True)
    return rows


def operand_filters(expr: Expr, filters: LabelFilters) -> LabelFilters:
    """Return the filters that are valid for the only vector of which an expression is made."""
    match expr:
        case VectorSelector() | MatrixSelector() | Subquery() | Negation():
            return filters
        case FunctionCall(name="label_replace" | "label_join", args=(_, String() as target, *_)):
            return tuple([label_filter for label_filter in filters if label_filter.ignores((target.value,))])
        case FunctionCall():
            return filters if expr.name in _KEEPS_LABELS else ()
        case Aggregate(without=True):
            return tuple(
                [
                    label_filter
                    for label_filter in filters
                    if label_filter.matching.on and label_filter.ignores(expr.grouping)
                ]
            )
        case Aggregate():
            return tuple(
                [label_filter for label_filter in filters if label_filter.is_decided_by(expr.grouping)]
            )
        case _:
            return ()


def side_filters(expr: Binary, side: Side, filters: LabelFilters) -> LabelFilters:
    """Return the filters of a result that are valid for one side of an operator between two vectors."""
    return tuple([label_filter for label_filter in filters if _is_valid(label_filter, expr, side)])


def _is_valid(one: LabelFilter, expr: Binary, side: Side) -> bool:
    matching = expr.matching
    # Whether both series of a match are needed or both are not.
    matches_alike = one.is_decided_by(matching.labels) if matching.on else one.ignores(matching.labels)
    if expr.op in SET_OPERATORS:
        keeps_rows = "right" if expr.op == "or" else "left"
        return side == keeps_rows or matches_alike
    if matching.many is None:
        return matches_alike and one.matching.on
    if not one.ignores(matching.include) or not one.matching.on:
        return False
    return side == matching.many or matches_alike


def reaches_back_ms(expr: Expr) -> int:
    """Return how far before a step an expression reads, beyond what an instant selector does."""
    match expr:
        case VectorSelector():
            return max(0, expr.offset_ms)
        case MatrixSelector():
            return max(0, expr.vector.offset_ms) + expr.range_ms
        case Subquery():
            return max(0, expr.offset_ms) + expr.range_ms + reaches_back_ms(expr.expr)
        case Negation():
            return reaches_back_ms(expr.expr)
        case Aggregate():
            return reaches_back_ms(expr.expr)
        case Binary():
            return max(reaches_back_ms(expr.left), reaches_back_ms(expr.right))
        case FunctionCall():
            return max(map(reaches_back_ms, expr.args), default=0)
        case _:
            return 0
