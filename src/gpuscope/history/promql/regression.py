"""deriv and predict_linear: the least-squares line through each window's samples."""

from __future__ import annotations

import numpy as np

from gpuscope.history.promql import sums
from gpuscope.history.promql.frame import Bools, Floats, Ints
from gpuscope.history.promql.windows import SampleColumns, Windows


def derivative(windows: Windows) -> tuple[Floats, Bools]:
    present = windows.counts >= 2
    # Time starts at the window's first sample: seconds since 1970 would lose nine digits of precision.
    low = windows.low[present]
    slope, _ = _line(windows, low, windows.counts[present], windows.timestamps[low])
    values = np.zeros(present.shape)
    values[present] = slope
    return values, present


def prediction(windows: Windows, ahead: Floats, now: Ints) -> tuple[Floats, Bools]:
    """Return the line's value `ahead` seconds after each step's evaluation time `now` (one each per step)."""
    present = windows.counts >= 2
    origin = np.broadcast_to(now, present.shape)[present]
    slope, intercept = _line(windows, windows.low[present], windows.counts[present], origin)
    values = np.zeros(present.shape)
    values[present] = slope * np.broadcast_to(ahead, present.shape)[present] + intercept
    return values, present


def _line(windows: Windows, low: Ints, counts: Ints, origin: Ints) -> tuple[Floats, Floats]:
    """Return slope per second and value at `origin` of each window's line."""
    columns = SampleColumns(low, counts)
    size = counts.size
    x, x_error, y, y_error = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    xy, xy_error, xx, xx_error = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    zero = origin[columns.order]
    first = windows.values[low[columns.order]]
    constant = np.ones(size, dtype=np.bool_)
    for active, index in columns:
        here = slice(0, active)
        time = (windows.timestamps[index] - zero[here]) / 1000
        value = windows.values[index]
        constant[here] &= value == first[here]
        sums.add(time, x[here], x_error[here])
        sums.add(value, y[here], y_error[here])
        sums.add(time * value, xy[here], xy_error[here])
        sums.add(time * time, xx[here], xx_error[here])
    n = counts[columns.order].astype(np.float64)
    sum_x, sum_y = x + x_error, y + y_error
    covariance = (xy + xy_error) - sum_x * sum_y / n
    slope = covariance / ((xx + xx_error) - sum_x * sum_x / n)
    intercept = sum_y / n - slope * sum_x / n
    level = np.where(np.isinf(first), np.nan, first)
    slope = np.where(constant, np.where(np.isinf(first), np.nan, 0.0), slope)
    intercept = np.where(constant, level, intercept)
    return columns.restore(slope), columns.restore(intercept)
