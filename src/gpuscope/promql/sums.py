"""Compensated sums and means over windows, exact where Prometheus is.

A plain sum of 1, 1e100, 1, -1e100 is 0; Prometheus says 2. So each running sum carries the rounding error of
every addition (Kahan's idea, Neumaier's form; Knuth's branch-free two-sum gives the same error term).
"""

from __future__ import annotations

import numpy as np

from gpuscope.promql.frame import Floats, Ints
from gpuscope.promql.windows import Columns


def add(increment: Floats, total: Floats, error: Floats) -> None:
    """total += increment in place; what the rounding lost goes to `error`."""
    new = total + increment
    part = new - total
    error += (total - (new - part)) + (increment - part)
    infinite = np.isinf(new)
    if infinite.any():
        error[infinite] = 0.0
    total[...] = new


def window_sums(values: Floats, low: Ints, counts: Ints) -> Floats:
    columns = Columns(low, counts)
    total, error = np.zeros(counts.size), np.zeros(counts.size)
    for active, index in columns:
        add(values[index], total[:active], error[:active])
    return columns.restore(total + error)


def window_means(values: Floats, low: Ints, counts: Ints) -> Floats:
    """Sum over count; where the sum overflows, the mean is carried along instead."""
    columns = Columns(low, counts)
    total, error = np.zeros(counts.size), np.zeros(counts.size)
    for active, index in columns:
        add(values[index], total[:active], error[:active])
    n = counts[columns.order]
    means = columns.restore(total / n + error / n)
    overflowed = np.flatnonzero(columns.restore(np.isinf(total).astype(np.float64)))
    for i in overflowed:
        means[i] = _mean_of_large(values[low[i] : low[i] + counts[i]])
    return means


def _mean_of_large(values: Floats) -> float:
    """The mean of numbers whose sum leaves the range of a double (or that hold an infinity)."""
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
