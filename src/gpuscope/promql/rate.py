"""rate, increase, delta, irate, idelta: how fast a series moved inside each window.

The difference between a window's last and first sample is stretched to the window's edges, as Prometheus 3.x
does: to the edge if the samples come close enough to it, by half a sample distance otherwise, and for a counter
never past the point where it would have been zero. A counter that falls was reset: what it had before is added.
"""

from __future__ import annotations

import numpy as np

from gpuscope.promql.frame import Bools, Floats, Ints
from gpuscope.promql.windows import Windows

_FAR = 1.1


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
    moved = windows.values[last] - windows.values[low]
    if counter:
        _add_resets(windows, low, last, moved)
    factor = _stretch(windows, low, last, ends, moved, counter)
    if per_second:
        factor /= windows.range_ms / 1000
    result = moved * factor
    values[where] = result.reshape(counts.shape) if everywhere else result
    return values, present


def _stretch(windows: Windows, low: Ints, last: Ints, ends: Ints, moved: Floats, counter: bool) -> Floats:
    """By how much to lengthen each window's sampled interval."""
    first_time, last_time = windows.timestamps[low], windows.timestamps[last]
    to_start = (first_time - (ends - windows.range_ms)) / 1000
    to_end = (ends - last_time) / 1000
    sampled = (last_time - first_time) / 1000
    distance = sampled / (last - low)
    far = distance * _FAR
    to_start = np.where(to_start >= far, distance / 2, to_start)
    if counter:
        first_value = windows.values[low]
        to_zero = sampled * (first_value / moved)
        nearer = (moved > 0) & (first_value >= 0) & (to_zero < to_start)
        to_start = np.where(nearer, to_zero, to_start)
    to_end = np.where(to_end >= far, distance / 2, to_end)
    stretched: Floats = (sampled + to_start + to_end) / sampled
    return stretched


def _add_resets(windows: Windows, low: Ints, last: Ints, moved: Floats) -> None:
    """Add to `moved`, in time order, the value before each fall inside the window."""
    falls = np.flatnonzero(windows.values[1:] < windows.values[:-1]) + 1
    if not falls.size:
        return
    # A fall at position p lies in a window if both p - 1 and p do; across two series no window reaches.
    begin = np.searchsorted(falls, low, side="right")
    end = np.searchsorted(falls, last, side="right")
    fallen = np.flatnonzero(end > begin)
    position = begin[fallen]
    while fallen.size:
        moved[fallen] += windows.values[falls[position] - 1]
        position += 1
        more = position < end[fallen]
        fallen, position = fallen[more], position[more]


def instant(windows: Windows, *, per_second: bool) -> tuple[Floats, Bools]:
    """The step between a window's last two samples."""
    counts = windows.counts
    present = counts >= 2
    values = np.zeros(counts.shape)
    last = windows.high[present] - 1
    value, before = windows.values[last], windows.values[last - 1]
    moved = value - before
    if per_second:
        moved = np.where(value < before, value, moved)
        moved = moved / ((windows.timestamps[last] - windows.timestamps[last - 1]) / 1000)
    values[present] = moved
    return values, present
