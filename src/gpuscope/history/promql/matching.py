"""Vector matching, and the arithmetic, comparison and set operators between two vectors.

Series are paired by their matching labels once for all steps; `present` decides at which steps a pair has a
result. Two series with equal matching labels are an error only at steps where both are present.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.frame import Bools, Floats, Frame
from gpuscope.history.promql.numeric import CALENDAR, SIMPLE
from gpuscope.history.promql.range_functions import KERNELS
from gpuscope.history.promql.syntax import (
    COMPARISONS,
    SET_OPERATORS,
    Aggregate,
    Binary,
    ExecutionError,
    Expr,
    FunctionCall,
    Matching,
    MatrixSelector,
    Negation,
    String,
    Subquery,
    VectorSelector,
)
from gpuscope.model.label_columns import LabelColumns, concatenate, unified

# Which label sets of an expression an operator can use: read the other side only for these.
#
# `gpuscope_gpu_xid_age_seconds < 300 and on (instance, uuid) …` needs the right side of a few GPUs. The
# evaluator passes a `LabelFilter` down to the selectors, through every node whose result has the labels of
# its operand (`operand_filters`, `side_filters`). A filter need not be exact: the operator itself drops what
# does not match.

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
        own = signatures(labels, self.matching)
        # The known ones last: they are few, and get the numbers of the first.
        groups = concatenate((own.of_groups, self.known)).groups
        count = len(own.of_groups)
        is_known = np.zeros(len(groups.first), np.bool_)
        is_known[groups.member[count:]] = True
        is_needed = is_known[groups.member[:count]] == self.keeps
        return np.flatnonzero(is_needed[own.groups.member])

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


# The binary operators on arrays. A comparison gives 1 or 0; the caller decides whether it filters.

Operator = Callable[[Floats, Floats], Floats]


def _comparison(compare: np.ufunc) -> Operator:
    def operator(left: Floats, right: Floats) -> Floats:
        outcome: Floats = compare(left, right).astype(np.float64)
        return outcome

    return operator


OPERATORS: dict[str, Operator] = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "/": np.divide,
    "%": np.fmod,
    "^": np.power,
    "atan2": np.arctan2,
    "==": _comparison(np.equal),
    "!=": _comparison(np.not_equal),
    "<": _comparison(np.less),
    "<=": _comparison(np.less_equal),
    ">": _comparison(np.greater),
    ">=": _comparison(np.greater_equal),
}


Index = NDArray[np.intp]


def _match_numbers(left: Frame, right: Frame, matching: Matching, budget: Budget) -> tuple[Index, Index, int]:
    """Return a number for each row of both sides, equal for rows with equal matching labels, and how many
    numbers there are."""
    budget.check()
    groups = concatenate(signatures(side.labels, matching) for side in (left, right)).groups
    count = len(left.labels)
    return groups.member[:count], groups.member[count:], len(groups.first)


def combine_sets(op: str, left: Frame, right: Frame, matching: Matching, budget: Budget) -> Frame:
    """and, or, unless: keep or drop samples; their values do not matter."""
    if op == "or":
        extra = right.present & ~_partner_present(right, left, matching, budget)
        both = Frame(
            concatenate((left.labels, right.labels)),
            np.concatenate([left.values, right.values]),
            np.concatenate([left.present, extra]),
        )
        return both.without_empty_rows().merged()
    partner = _partner_present(left, right, matching, budget)
    present = left.present & (partner if op == "and" else ~partner)
    return Frame(left.labels, left.values, present).without_empty_rows()


def _partner_present(frame: Frame, other: Frame, matching: Matching, budget: Budget) -> Bools:
    """Return where a row of `frame` has a present partner in `other`."""
    numbers, partners, count = _match_numbers(frame, other, matching, budget)
    present = np.zeros((count, frame.present.shape[1]), dtype=np.bool_)
    if len(partners):
        order = np.argsort(partners, kind="stable")
        first = np.flatnonzero(np.diff(partners[order], prepend=-1))
        present[partners[order[first]]] = np.logical_or.reduceat(other.present[order], first, axis=0)
    return present[numbers]


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Row numbers of the many and the one side, the match of each pair, and the labels of the result."""

    many: Index
    one: Index
    match: Index
    labels: LabelColumns


def combine(expr: Binary, left: Frame, right: Frame, budget: Budget) -> Frame:
    """Apply an arithmetic or comparison operator to the samples of matching series."""
    op, matching, returns_bool = expr.op, expr.matching, expr.returns_bool
    swapped = matching.many == "right"
    many, one = (right, left) if swapped else (left, right)
    # At a step where one side is empty nothing matches, and nothing is an error.
    active: Bools = np.logical_and(many.present.any(axis=0), one.present.any(axis=0))
    many_match, one_match, count = _match_numbers(many, one, matching, budget)
    _check_unique(one, one_match, matching, active, "left" if swapped else "right", budget)
    pairs = _pair_up(many, one, many_match, one_match, count, expr, budget)
    budget.reserve(len(pairs.labels) * len(active))
    present = many.present[pairs.many] & one.present[pairs.one]
    first, second = many.values[pairs.many], one.values[pairs.one]
    if swapped:
        first, second = second, first
    values = OPERATORS[op](first, second)
    # An ambiguous match is an error even if the comparison filters it out, as in Prometheus.
    if matching.many is None:
        _check_one_to_one(pairs, present)
    else:
        _check_grouped(pairs, present)
    if op in COMPARISONS and not returns_bool:
        present &= values != 0
        values = first
    return Frame(pairs.labels, values, present).without_empty_rows().merged()


def _pair_up(
    many: Frame, one: Frame, many_match: Index, one_match: Index, count: int, expr: Binary, budget: Budget
) -> _Pairs:
    partners = np.bincount(one_match, minlength=count)[many_match]
    several = int(np.maximum(partners - 1, 0).sum())
    if several:  # no error if they are present at different steps, but the pairs multiply
        budget.charge_labels(0, is_ascii=True, sets=several)
    order = np.argsort(one_match, kind="stable")
    begin = np.searchsorted(one_match[order], many_match)
    many_rows = np.repeat(np.arange(len(many_match)), partners)
    # The k-th pair of a row of the many side has the row's k-th partner.
    k = np.arange(len(many_rows)) - np.repeat(np.cumsum(partners) - partners, partners)
    one_rows = order[begin[many_rows] + k]
    drops_name = expr.op not in COMPARISONS or expr.returns_bool
    labels = _result_labels(many.labels, one.labels, many_rows, one_rows, expr.matching, drops_name)
    return _Pairs(many_rows, one_rows, many_match[many_rows], labels)


def _result_labels(
    many: LabelColumns,
    one: LabelColumns,
    many_rows: Index,
    one_rows: Index,
    matching: Matching,
    drops_name: bool,
) -> LabelColumns:
    result = many.drop(label_sets.IDENTITY) if drops_name else many
    if matching.many is None:
        result = result.keep(matching.labels) if matching.on else result.drop(matching.labels)
    is_once = len(many_rows) < 2 or bool((many_rows[1:] > many_rows[:-1]).all())
    result = result.take(many_rows) if is_once else result.repeat(many_rows)
    if matching.include:
        result, source = unified(result, one.keep(matching.include))
        for name in matching.include:
            result = result.with_column(name, source.column(name)[one_rows])
    return result


def _check_unique(
    one: Frame, one_match: Index, matching: Matching, active: Bools, side: str, budget: Budget
) -> None:
    order = np.argsort(one_match, kind="stable")
    first = np.flatnonzero(np.diff(one_match[order], prepend=-1))
    if len(first) == len(order):
        return
    budget.check()
    several = (np.add.reduceat(one.present[order], first, axis=0, dtype=np.int64) > 1) & active
    ambiguous = order[first[several.any(axis=1)]]
    if not ambiguous.size:
        return
    row = int(ambiguous.min())
    members = np.flatnonzero(one_match == one_match[row])
    step = int(np.argmax((one.present[members].sum(axis=0) > 1) & active))
    twice = [label_sets.render(one.labels[m]) for m in members.tolist() if one.present[m, step]][:2]
    key = label_sets.render(signatures(one.labels, matching)[row])
    raise ExecutionError(
        f"many-to-many matching not allowed: {key} has several series on the {side} "
        f"side: {', '.join(twice)}; matching labels must be unique on one side"
    )


def _check_one_to_one(pairs: _Pairs, present: Bools) -> None:
    if _several(pairs.match, present):
        raise ExecutionError(
            "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
        )


def _check_grouped(pairs: _Pairs, present: Bools) -> None:
    if pairs.labels.distinct:
        return
    key = pairs.labels.groups.member * (int(pairs.match.max(initial=0)) + 1) + pairs.match
    if _several(key, present):
        raise ExecutionError("multiple matches for labels: grouping labels must ensure unique matches")


def _several(group: Index, present: Bools) -> bool:
    """Return whether two rows of one group are present at the same step."""
    order = np.argsort(group, kind="stable")
    ordered = group[order]
    first = np.flatnonzero(np.diff(ordered, prepend=-1))
    if len(first) == len(group):
        return False
    together = np.add.reduceat(present[order], first, axis=0, dtype=np.int64)
    return bool((together > 1).any())
