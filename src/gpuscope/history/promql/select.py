"""Selects the samples that a selector sees at each step.

`latest` is for instant selectors: the newest sample of each series within the lookback delta, unless it is a
stale marker. `windows` is for range selectors: the samples in (end - range, end] for each step, without stale
markers. Series of one scrape share their time axis, so the search runs once per axis, not once per series.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.frame import AxisWindows, Bools, Frame, Ints, Windows
from gpuscope.model.series import STALE_NAN_BITS, Series
from gpuscope.model.series_columns import SeriesColumns

# The arrays of so many windows fit the processor's cache; so many samples take well under a second.
MAX_WINDOWS = 65_536
MAX_WINDOW_SAMPLES = 4_000_000
MIN_AXES = 32
"""From this many time axes on it pays to find times that would be searched twice."""
MAX_SPREAD = 3
"""Windows are made over the values in place if these take at most so many times their own space."""


def latest(series: SeriesColumns, at: Ints, lookback_ms: int, budget: Budget) -> Frame:
    """Return the frame of an instant selector at the times `at`."""
    budget.check()
    if len(at) == 1:
        # For a query at one time, the store returns nothing newer.
        times, newest = series.newest()
        values, present = newest.reshape(-1, 1), (times > at[0] - lookback_ms).reshape(-1, 1)
    else:
        position, recent = _search(series, at, lookback_ms)
        values, present = series.pick(position), recent[series.axis]
    present &= values.view(np.int64) != STALE_NAN_BITS
    return Frame(series.labels, values, present).without_empty_rows()


def latest_times(series: SeriesColumns, at: Ints, lookback_ms: int, budget: Budget) -> Frame:
    """As `latest`, with each sample's time in seconds as its value."""
    if not series.times.size:  # series that have samples only at other times
        return Frame.empty(len(at))
    budget.reserve(len(series) * len(at))
    budget.check()
    position, recent = _search(series, at, lookback_ms)
    present = recent[series.axis]
    present &= series.pick(position).view(np.int64) != STALE_NAN_BITS
    seconds = series.times.take(position + series.axis_starts[:-1, None], mode="clip") / 1000
    return Frame(series.labels, seconds[series.axis], present).without_empty_rows()


def _search(series: SeriesColumns, at: Ints, lookback_ms: int) -> tuple[Ints, Bools]:
    """Return for each axis the position of its newest sample at each time, and whether it is recent enough."""
    position = series.search(at) - 1
    recent = position >= 0
    if not series.times.size:
        return position, recent
    np.maximum(position, 0, out=position)
    recent &= series.times.take(position + series.axis_starts[:-1, None], mode="clip") > at - lookback_ms
    return position, recent


def windows(series: SeriesColumns, ends: Ints, range_ms: int) -> Iterator[tuple[slice, Windows]]:
    """Yield the windows of a range selector, in portions of series."""
    left, right = _search_both(series, ends - range_ms, ends)
    for rows in _portions(len(series), series.count_samples(), ends, range_ms):
        yield rows, _windows(series.rows(rows), left, right, ends, range_ms)


def _search_both(series: SeriesColumns, begins: Ints, ends: Ints) -> tuple[Ints, Ints]:
    """As `SeriesColumns.search` for both; where a window begins when another one ends, it searches once."""
    if len(series.axis_starts) < MIN_AXES:
        return series.search(begins), series.search(ends)
    at, places = np.unique(np.concatenate((begins, ends)), return_inverse=True)
    positions = series.search(at)
    return positions[:, places[: len(begins)]], positions[:, places[len(begins) :]]


def _portions(count: int, samples: int, ends: Ints, range_ms: int) -> Iterator[slice]:
    """Yield portions of rows that fit the cache and allow a check of the time limit between them."""
    if not count:
        return
    share_of_span = min(1.0, range_ms / (range_ms + int(ends[-1] - ends[0])))
    per_window = max(1.0, samples / count * share_of_span)
    portion = max(1, int(min(MAX_WINDOWS, MAX_WINDOW_SAMPLES / per_window) / len(ends)))
    for start in range(0, count, portion):
        yield slice(start, start + portion)


def _windows(series: SeriesColumns, left: Ints, right: Ints, ends: Ints, range_ms: int) -> Windows:
    windows = _windows_in_place(series, left, right, ends, range_ms)
    if windows is not None:
        return windows
    times, values, starts = series.flat()
    low, high = left[series.axis] + starts[:, None], right[series.axis] + starts[:, None]
    if np.isnan(values).any():  # a stale marker is a NaN
        kept = values.view(np.int64) != STALE_NAN_BITS
        before = np.zeros(len(kept) + 1, np.int64)
        np.cumsum(kept, out=before[1:])
        times, values, low, high = times[kept], values[kept], before[low], before[high]
    return Windows(partial(_same, times), values, low, high, ends, range_ms)


def _windows_in_place(
    series: SeriesColumns, left: Ints, right: Ints, ends: Ints, range_ms: int
) -> Windows | None:
    """Return windows over the values where they are, without a copy; None if they are scattered, or if there
    may be stale markers."""
    if isinstance(series.values, list) or not len(series):
        return None
    lengths = series.lengths
    begin, end = int(series.value_starts.min()), int((series.value_starts + lengths).max())
    total = int(lengths.sum())
    if not total or end - begin > MAX_SPREAD * total:
        return None
    values = series.values[begin:end]
    if np.isnan(values).any():  # a stale marker is a NaN
        return None
    starts = series.value_starts - begin
    first_axis, axes = int(series.axis.min()), slice(series.axis.min(), series.axis.max() + 1)

    def make_timestamps() -> Ints:
        inside = np.arange(total) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        times = np.zeros(len(values), np.int64)
        times[np.repeat(starts, lengths) + inside] = series.times[
            np.repeat(series.axis_starts[series.axis], lengths) + inside
        ]
        return times

    in_axes = series.axis_starts[:-1][axes, None]
    return Windows(
        make_timestamps,
        values,
        left[series.axis] + starts[:, None],
        right[series.axis] + starts[:, None],
        ends,
        range_ms,
        AxisWindows(series.times, left[axes] + in_axes, right[axes] + in_axes, series.axis - first_axis),
    )


def without_markers(one: Series) -> Series:
    if not np.count_nonzero(np.isnan(one.values)):  # a stale marker is a NaN
        return one
    kept = one.values.view(np.int64) != STALE_NAN_BITS
    return Series(one.labels, one.timestamps[kept], one.values[kept])


def windows_of_frame(frame: Frame, times: Ints, ends: Ints, range_ms: int) -> Iterator[tuple[slice, Windows]]:
    """Yield the windows over a subquery's result: its rows share the timestamps but not `present`."""
    left = np.searchsorted(times, ends - range_ms, side="right")
    right = np.searchsorted(times, ends, side="right")
    for rows in _portions(len(frame.labels), frame.values.size, ends, range_ms):
        present = frame.present[rows]
        # before[r, j]: how many of row r's first j steps have a sample, which is the position of step j's
        # sample.
        before = np.zeros((len(present), len(times) + 1), dtype=np.int64)
        np.cumsum(present, axis=1, out=before[:, 1:])
        samples = before[:, -1:]
        base = np.cumsum(samples, axis=0) - samples
        flat_times = np.broadcast_to(times, present.shape)[present]
        flat_values = frame.values[rows][present]
        low, high = before[:, left] + base, before[:, right] + base
        yield rows, Windows(partial(_same, flat_times), flat_values, low, high, ends, range_ms)


def _same(times: Ints) -> Ints:
    return times
