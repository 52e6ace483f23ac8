"""The *_over_time functions, changes and resets: one number per window.

Each function returns values and where they are present; a window without samples has no result. Results equal
those of Prometheus including rounding: sums are compensated, and min and max ignore NaN if there are other
values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope.history.promql import sums
from gpuscope.history.promql.budget import check_running
from gpuscope.history.promql.frame import Bools, Floats, Ints
from gpuscope.history.promql.windows import SampleColumns, Windows, groups_of_equal_length

# Samples sorted at a time: the samples of each window are copied, and windows overlap.
_MAX_SORTED_SAMPLES = 1_000_000

Kernel = Callable[[Floats, Ints, Ints], Floats]
"""values, low, counts (flat, every count at least 1) -> one number per window."""


def evaluate(windows: Windows, kernel: Kernel) -> tuple[Floats, Bools]:
    counts = windows.counts
    present = counts > 0
    if present.all():
        flat = kernel(windows.values, windows.low.ravel(), counts.ravel())
        return flat.reshape(counts.shape), present
    values = np.zeros(counts.shape)
    if present.any():
        values[present] = kernel(windows.values, windows.low[present], counts[present])
    return values, present


def count(values: Floats, low: Ints, counts: Ints) -> Floats:
    return counts.astype(np.float64)


def present(values: Floats, low: Ints, counts: Ints) -> Floats:
    return np.ones(counts.size)


def first(values: Floats, low: Ints, counts: Ints) -> Floats:
    firsts: Floats = values[low]
    return firsts


def last(values: Floats, low: Ints, counts: Ints) -> Floats:
    lasts: Floats = values[low + counts - 1]
    return lasts


def minimum(values: Floats, low: Ints, counts: Ints) -> Floats:
    return reduce_windows(np.fmin, values, low, counts)


def maximum(values: Floats, low: Ints, counts: Ints) -> Floats:
    return reduce_windows(np.fmax, values, low, counts)


def reduce_windows(operation: np.ufunc, values: Floats, low: Ints, counts: Ints) -> Floats:
    # reduceat needs positions inside the array: one more sample allows the last window to end at the end.
    padded = np.append(values, np.nan)
    edges = np.empty(2 * low.size, dtype=np.int64)
    edges[0::2], edges[1::2] = low, low + counts
    # reduceat also reduces the gaps between windows; that half of its result is ignored.
    reduced: Floats = operation.reduceat(padded, edges)[0::2]
    return reduced


def variance(values: Floats, low: Ints, counts: Ints) -> Floats:
    columns = SampleColumns(low, counts)
    size = counts.size
    mean, mean_error, square, square_error = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    for k, (active, index) in enumerate(columns, start=1):
        here = slice(0, active)
        value = values[index]
        delta = value - (mean[here] + mean_error[here])
        sums.add(delta / k, mean[here], mean_error[here])
        sums.add(delta * (value - (mean[here] + mean_error[here])), square[here], square_error[here])
    n = counts[columns.order]
    return columns.restore((square + square_error) / n)


def deviation(values: Floats, low: Ints, counts: Ints) -> Floats:
    return np.sqrt(variance(values, low, counts))


def quantile(rank: Floats) -> Kernel:
    """Return the kernel for quantiles; `rank` has one number per window."""

    def kernel(values: Floats, low: Ints, counts: Ints) -> Floats:
        result = np.empty(counts.size)
        for length, windows in groups_of_equal_length(counts):
            for chosen in np.array_split(windows, windows.size * length // _MAX_SORTED_SAMPLES + 1):
                check_running()
                samples = values[low[chosen, None] + np.arange(length)]
                result[chosen] = quantile_of_rows(rank[chosen], samples)
        return result

    return kernel


def quantile_of_rows(rank: Floats, samples: Floats) -> Floats:
    """Return the quantile of each row, interpolated between neighbours; NaN is smaller than all numbers."""
    n = samples.shape[1]
    nans = np.isnan(samples).sum(axis=1)
    ordered = np.sort(np.where(np.isnan(samples), -np.inf, samples), axis=1)
    ordered[np.arange(n) < nans[:, None]] = np.nan
    inside = np.where((rank >= 0) & (rank <= 1), rank, 0.0)
    position = inside * (n - 1)
    floor = np.floor(position)
    lower = floor.astype(np.intp)
    upper = np.minimum(lower + 1, n - 1)
    weight = position - floor
    row = np.arange(samples.shape[0])
    between = ordered[row, lower] * (1 - weight) + ordered[row, upper] * weight
    result = np.where(rank < 0, -np.inf, np.where(rank > 1, np.inf, between))
    return np.where(np.isnan(rank), np.nan, result)


def changes(windows: Windows) -> Kernel:
    value, before = windows.values[1:], windows.values[:-1]
    differs = (value != before) & ~(np.isnan(value) & np.isnan(before))
    return _count_of_steps(differs)


def resets(windows: Windows) -> Kernel:
    return _count_of_steps(windows.values[1:] < windows.values[:-1])


def _count_of_steps(marked: Bools) -> Kernel:
    # upto[i]: marked steps that end at position i or earlier. A window's first sample has no step before it.
    upto = np.zeros(marked.size + 1, dtype=np.int64)
    np.cumsum(marked, out=upto[1:])

    def kernel(values: Floats, low: Ints, counts: Ints) -> Floats:
        between: Floats = (upto[low + counts - 1] - upto[low]).astype(np.float64)
        return between

    return kernel
