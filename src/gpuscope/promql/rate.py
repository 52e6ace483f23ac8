"""rate, increase, delta, irate, idelta: the change of a series inside each window.

The difference between the last and the first sample is extrapolated to the window's edges as in Prometheus 3.x:
to the edge if the samples are close enough to it, else by half the average sample distance, and for a counter
not beyond the point where it would be zero. A decrease of a counter is a reset: the value before it is added.
"""

from __future__ import annotations

import numpy as np

from gpuscope.promql.frame import Bools, Floats, Ints
from gpuscope.promql.windows import Windows

_EXTRAPOLATION_THRESHOLD = 1.1


def extrapolated(windows: Windows, *, counter: bool, per_second: bool) -> tuple[Floats, Bools]:
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
    first_time, last_time = windows.timestamps[low], windows.timestamps[last]
    to_start = (first_time - (ends - windows.range_ms)) / 1000
    to_end = (ends - last_time) / 1000
    sampled = (last_time - first_time) / 1000
    distance = sampled / (last - low)
    far = distance * _EXTRAPOLATION_THRESHOLD
    to_start = np.where(to_start >= far, distance / 2, to_start)
    if counter:
        first_value = windows.values[low]
        to_zero = sampled * (first_value / difference)
        nearer = (difference > 0) & (first_value >= 0) & (to_zero < to_start)
        to_start = np.where(nearer, to_zero, to_start)
    to_end = np.where(to_end >= far, distance / 2, to_end)
    factor: Floats = (sampled + to_start + to_end) / sampled
    return factor


def add_resets(windows: Windows, low: Ints, last: Ints, difference: Floats) -> None:
    """Add to `difference`, in time order, the value before each reset inside the window."""
    resets = np.flatnonzero(windows.values[1:] < windows.values[:-1]) + 1
    if not resets.size:
        return
    # A reset at position p is in a window if both p - 1 and p are; no window spans two series.
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
