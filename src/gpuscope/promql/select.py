"""Selects the samples that a selector sees at each step.

`latest` is for instant selectors: the newest sample of each series within the lookback delta, unless it is a
stale marker. `windows` is for range selectors: the samples in (end - range, end] for each step, without stale
markers. Series of one scrape share their timestamps, so the search runs once per distinct timestamps array, not
once per series.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from gpuscope.promql.budget import Budget
from gpuscope.promql.frame import Bools, Floats, Frame, Ints
from gpuscope.promql.windows import Windows
from gpuscope.series import STALE_NAN_BITS, Series

# The arrays of so many windows fit the processor's cache; so many samples take well under a second.
MAX_WINDOWS = 65_536
MAX_WINDOW_SAMPLES = 4_000_000


class _Axes:
    """Numbers the distinct timestamps arrays."""

    def __init__(self) -> None:
        self._by_identity: dict[int, int] = {}
        self._by_ends: dict[tuple[int, int, int], list[tuple[int, Ints]]] = {}
        self._count = 0

    def number(self, timestamps: Ints) -> int:
        """Return the array's number; a new array gets the next one. The caller keeps arrays alive: ids are
        unique."""
        known = self._by_identity.get(id(timestamps))
        if known is None:
            known = self._by_identity[id(timestamps)] = self._by_content(timestamps)
        return known

    def _by_content(self, timestamps: Ints) -> int:
        ends = (len(timestamps), int(timestamps[0]), int(timestamps[-1])) if len(timestamps) else (0, 0, 0)
        candidates = self._by_ends.setdefault(ends, [])
        for number, known in candidates:
            if np.array_equal(known, timestamps):
                return number
        candidates.append((self._count, timestamps))
        self._count += 1
        return self._count - 1


def latest(series: Sequence[Series], at: Ints, lookback_ms: int, budget: Budget) -> Frame:
    """Return the frame of an instant selector at the times `at`."""
    if len(at) == 1:
        values, times = _newest(series, budget)
        found = times > at[0] - lookback_ms
    else:
        values, found = np.zeros((len(series), len(at))), np.zeros((len(series), len(at)), dtype=np.bool_)
        searches = _searches(series, at, lookback_ms)
        for row, (one, (position, ok)) in enumerate(zip(budget.watch(series), searches, strict=True)):
            one.values.take(position, out=values[row])
            found[row] = ok
    found &= values.view(np.int64) != STALE_NAN_BITS
    return Frame([one.labels for one in series], values, found).without_empty_rows()


def latest_times(series: Sequence[Series], at: Ints, lookback_ms: int, budget: Budget) -> Frame:
    """As `latest`, with each sample's time in seconds as its value."""
    frame = latest(series, at, lookback_ms, budget)
    budget.reserve(sum(len(one.timestamps) for one in series))
    shadows = [Series(one.labels, one.timestamps, one.timestamps / 1000) for one in budget.watch(series)]
    times = latest(shadows, at, lookback_ms, budget)
    alive = set(frame.labels)
    kept = times.rows([row for row, labels in enumerate(budget.watch(times.labels)) if labels in alive])
    return Frame(kept.labels, kept.values, frame.present)


def _newest(series: Sequence[Series], budget: Budget) -> tuple[Floats, Ints]:
    """Return each series' last sample: for a query at one time, the store returns nothing newer."""
    values = np.array([one.values[-1] for one in budget.watch(series)], dtype=np.float64).reshape(-1, 1)
    times = np.array([one.timestamps[-1] for one in budget.watch(series)], dtype=np.int64).reshape(-1, 1)
    return values, times


def _searches(series: Sequence[Series], at: Ints, lookback_ms: int) -> Iterator[tuple[Ints, Bools]]:
    """Yield for each series the position of its sample at each time, and whether it is recent enough."""
    axes = _Axes()
    searched: list[tuple[Ints, Bools]] = []
    for one in series:
        number = axes.number(one.timestamps)
        if number == len(searched):
            searched.append(_search(one.timestamps, at, lookback_ms))
        yield searched[number]


def _search(timestamps: Ints, at: Ints, lookback_ms: int) -> tuple[Ints, Bools]:
    position = np.searchsorted(timestamps, at, side="right") - 1
    ok = position >= 0
    np.maximum(position, 0, out=position)
    ok &= timestamps[position] > at - lookback_ms
    return position, ok


def windows(series: Sequence[Series], ends: Ints, range_ms: int) -> Iterator[tuple[slice, Windows]]:
    """Yield the windows of a range selector, in portions of series."""
    samples = sum(len(one.timestamps) for one in series)
    for rows in _portions(len(series), samples, ends, range_ms):
        yield rows, _windows(series[rows], ends, range_ms)


def _portions(count: int, samples: int, ends: Ints, range_ms: int) -> Iterator[slice]:
    """Yield portions of rows that fit the cache and allow a check of the time limit between them."""
    if not count:
        return
    share_of_span = min(1.0, range_ms / (range_ms + int(ends[-1] - ends[0])))
    per_window = max(1.0, samples / count * share_of_span)
    portion = max(1, int(min(MAX_WINDOWS, MAX_WINDOW_SAMPLES / per_window) / len(ends)))
    for start in range(0, count, portion):
        yield slice(start, start + portion)


def _windows(series: Sequence[Series], ends: Ints, range_ms: int) -> Windows:
    axes = _Axes()
    edges: list[tuple[Ints, Ints]] = []
    low = np.empty((len(series), len(ends)), dtype=np.int64)
    high = np.empty_like(low)
    start = 0
    kept = [without_markers(one) for one in series]
    for row, one in enumerate(kept):
        timestamps = one.timestamps
        number = axes.number(timestamps)
        if number == len(edges):
            left = np.searchsorted(timestamps, ends - range_ms, side="right")
            edges.append((left, np.searchsorted(timestamps, ends, side="right")))
        np.add(edges[number][0], start, out=low[row])
        np.add(edges[number][1], start, out=high[row])
        start += len(timestamps)
    all_times = np.concatenate([one.timestamps for one in kept])
    all_values = np.concatenate([one.values for one in kept])
    return Windows(all_times, all_values, low, high, ends, range_ms)


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
        yield rows, Windows(flat_times, flat_values, low, high, ends, range_ms)
