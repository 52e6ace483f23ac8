"""Classic histograms: compute a quantile or a fraction of the observations from buckets.

A bucket is a series with an upper bound in the label `le` and a cumulative count. The existing buckets can
change from step to step, so steps with the same buckets are computed together. Native histograms are not
supported.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.frame import Bools, Floats, Frame
from gpuscope.history.promql.result import Annotations
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Labels

BOUND = "le"
FORCED_MONOTONICITY = (
    "input to histogram_quantile needed to be fixed for monotonicity"
    " (see https://prometheus.io/docs/prometheus/latest/querying/functions/#histogram_quantile)"
)
# Counts with a smaller relative difference differ only by rounding.
SAME_COUNT = 1e-12
_SMALLEST_NORMAL = 2.0**-1022

Solve = Callable[[Floats, Floats, NDArray[np.intp]], Floats]
"""bounds, counts (bucket by step), indices of the steps -> one number per step."""


@dataclass(frozen=True, slots=True)
class _Histogram:
    """The rows of one histogram in a frame, by ascending bound."""

    labels: Labels
    rows: list[int]
    bounds: Floats


def quantile(rank: Floats, frame: Frame, annotations: Annotations, budget: Budget) -> Frame:
    """Return the value below which a share `rank` (one per step) of the observations lies."""
    annotations.warn_of_quantile(rank)

    def solve(bounds: Floats, counts: Floats, steps: NDArray[np.intp]) -> Floats:
        fixed, forced = _monotonic(counts)
        here = rank[steps]
        if (forced & (here >= 0) & (here <= 1)).any():
            annotations.info(FORCED_MONOTONICITY)
        return _quantiles(here, bounds, fixed)

    # As in Prometheus, which checks the rank before it looks for the bucket +Inf.
    open_ended = np.where(rank < 0, -np.inf, np.where(rank > 1, np.inf, np.nan))
    return _solve_each(frame, annotations, solve, budget, open_ended)


def fraction(lower: Floats, upper: Floats, frame: Frame, annotations: Annotations, budget: Budget) -> Frame:
    """Return the share of the observations between `lower` and `upper` (one each per step)."""

    def solve(bounds: Floats, counts: Floats, steps: NDArray[np.intp]) -> Floats:
        return _fractions(lower[steps], upper[steps], bounds, counts)

    return _solve_each(frame, annotations, solve, budget, np.full(frame.values.shape[1], np.nan))


def _solve_each(
    frame: Frame, annotations: Annotations, solve: Solve, budget: Budget, open_ended: Floats
) -> Frame:
    """`open_ended` is the result, one per step, if there is no bucket +Inf."""
    histograms = list(_histograms(frame, annotations, budget))
    values = np.full((len(histograms), frame.values.shape[1]), np.nan)
    present = np.zeros(values.shape, dtype=np.bool_)
    for row, histogram in enumerate(histograms):
        there = frame.present[histogram.rows]
        present[row] = there.any(axis=0)
        for buckets, steps in _equal_columns(there):
            budget.check()
            if not buckets.any():
                continue
            bounds = histogram.bounds[buckets]
            counts = frame.values[histogram.rows][buckets][:, steps]
            if bounds[-1] == np.inf:
                values[row, steps] = solve(*_coalesce(bounds, counts), steps)
            else:
                values[row, steps] = open_ended[steps]
    labels = LabelColumns.of([histogram.labels for histogram in histograms])
    return Frame(labels, values, present).without_empty_rows().merged()


def _histograms(frame: Frame, annotations: Annotations, budget: Budget) -> Iterator[_Histogram]:
    by_labels: dict[Labels, list[tuple[float, int]]] = defaultdict(list)
    for row, labels in enumerate(budget.watch(frame.labels)):
        text = label_sets.get(labels, BOUND)
        bound = parse_bound(text)
        if bound is None:
            shown = label_sets.quote(label_sets.truncate(text))
            annotations.warn(f'bucket label "{BOUND}" is missing or has a malformed value of {shown}')
            continue
        by_labels[label_sets.drop(labels, (BOUND,))].append((bound, row))
    for labels, buckets in budget.watch(by_labels.items()):
        buckets.sort()
        bounds = np.array([bound for bound, _ in buckets])
        yield _Histogram(label_sets.drop_name(labels), [row for _, row in buckets], bounds)


def parse_bound(text: str) -> float | None:
    """Parse a bound like Go: no spaces, no digit separators; hexadecimal floats are allowed."""
    if "_" in text or text != text.strip():
        return None
    try:
        return float.fromhex(text) if "x" in text.lower() else float(text)
    except (ValueError, OverflowError):
        return None


def _equal_columns(there: Bools) -> Iterator[tuple[Bools, NDArray[np.intp]]]:
    """Yield each distinct set of present rows, and the steps that have it."""
    if there.all():
        yield there[:, 0], np.arange(there.shape[1])
        return
    patterns, which = np.unique(there, axis=1, return_inverse=True)
    for number in range(patterns.shape[1]):
        yield patterns[:, number], np.flatnonzero(which.ravel() == number)


def _coalesce(bounds: Floats, counts: Floats) -> tuple[Floats, Floats]:
    """Add up buckets with equal bounds (le="1" and le="1.0")."""
    distinct, first = np.unique(bounds, return_index=True)
    if len(distinct) == len(bounds):
        return bounds, counts
    return distinct, np.add.reduceat(counts, first, axis=0)


def _monotonic(counts: Floats) -> tuple[Floats, Bools]:
    """Return counts that never decrease, and the steps at which more than rounding was corrected."""
    fixed = counts.copy()
    forced = np.zeros(counts.shape[1], dtype=np.bool_)
    before = fixed[0].copy()
    for row in fixed[1:]:
        same = _almost_equal(before, row)
        falls = ~same & (row < before)
        forced |= falls
        np.copyto(row, before, where=same | falls)
        before = row.copy()
    return fixed, forced


def _almost_equal(a: Floats, b: Floats) -> Bools:
    total = np.abs(a) + np.abs(b)
    difference = np.abs(a - b)
    tiny = (a == 0) | (b == 0) | (total < _SMALLEST_NORMAL)
    largest = np.finfo(np.float64).max
    close = np.where(
        tiny, difference < SAME_COUNT * _SMALLEST_NORMAL, difference / np.minimum(total, largest) < SAME_COUNT
    )
    equal: Bools = (a == b) | (np.isnan(a) & np.isnan(b)) | close
    return equal


def _quantiles(rank: Floats, bounds: Floats, counts: Floats) -> Floats:
    special = np.where(rank < 0, -np.inf, np.where(rank > 1, np.inf, np.nan))
    if len(bounds) < 2:
        return np.where((rank < 0) | (rank > 1), special, np.nan)
    observations = counts[-1]
    wanted = rank * observations
    bucket = _first_reaching(counts[:-1], wanted)
    highest = bucket == len(bounds) - 1
    inside = np.minimum(bucket, len(bounds) - 2)
    step = np.arange(counts.shape[1])
    below = inside - 1
    start = np.where(inside > 0, bounds[below], 0.0)
    before = np.where(inside > 0, counts[below, step], 0.0)
    within = counts[inside, step] - before
    interpolated = start + (bounds[inside] - start) * ((wanted - before) / within)
    lowest_not_positive = (bucket == 0) & (bounds[0] <= 0)
    result = np.where(lowest_not_positive, bounds[0], interpolated)
    result = np.where(highest, bounds[-2], result)
    result = np.where(observations == 0, np.nan, result)
    return np.where(np.isnan(rank) | (rank < 0) | (rank > 1), special, result)


def _first_reaching(counts: Floats, wanted: Floats) -> NDArray[np.intp]:
    """Return for each step the first bucket with at least `wanted`, by binary search because of NaN counts."""
    low = np.zeros(counts.shape[1], dtype=np.intp)
    high = np.full(counts.shape[1], len(counts), dtype=np.intp)
    step = np.arange(counts.shape[1])
    while (open_ := low < high).any():
        middle = (low + high) // 2
        reaches = counts[np.minimum(middle, len(counts) - 1), step] >= wanted
        low = np.where(open_ & ~reaches, middle + 1, low)
        high = np.where(open_ & reaches, middle, high)
    return low


def _fractions(lower: Floats, upper: Floats, bounds: Floats, counts: Floats) -> Floats:
    total = counts[-1]
    share = (_rank_of(upper, bounds, counts) - _rank_of(lower, bounds, counts)) / total
    share = np.where(lower >= upper, 0.0, share)
    return np.where((total == 0) | np.isnan(lower) | np.isnan(upper), np.nan, share)


def _rank_of(value: Floats, bounds: Floats, counts: Floats) -> Floats:
    """Return how many observations are below `value`, by linear interpolation inside its bucket.

    The lowest bucket starts at 0. If its bound is not positive, it has no width to interpolate in.
    """
    rank = counts[-1].copy()
    settled = np.zeros(value.shape, dtype=np.bool_)
    before = np.zeros(value.shape)
    below = 0.0 if bounds[0] > 0 else -np.inf
    for bound, count in zip(bounds, counts, strict=True):
        at_edge = ~settled & (below >= value)
        rank = np.where(at_edge, before, rank)
        settled |= at_edge
        inside = ~settled & (below < value) & (bound > value)
        share = 1.0 if below == -np.inf else (value - below) / (bound - below)
        rank = np.where(inside, before + (count - before) * share, rank)
        settled |= inside
        before, below = count, bound
    limited: Floats = np.where(rank > counts[-1], counts[-1], rank)
    return limited
