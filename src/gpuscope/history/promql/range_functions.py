"""Functions of a range vector: the kernel of each, and the labels of the result.

They drop the metric name, except last_over_time and first_over_time. Unlike functions of an instant vector they
do not merge series that then have equal labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from gpuscope.history.promql import labels as label_sets
from gpuscope.history.promql import over_time
from gpuscope.history.promql.frame import (
    SAME_LABELS,
    AxisWindows,
    Bools,
    Floats,
    Frame,
    Ints,
    SampleColumns,
    Steps,
    Windows,
)
from gpuscope.history.promql.syntax import ExecutionError, Expr, FunctionCall

if TYPE_CHECKING:
    from gpuscope.history.promql.evaluate import Evaluator

# rate, increase, delta, irate, idelta: the change of a series inside each window.
#
# The difference between the last and the first sample is extrapolated to the window's edges as in Prometheus
# 3.x: to the edge if the samples are close enough to it, else by half the average sample distance, and for a
# counter not beyond the point where it would be zero. A decrease of a counter is a reset: the value before it
# is added.

_EXTRAPOLATION_THRESHOLD = 1.1
_MAX_SAMPLES_PER_WINDOW = 16
"""With fewer samples it is faster to count resets along all samples than to search them for each window."""


def extrapolated(windows: Windows, *, counter: bool, per_second: bool) -> tuple[Floats, Bools]:
    if windows.axes is not None:
        return _extrapolated_by_axis(windows, windows.axes, counter, per_second)
    counts = windows.counts
    present = counts >= 2
    values = np.zeros(counts.shape)
    if not present.any():
        return values, present
    everywhere = bool(present.all())
    where = slice(None) if everywhere else present
    low = windows.low.ravel() if everywhere else windows.low[present]
    last = (windows.high.ravel() if everywhere else windows.high[present]) - 1
    ends = np.broadcast_to(windows.ends, counts.shape)
    ends = ends.ravel() if everywhere else ends[present]
    difference = windows.values[last] - windows.values[low]
    if counter:
        add_resets(windows, low, last, difference)
    factor = extrapolation_factor(windows, low, last, ends, difference, counter)
    if per_second:
        factor /= windows.range_ms / 1000
    result = difference * factor
    values[where] = result.reshape(counts.shape) if everywhere else result
    return values, present


def extrapolation_factor(
    windows: Windows, low: Ints, last: Ints, ends: Ints, difference: Floats, counter: bool
) -> Floats:
    """Return by which factor to extend each window's sampled interval."""
    extent = Extent.of(windows.timestamps[low], windows.timestamps[last], last - low, ends, windows.range_ms)
    to_start = extent.to_start
    if counter:
        nearer, to_zero = _nearer_zero(windows.values[low], difference, extent.sampled, to_start)
        to_start = np.where(nearer, to_zero, to_start)
    return extent.factor(to_start)


class Extent(NamedTuple):
    """Of the samples of a window, in seconds."""

    sampled: Floats
    """From the first to the last sample."""
    to_start: Floats
    """By how much it is extended."""
    to_end: Floats

    @staticmethod
    def of(first: Ints, last: Ints, intervals: Ints, ends: Ints, range_ms: int) -> Extent:
        """Return the extent for the times of the first and the last sample."""
        to_start = (first - (ends - range_ms)) / 1000
        to_end = (ends - last) / 1000
        sampled = (last - first) / 1000
        distance = sampled / intervals
        far = distance * _EXTRAPOLATION_THRESHOLD
        to_start = np.where(to_start >= far, distance / 2, to_start)
        return Extent(sampled, to_start, np.where(to_end >= far, distance / 2, to_end))

    def factor(self, to_start: Floats) -> Floats:
        factor: Floats = (self.sampled + to_start + self.to_end) / self.sampled
        return factor


def _nearer_zero(
    first_value: Floats, difference: Floats, sampled: Floats, to_start: Floats
) -> tuple[Bools, Floats]:
    """Return in which windows a counter was zero after their extended start, and how long before its first
    sample."""
    to_zero = sampled * (first_value / difference)
    return (difference > 0) & (first_value >= 0) & (to_zero < to_start), to_zero


def _extrapolated_by_axis(
    windows: Windows, axes: AxisWindows, counter: bool, per_second: bool
) -> tuple[Floats, Bools]:
    """As `extrapolated`: what depends only on times is computed once for all series of a scrape."""
    axis, intervals = axes.axis, axes.high - axes.low - 1
    # A window without two samples has no result: its two positions are any that exist.
    low = np.minimum(windows.low, len(windows.values) - 1)
    last = np.maximum(windows.high - 1, low)
    first_value = windows.values.take(low)
    difference = windows.values.take(last) - first_value
    if counter:
        add_resets(windows, low.ravel(), last.ravel(), difference.reshape(-1))
    newest = len(axes.times) - 1
    first_time = axes.times.take(np.minimum(axes.low, newest))
    last_time = axes.times.take(np.maximum(axes.high - 1, 0))
    extent = Extent.of(first_time, last_time, intervals, windows.ends, windows.range_ms)
    factor = extent.factor(extent.to_start)[axis]
    if counter:
        by_series = Extent(*(part[axis] for part in extent))
        nearer, to_zero = _nearer_zero(first_value, difference, by_series.sampled, by_series.to_start)
        if nearer.any():
            factor = by_series.factor(np.where(nearer, to_zero, by_series.to_start))
    if per_second:
        factor /= windows.range_ms / 1000
    return difference * factor, (intervals >= 1)[axis]


def add_resets(windows: Windows, low: Ints, last: Ints, difference: Floats) -> None:
    """Add to `difference`, in time order, the value before each reset inside the window."""
    is_reset = windows.values[1:] < windows.values[:-1]
    resets = np.flatnonzero(is_reset) + 1
    if not resets.size:
        return
    # A reset at position p is in a window if both p - 1 and p are; no window spans two series.
    if len(is_reset) < _MAX_SAMPLES_PER_WINDOW * len(low):
        resets_until = np.zeros(len(windows.values), np.int64)
        np.cumsum(is_reset, out=resets_until[1:])
        begin, end = resets_until.take(low), resets_until.take(last)
    else:
        begin = np.searchsorted(resets, low, side="right")
        end = np.searchsorted(resets, last, side="right")
    with_resets = np.flatnonzero(end > begin)
    position = begin[with_resets]
    while with_resets.size:
        difference[with_resets] += windows.values[resets[position] - 1]
        position += 1
        more = position < end[with_resets]
        with_resets, position = with_resets[more], position[more]


def instant(windows: Windows, *, per_second: bool) -> tuple[Floats, Bools]:
    """Return the difference between a window's last two samples."""
    counts = windows.counts
    present = counts >= 2
    values = np.zeros(counts.shape)
    last = windows.high[present] - 1
    value, before = windows.values[last], windows.values[last - 1]
    difference = value - before
    if per_second:
        difference = np.where(value < before, value, difference)
        difference = difference / ((windows.timestamps[last] - windows.timestamps[last - 1]) / 1000)
    values[present] = difference
    return values, present


# deriv and predict_linear: the least-squares line through each window's samples.


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
        over_time.add(time, x[here], x_error[here])
        over_time.add(value, y[here], y_error[here])
        over_time.add(time * value, xy[here], xy_error[here])
        over_time.add(time * time, xx[here], xx_error[here])
    n = counts[columns.order].astype(np.float64)
    sum_x, sum_y = x + x_error, y + y_error
    covariance = (xy + xy_error) - sum_x * sum_y / n
    slope = covariance / ((xx + xx_error) - sum_x * sum_x / n)
    intercept = sum_y / n - slope * sum_x / n
    level = np.where(np.isinf(first), np.nan, first)
    slope = np.where(constant, np.where(np.isinf(first), np.nan, 0.0), slope)
    intercept = np.where(constant, level, intercept)
    return columns.restore(slope), columns.restore(intercept)


Kernel = Callable[[Windows], tuple[Floats, Bools]]

_COUNTER_SUFFIXES = ("_total", "_sum", "_count", "_bucket")
NOT_A_COUNTER = "metric might not be a counter, name does not end in _total/_sum/_count/_bucket"
_KEEPS_NAME = frozenset({"last_over_time", "first_over_time"})


def _over(kernel: over_time.Kernel) -> Kernel:
    return lambda windows: over_time.evaluate(windows, kernel)


KERNELS: dict[str, Kernel] = {
    "avg_over_time": _over(over_time.window_means),
    "sum_over_time": _over(over_time.window_sums),
    "min_over_time": _over(over_time.minimum),
    "max_over_time": _over(over_time.maximum),
    "count_over_time": _over(over_time.count),
    "present_over_time": _over(over_time.present),
    "first_over_time": _over(over_time.first),
    "last_over_time": _over(over_time.last),
    "stddev_over_time": _over(over_time.deviation),
    "stdvar_over_time": _over(over_time.variance),
    "changes": lambda windows: over_time.evaluate(windows, over_time.changes(windows)),
    "resets": lambda windows: over_time.evaluate(windows, over_time.resets(windows)),
    "rate": lambda windows: extrapolated(windows, counter=True, per_second=True),
    "increase": lambda windows: extrapolated(windows, counter=True, per_second=False),
    "delta": lambda windows: extrapolated(windows, counter=False, per_second=False),
    "irate": lambda windows: instant(windows, per_second=True),
    "idelta": lambda windows: instant(windows, per_second=False),
    "deriv": derivative,
}


def over_range(evaluator: Evaluator, call: FunctionCall, argument: Expr, steps: Steps, kernel: Kernel) -> Frame:
    labels, chunks = evaluator.windows(argument, steps)
    evaluator.budget.reserve(len(labels) * steps.count)
    values = np.empty((len(labels), steps.count))
    present = np.empty(values.shape, dtype=np.bool_)
    for rows, windows in chunks:
        evaluator.budget.check()
        values[rows], present[rows] = kernel(windows)
    frame = Frame(labels, values, present).without_empty_rows()
    if call.name in ("rate", "increase"):
        _annotate_non_counters(evaluator, frame)
    if call.name in _KEEPS_NAME:
        return frame
    nameless = frame.drop_metric_names(evaluator.budget)
    # Unlike functions of an instant vector, these do not merge series that then have equal labels.
    if not nameless.labels.distinct:
        raise ExecutionError(SAME_LABELS)
    return nameless


def _annotate_non_counters(evaluator: Evaluator, frame: Frame) -> None:
    for name in sorted(frame.labels.values(label_sets.METRIC_NAME)):
        if name and not name.endswith(_COUNTER_SUFFIXES):
            evaluator.annotations.info(f"{NOT_A_COUNTER}: {label_sets.quote(name)}")


def quantile_over_time(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    rank = evaluator.scalar(call.args[0], steps)

    def kernel(windows: Windows) -> tuple[Floats, Bools]:
        there = windows.counts > 0
        evaluator.annotations.warn_of_quantile(rank, np.logical_or.reduce(there))
        return over_time.evaluate(windows, over_time.quantile(np.broadcast_to(rank, there.shape)[there]))

    return over_range(evaluator, call, call.args[1], steps, kernel)


def predict_linear(evaluator: Evaluator, call: FunctionCall, steps: Steps) -> Frame:
    ahead = evaluator.scalar(call.args[1], steps)

    def kernel(windows: Windows) -> tuple[Floats, Bools]:
        return prediction(windows, ahead, steps.times)

    return over_range(evaluator, call, call.args[0], steps, kernel)
