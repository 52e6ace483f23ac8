"""Sums over windows, the *_over_time functions, changes and resets: one number per window.

Each function returns values and where they are present; a window without samples has no result. Results equal
those of Prometheus including rounding: sums are compensated, and min and max ignore NaN if there are other
values.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gpuscope.history.promql.budget import check_running
from gpuscope.history.promql.frame import Bools, Floats, Ints, SampleColumns, Windows, groups_of_equal_length

# Compensated sums and means over windows, with the results of Prometheus.
#
# A plain sum of 1, 1e100, 1, -1e100 is 0; Prometheus returns 2. So each running sum also adds up the rounding
# error of every addition (Kahan summation in Neumaier's form; Knuth's branch-free two-sum gives the same
# error term).

# Above this, another order of summation might overflow where Prometheus' order does not; also for NaN.
_LARGE = 1e290
# Shorter windows, and windows that hardly overlap, are summed one by one: preparing blocks would cost more.
_SHORT = 32
_OVERLAP = 3


def add(increment: Floats, total: Floats, error: Floats) -> None:
    """Add `increment` to `total` in place, and the rounding error to `error`."""
    new = total + increment
    part = new - total
    error += (total - (new - part)) + (increment - part)
    infinite = np.isinf(new)
    if infinite.any():
        error[infinite] = 0.0
    total[...] = new


def window_sums(values: Floats, low: Ints, counts: Ints) -> Floats:
    total, error = _totals(values, low, counts)
    return total + error


def window_means(values: Floats, low: Ints, counts: Ints) -> Floats:
    """Return sum / count; if the sum overflows, the running mean instead."""
    total, error = _totals(values, low, counts)
    means = total / counts + error / counts
    for i in np.flatnonzero(np.isinf(total)):
        check_running()
        means[i] = _mean_of_large(values[low[i] : low[i] + counts[i]])
    return means


def _totals(values: Floats, low: Ints, counts: Ints) -> tuple[Floats, Floats]:
    """Return each window's sum and its rounding error."""
    longest = int(counts.max())
    overlapping = int(counts.sum()) > _OVERLAP * values.size
    if longest < _SHORT or not overlapping or not (np.abs(values) < _LARGE).all():
        return _totals_in_order(values, low, counts)
    return _totals_by_blocks(values, low, counts, longest)


def _totals_in_order(values: Floats, low: Ints, counts: Ints) -> tuple[Floats, Floats]:
    columns = SampleColumns(low, counts)
    total, error = np.zeros(counts.size), np.zeros(counts.size)
    for active, index in columns:
        add(values[index], total[:active], error[:active])
    return columns.restore(total), columns.restore(error)


def _totals_by_blocks(values: Floats, low: Ints, counts: Ints, block: int) -> tuple[Floats, Floats]:
    """Sum long, overlapping windows: each is the tail of a block and the head of the next, both precomputed.

    Blocks are as long as the longest window, so a window ends in the block where it starts or in the next one.
    The work does not grow with the overlap; only the few windows inside one block are summed individually.
    """
    padded = np.zeros(-(-values.size // block) * block)
    padded[: values.size] = values
    blocks = padded.reshape(-1, block)
    heads, head_errors = _running(blocks)
    tails, tail_errors = _running(blocks[:, ::-1])
    last = low + counts - 1
    begins, ends = low // block, last // block
    tail, head = block - 1 - low % block, last % block
    total, error = tails[tail, begins], tail_errors[tail, begins]
    extra_error = head_errors[head, ends]
    add(heads[head, ends], total, error)
    error += extra_error
    inside = np.flatnonzero(begins == ends)
    if inside.size:
        total[inside], error[inside] = _totals_in_order(values, low[inside], counts[inside])
    return total, error


def _running(blocks: Floats) -> tuple[Floats, Floats]:
    """Return running sums and errors along each row; transposed, so that each step writes contiguous memory."""
    total, error = np.zeros(len(blocks)), np.zeros(len(blocks))
    totals, errors = np.empty(blocks.shape[::-1]), np.empty(blocks.shape[::-1])
    for k in range(blocks.shape[1]):
        if k % 1024 == 0:
            check_running()
        add(blocks[:, k], total, error)
        totals[k], errors[k] = total, error
    return totals, errors


def sum_rows(rows: Floats) -> tuple[Floats, Floats]:
    """Return the sum of all rows and its rounding error; pairwise, in about log2(len(rows)) steps.

    Sums in order if an intermediate sum may overflow: then the order determines the result.
    """
    if not (np.abs(rows) < _LARGE).all():
        total, error = rows[0].copy(), np.zeros(rows.shape[1:])
        for number, row in enumerate(rows[1:]):
            if number % 1024 == 0:
                check_running()
            add(row, total, error)
        return total, error
    totals, errors = rows, np.zeros(rows.shape)
    while len(totals) > 1:
        half = len(totals) // 2
        left, left_errors = totals[:half].copy(), errors[:half].copy()
        add(totals[half : 2 * half], left, left_errors)
        left_errors += errors[half : 2 * half]
        odd = slice(2 * half, None)
        totals, errors = np.concatenate([left, totals[odd]]), np.concatenate([left_errors, errors[odd]])
    return totals[0], errors[0]


def _mean_of_large(values: Floats) -> float:
    """Return the mean of numbers whose sum overflows (or that contain an infinity)."""
    total, error, mean = float(values[0]), 0.0, 0.0
    incremental = False
    for k, value in enumerate(values[1:].tolist(), start=2):
        if not incremental:
            new, new_error = _scalar_add(value, total, error)
            if not np.isinf(new):
                total, error = new, new_error
                continue
            incremental = True
            mean, error = total / (k - 1), error / (k - 1)
        share = (k - 1) / k
        mean, error = _scalar_add(value / k, share * mean, share * error)
    if incremental:
        return mean + error
    return total / len(values) + error / len(values)


def _scalar_add(increment: float, total: float, error: float) -> tuple[float, float]:
    new = total + increment
    if np.isinf(new):
        return new, 0.0
    if abs(total) >= abs(increment):
        return new, error + ((total - new) + increment)
    return new, error + ((increment - new) + total)


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
        add(delta / k, mean[here], mean_error[here])
        add(delta * (value - (mean[here] + mean_error[here])), square[here], square_error[here])
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
