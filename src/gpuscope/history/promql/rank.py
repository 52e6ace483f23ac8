"""topk, bottomk and count_values: aggregations whose result is not one row per group."""

from __future__ import annotations

import numpy as np

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql.aggregate import Groups, group_rows
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.frame import Floats, Frame
from gpuscope.history.promql.label_functions import check_label_name
from gpuscope.history.promql.numeric import number_text
from gpuscope.history.promql.query_errors import ExecutionError
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Labels

_NUMBER_CHARACTERS = 24
"""Length of most numbers; a few have up to 330 characters."""


def top_or_bottom(frame: Frame, groups: Groups, k: Floats, *, largest: bool) -> Frame:
    """Keep at each step the k largest (or smallest) samples of every group; NaN comes last.

    The rows are ordered by group and, for a single step, by value: an instant query returns them in this order.
    """
    if not k.size or k.max() < 1:  # False for NaN
        return Frame.empty(frame.values.shape[1])
    _check_counts(k)
    wanted = np.trunc(k)
    groups.budget.reserve_copy(4 * frame.values.size)  # positions and masks of a group, and the result
    rows: list[int] = []
    masks = []
    for begin, end in groups.spans():
        members = groups.order[begin:end]
        values, present = frame.values[members], frame.present[members]
        order = np.argsort(-values if largest else values, axis=0, kind="stable")
        absent_last = np.argsort(~np.take_along_axis(present, order, axis=0), axis=0, kind="stable")
        order = np.take_along_axis(order, absent_last, axis=0)
        chosen = np.arange(len(members))[:, None] < wanted
        keep = np.zeros(present.shape, dtype=np.bool_)
        np.put_along_axis(keep, order, chosen, axis=0)
        keep &= present
        shown = order[:, 0] if values.shape[1] == 1 else np.arange(len(members))
        rows.extend(members[shown].tolist())
        masks.append(keep[shown])
    if not rows:
        return Frame.empty(frame.values.shape[1])
    picked = frame.rows(rows)
    return Frame(picked.labels, picked.values, np.concatenate(masks)).without_empty_rows()


def _check_counts(k: Floats) -> None:
    """Raise Prometheus' errors, which clients may look for."""
    if np.isnan(k).any():
        raise ExecutionError("Parameter value is NaN")
    for number, wrong in ((k.min(), "underflows"), (k.max(), "overflows")):
        if abs(number) >= 2.0**63:
            raise ExecutionError(f"Scalar value {number_text(float(number))} {wrong} int64")


def count_values(frame: Frame, label: str, grouping: tuple[str, ...], without: bool, budget: Budget) -> Frame:
    """Count the series of a group that have each value; the value as text becomes the label `label`."""
    check_label_name(label, 'invalid label name "{}" in count_values()')
    budget.charge(6 * int(np.count_nonzero(frame.present)))  # rows, steps, values, and memory for sorting
    row, step = np.nonzero(frame.present)
    bits, kind = np.unique(frame.values[row, step].view(np.int64), return_inverse=True)
    budget.charge_labels(len(bits) * _NUMBER_CHARACTERS, is_ascii=True, sets=len(bits))
    texts = [number_text(value) for value in budget.watch(bits.view(np.float64).tolist())]
    kept_names = grouping if without else tuple(sorted({*grouping, label}))
    # One number per pair of row and value: numpy sorts numbers much faster than pairs.
    pairs, pair_of = np.unique(row * len(bits) + kind, return_inverse=True)
    budget.charge_labels(0, is_ascii=True, sets=2 * len(pairs))  # with the value, and as the group's key
    labels = list(frame.labels)
    source: list[Labels] = [
        label_sets.assign(labels[pair // len(bits)], label, texts[pair % len(bits)])
        for pair in budget.watch(pairs.tolist())
    ]
    groups = group_rows(LabelColumns.of(source), kept_names, without, budget)
    group_of_pair = np.empty(len(source), dtype=np.intp)
    group_of_pair[groups.order] = np.repeat(np.arange(len(groups.labels)), groups.sizes)
    budget.reserve(len(groups.labels) * frame.values.shape[1])
    counts = np.zeros((len(groups.labels), frame.values.shape[1]))
    np.add.at(counts, (group_of_pair[pair_of], step), 1.0)
    return Frame(groups.labels, counts, counts > 0)
