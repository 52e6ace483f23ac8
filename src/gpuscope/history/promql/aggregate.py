"""sum, avg, min, max, count, group, stddev, stdvar, quantile: one result per group of series.

Rows are ordered by group first. A group without a sample at a step has no result there. Sums are compensated
and add the rows of a group in order, as in Prometheus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql import over_time
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.frame import Bools, Floats, Frame, Ints, SampleColumns
from gpuscope.history.promql.labels import check_label_name
from gpuscope.history.promql.numeric import number_text
from gpuscope.history.promql.syntax import ExecutionError
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Labels

# Larger groups are summed pairwise, one by one; smaller ones are summed together, row by row.
_LARGE_GROUP = 64


@dataclass(frozen=True, slots=True)
class Groups:
    """`order` puts the rows of a group side by side; group g is order[starts[g] : starts[g + 1]]."""

    labels: LabelColumns
    order: NDArray[np.intp]
    starts: NDArray[np.intp]
    budget: Budget

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield start and end of each group in `order`."""
        return pairwise(self.budget.watch(self.starts.tolist()))

    @property
    def sizes(self) -> NDArray[np.intp]:
        return np.diff(self.starts)


def group_rows(rows: LabelColumns, grouping: tuple[str, ...], without: bool, budget: Budget) -> Groups:
    budget.check()
    keys = rows.drop((*grouping, label_sets.METRIC_NAME)) if without else rows.keep(grouping)
    groups = keys.groups
    count = len(groups.first)
    # numpy sorts 16-bit integers by radix sort, in linear time.
    order = np.argsort(groups.member.astype(np.uint16) if count < 65536 else groups.member, kind="stable")
    starts = np.searchsorted(groups.member[order], np.arange(count + 1))
    return Groups(keys.of_groups, order, starts, budget)


def aggregate(op: str, frame: Frame, groups: Groups, param: Floats | None) -> Frame:
    """Return one row per group. `param` is the quantile at each step; None for other operators."""
    if not frame.labels:
        return Frame.empty(frame.values.shape[1])
    groups.budget.reserve_copy(4 * frame.values.size)  # ordered and filled values, sums and their errors
    values, present = frame.values[groups.order], frame.present[groups.order]
    counts = np.add.reduceat(present, groups.starts[:-1], axis=0, dtype=np.int64)
    if param is not None:
        result = _per_cell(values, present, groups, counts, _quantile(param, counts))
    else:
        result = _OPERATIONS[op](values, present, groups, counts)
    return Frame(groups.labels, result, counts > 0).without_empty_rows()


def _count(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    return counts.astype(np.float64)


def _group(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    return np.ones(counts.shape)


def _minimum(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    return np.fmin.reduceat(np.where(present, values, np.nan), groups.starts[:-1], axis=0)


def _maximum(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    return np.fmax.reduceat(np.where(present, values, np.nan), groups.starts[:-1], axis=0)


def _sum(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    total, error = _totals(values, present, groups)
    return total + error


def _mean(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    total, error = _totals(values, present, groups)
    if np.isinf(total).any():
        # A sum that overflows is rare, so the slow path is sufficient.
        return _per_cell(values, present, groups, counts, over_time.window_means)
    return total / counts + error / counts


def _totals(values: Floats, present: Bools, groups: Groups) -> tuple[Floats, Floats]:
    """Return the compensated sum of each group, and its error term."""
    filled = np.where(present, values, 0.0)
    sizes = groups.sizes
    total, error = np.empty((len(sizes), values.shape[1])), np.empty((len(sizes), values.shape[1]))
    for group in np.flatnonzero(sizes > _LARGE_GROUP):
        groups.budget.check()
        rows = filled[groups.starts[group] : groups.starts[group + 1]]
        total[group], error[group] = over_time.sum_rows(rows)
    small = np.flatnonzero(sizes <= _LARGE_GROUP)
    if small.size:
        total[small], error[small] = _small_totals(filled, groups.starts[small], sizes[small])
    return total, error


def _small_totals(filled: Floats, first: NDArray[np.intp], sizes: NDArray[np.intp]) -> tuple[Floats, Floats]:
    """Add the groups' k-th rows together, for k = 1, 2, ..."""
    # Largest groups first: then the groups that have a k-th row are always the first ones.
    by_size = np.argsort(-sizes, kind="stable")
    first, sizes = first[by_size], sizes[by_size]
    total = filled[first]
    error = np.zeros(total.shape)
    for k in range(1, int(sizes[0])):
        active = int(np.searchsorted(-sizes, -k, side="left"))
        over_time.add(filled[first[:active] + k], total[:active], error[:active])
    back = np.argsort(by_size, kind="stable")
    return total[back], error[back]


def _per_cell(values: Floats, present: Bools, groups: Groups, counts: Ints, kernel: over_time.Kernel) -> Floats:
    """Apply a window kernel to each group's samples at each step."""
    pieces = []
    for begin, end in groups.spans():
        pieces.append(values[begin:end].T[present[begin:end].T])
    flat = np.concatenate(pieces)
    sizes = counts.ravel()
    low = np.cumsum(sizes) - sizes
    alive = sizes > 0
    result = np.zeros(sizes.size)
    if alive.any():
        result[alive] = kernel(flat, low[alive], sizes[alive])
    return result.reshape(counts.shape)


def _quantile(param: Floats, counts: Ints) -> over_time.Kernel:
    return over_time.quantile(np.broadcast_to(param, counts.shape)[counts > 0])


def _variance(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    return _per_cell(values, present, groups, counts, _running_variance)


def _deviation(values: Floats, present: Bools, groups: Groups, counts: Ints) -> Floats:
    return np.sqrt(_variance(values, present, groups, counts))


def _running_variance(values: Floats, low: Ints, counts: Ints) -> Floats:
    """Welford's method without compensation: Prometheus uses it across series, but not over time."""
    columns = SampleColumns(low, counts)
    mean, square = np.zeros(counts.size), np.zeros(counts.size)
    for k, (active, index) in enumerate(columns, start=1):
        here = slice(0, active)
        value = values[index]
        if k == 1:
            mean[here] = value
            square[here] = np.where(np.isfinite(value), 0.0, np.nan)
            continue
        delta = value - mean[here]
        mean[here] += delta / k
        square[here] += delta * (value - mean[here])
    return columns.restore(square / counts[columns.order])


_OPERATIONS: dict[str, Callable[[Floats, Bools, Groups, Ints], Floats]] = {
    "sum": _sum,
    "avg": _mean,
    "min": _minimum,
    "max": _maximum,
    "count": _count,
    "group": _group,
    "stdvar": _variance,
    "stddev": _deviation,
}


# topk, bottomk and count_values: aggregations whose result is not one row per group.

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
