"""Vector matching, and the arithmetic, comparison and set operators between two vectors.

Series are paired by their matching labels once for all steps; `present` decides at which steps a pair has a
result. Two series with equal matching labels are an error only at steps where both are present.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.promql import labels as label_sets
from gpuscope.promql.budget import Budget
from gpuscope.promql.frame import Bools, Frame
from gpuscope.promql.operators import OPERATORS
from gpuscope.promql.query_errors import ExecutionError
from gpuscope.promql.syntax import COMPARISONS, Binary, Matching
from gpuscope.series import Labels

Index = NDArray[np.intp]


def _signature(matching: Matching) -> Callable[[Labels], Labels]:
    if matching.on:
        kept = frozenset(matching.labels)
        return lambda one: label_sets.keep(one, kept)
    dropped = frozenset((*matching.labels, label_sets.METRIC_NAME))
    return lambda one: label_sets.drop(one, dropped)


def _rows_by_signature(frame: Frame, matching: Matching, budget: Budget) -> dict[Labels, list[int]]:
    signature = _signature(matching)
    rows: dict[Labels, list[int]] = defaultdict(list)
    for row, one in enumerate(budget.watch(frame.labels)):
        rows[signature(one)].append(row)
    return rows


def combine_sets(op: str, left: Frame, right: Frame, matching: Matching, budget: Budget) -> Frame:
    """and, or, unless: keep or drop samples; their values do not matter."""
    if op == "or":
        extra = right.present & ~_partner_present(right, left, matching, budget)
        both = Frame(
            left.labels + right.labels,
            np.concatenate([left.values, right.values]),
            np.concatenate([left.present, extra]),
        )
        return both.without_empty_rows().merged(budget)
    partner = _partner_present(left, right, matching, budget)
    present = left.present & (partner if op == "and" else ~partner)
    return Frame(left.labels, left.values, present).without_empty_rows()


def _partner_present(frame: Frame, other: Frame, matching: Matching, budget: Budget) -> Bools:
    """Return where a row of `frame` has a present partner in `other`."""
    partners = _rows_by_signature(other, matching, budget)
    present = np.zeros(frame.present.shape, dtype=np.bool_)
    # By signature, not by row: with `on ()` all rows of `other` are partners of every row.
    for key, rows in budget.watch(_rows_by_signature(frame, matching, budget).items()):
        if key in partners:
            present[rows] = other.present[partners[key]].any(axis=0)
    return present


@dataclass(frozen=True, slots=True)
class _Pairs:
    """Row numbers of the many and the one side, the match of each pair, and the labels of the result."""

    many: Index
    one: Index
    match: Index
    labels: list[Labels]


def combine(expr: Binary, left: Frame, right: Frame, budget: Budget) -> Frame:
    """Apply an arithmetic or comparison operator to the samples of matching series."""
    op, matching, returns_bool = expr.op, expr.matching, expr.returns_bool
    swapped = matching.many == "right"
    many, one = (right, left) if swapped else (left, right)
    # At a step where one side is empty nothing matches, and nothing is an error.
    active: Bools = np.logical_and(many.present.any(axis=0), one.present.any(axis=0))
    one_rows = _rows_by_signature(one, matching, budget)
    _check_unique(one, one_rows, active, "left" if swapped else "right", budget)
    pairs = _pair_up(many, one, one_rows, expr, budget)
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
        _check_grouped(pairs, present, budget)
    if op in COMPARISONS and not returns_bool:
        present &= values != 0
        values = first
    return Frame(pairs.labels, values, present).without_empty_rows().merged(budget)


def _pair_up(
    many: Frame, one: Frame, one_rows: dict[Labels, list[int]], expr: Binary, budget: Budget
) -> _Pairs:
    matching = expr.matching
    signature = _signature(matching)
    numbers: dict[Labels, int] = {}
    pairs: list[tuple[int, int, int]] = []
    labels: list[Labels] = []
    drops_name = expr.op not in COMPARISONS or expr.returns_bool
    for row, many_labels in enumerate(budget.watch(many.labels)):
        key = signature(many_labels)
        partners = one_rows.get(key, ())
        if len(partners) > 1:  # no error if they are present at different steps, but the pairs multiply
            budget.charge_labels(0, is_ascii=True, sets=len(partners) - 1)
        for partner in partners:
            pairs.append((row, partner, numbers.setdefault(key, len(numbers))))
            labels.append(_result_labels(many_labels, one.labels[partner], matching, drops_name))
    table = np.array(pairs, dtype=np.intp).reshape(-1, 3)
    return _Pairs(table[:, 0], table[:, 1], table[:, 2], labels)


def _result_labels(many: Labels, one: Labels, matching: Matching, drops_name: bool) -> Labels:
    result = label_sets.drop_name(many) if drops_name else many
    if matching.many is None:
        if matching.on:
            result = label_sets.keep(result, matching.labels)
        else:
            result = label_sets.drop(result, matching.labels)
    for name in matching.include:
        result = label_sets.assign(result, name, label_sets.get(one, name))
    return result


def _check_unique(one: Frame, rows: dict[Labels, list[int]], active: Bools, side: str, budget: Budget) -> None:
    for key, members in budget.watch(rows.items()):
        if len(members) < 2:
            continue
        several = (one.present[members].sum(axis=0) > 1) & active
        if several.any():
            step = int(np.argmax(several))
            twice = [label_sets.render(one.labels[m]) for m in members if one.present[m, step]][:2]
            raise ExecutionError(
                f"many-to-many matching not allowed: {label_sets.render(key)} has several series on the {side} "
                f"side: {', '.join(twice)}; matching labels must be unique on one side"
            )


def _check_one_to_one(pairs: _Pairs, present: Bools) -> None:
    if _several(pairs.match, present):
        raise ExecutionError(
            "multiple matches for labels: many-to-one matching must be explicit (group_left/group_right)"
        )


def _check_grouped(pairs: _Pairs, present: Bools, budget: Budget) -> None:
    numbers: dict[tuple[int, Labels], int] = {}
    keys = zip(pairs.match.tolist(), budget.watch(pairs.labels), strict=True)
    result = np.array([numbers.setdefault(key, len(numbers)) for key in keys], dtype=np.intp)
    if _several(result, present):
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
