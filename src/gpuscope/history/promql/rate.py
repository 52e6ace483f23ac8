"""rate, increase, delta, irate, idelta: the change of a series inside each window.

The difference between the last and the first sample is extrapolated to the window's edges as in Prometheus 3.x:
to the edge if the samples are close enough to it, else by half the average sample distance, and for a counter
not beyond the point where it would be zero. A decrease of a counter is a reset: the value before it is added.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from gpuscope.history.promql.frame import Bools, Floats, Ints
from gpuscope.history.promql.windows import AxisWindows, Windows

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
