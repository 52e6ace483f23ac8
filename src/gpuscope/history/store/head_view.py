"""What a head consists of, and a reader's view of it: arrays that do not change while it reads (see `head`)."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.tick import Float64s, Int64s

# What a `Head` consists of: layouts of ticks, segments of rows, and a list of scattered samples.


@dataclass(slots=True)
class Layout:
    """The distinct series of a tick, with their columns and the id of their row in table `layout`."""

    series: NDArray[np.uint32]
    columns: NDArray[np.int32] | None
    """None if they are 0, 1, 2, … in order."""
    epoch: int
    """The index epoch in which the series were last known to exist."""
    row_id: int | None = None


@dataclass(slots=True)
class Segment:
    """Rows of one width; it only grows."""

    first: int
    """Number of its first row."""
    cells: Float64s
    used: int = 0


@dataclass(slots=True)
class SideList:
    """Samples with times of their own."""

    times: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    series: Int64s = field(default_factory=lambda: np.empty(0, np.int64))
    values: Float64s = field(default_factory=lambda: np.empty(0, np.float64))

    def add(self, used: int, times: Int64s, series: Int64s, values: Float64s) -> SideList:
        need = used + len(times)
        side = self
        if need > len(self.times):
            size = max(64, need, 2 * len(self.times))
            side = SideList(np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.float64))
            side.times[:used] = self.times[:used]
            side.series[:used] = self.series[:used]
            side.values[:used] = self.values[:used]
        side.times[used:need] = times
        side.series[used:need] = series
        side.values[used:need] = values
        return side


ABSENT_BITS = 0x7FF4_6162_7365_6E74
"""The NaN that marks a cell without a sample. A sender's NaN with these bits is stored as an ordinary NaN."""
ABSENT = np.int64(ABSENT_BITS).view(np.float64)

Samples = tuple[Int64s, Float64s]


@dataclass(frozen=True, slots=True)
class HeadView:
    """The contents of a head at one moment."""

    sorted_series: Int64s
    columns: Int64s
    times: Int64s
    """Time of each row."""
    segments: tuple[tuple[int, Float64s], ...]
    """For each segment the number of its first row, and its cells as a matrix with one line per row."""
    ascending: bool
    """Whether the rows are in time order; False after a sample was appended out of order."""
    side: tuple[Int64s, Int64s, Float64s]

    @property
    def last(self) -> int:
        """Return the newest time; -1 if there are no samples."""
        return int(max((times.max() for times in (self.times, self.side[0]) if len(times)), default=-1))

    def has(self, series: Int64s) -> Int64s:
        """Return those of the series that are in the head."""
        return self._known(series)[0]

    def _known(self, series: Int64s) -> tuple[Int64s, Int64s]:
        """Return those of the series that are in the head, and their columns."""
        if not len(self.sorted_series):
            return series[:0], series[:0]
        at = self.sorted_series.searchsorted(series)
        hit = self.sorted_series.take(at, mode="clip") == series
        if np.count_nonzero(hit) == len(hit):
            return series, self.columns[at]
        return series[hit], self.columns[at[hit]]

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether any sample is in [start, end]."""
        return any(bool(((times >= start) & (times <= end)).any()) for times in (self.times, self.side[0]))

    def count(self, series: Int64s, start: int, end: int) -> int:
        """Return an upper bound for the number of samples that `read` returns."""
        columns = len(self._known(series)[0])
        if not columns:
            return 0
        inside = np.count_nonzero((self.times >= start) & (self.times <= end))
        return int(columns * inside) + len(self.side[0])

    def read(self, series: Int64s, start: int, end: int) -> dict[int, Samples]:
        """Return each series' samples in [start, end] in time order; series with equal times share the
        array."""
        known, columns = self._known(series)
        if not len(known):
            return {}
        times, cells = self.dense(columns, start, end)
        by_series = _filled(known.tolist(), times, cells) if len(times) else {}
        if len(self.side[0]):
            self._add_side(known, times, start, end, by_series)
        return by_series

    def dense(self, columns: Int64s, start: int, end: int) -> tuple[Int64s, Float64s]:
        """Return the times of the rows in [start, end], ascending, and a matrix with one line per column."""
        if not self.ascending:
            return self._sorted(columns, start, end)
        low, high = self._span(start, end)
        matrix = np.empty((len(columns), high - low))
        for first, cells in self.segments:
            begin, stop = max(low, first), min(high, first + len(cells))
            if begin < stop:
                matrix[:, begin - low : stop - low] = column_lines(cells[begin - first : stop - first], columns)
        return self.times[low:high], matrix

    def _span(self, start: int, end: int) -> tuple[int, int]:
        """Return the range of rows in [start, end]; the rows must be ascending."""
        return int(self.times.searchsorted(start)), int(self.times.searchsorted(end, side="right"))

    def _sorted(self, columns: Int64s, start: int, end: int) -> tuple[Int64s, Float64s]:
        rows = self._rows_by_time(start, end)
        matrix = np.empty((len(columns), len(rows)))
        for first, cells in self.segments:
            here = np.flatnonzero((rows >= first) & (rows < first + len(cells)))
            matrix[:, here] = column_lines(cells[rows[here] - first], columns)
        return self.times[rows], matrix

    def _rows_by_time(self, start: int, end: int) -> NDArray[np.intp]:
        rows = np.flatnonzero((self.times >= start) & (self.times <= end))
        return rows[np.argsort(self.times[rows], kind="stable")]

    def latest(self, series: Int64s, start: int, end: int) -> tuple[Int64s, Int64s, Float64s]:
        """Return ids, times and values of each series' newest sample in [start, end]; skip series without
        one."""
        known, columns = self._known(series)
        times = np.full(len(known), -1, np.int64)
        values = np.empty(len(known))
        missing = np.arange(len(known))
        for moment, cells in self._rows_newest_first(start, end):
            wanted = columns[missing]
            inside = wanted < len(cells)
            picked = cells[np.where(inside, wanted, 0)]
            hit = inside & (picked.view(np.int64) != ABSENT_BITS)
            if len(missing) == len(known) and hit.all() and not len(self.side[0]):
                return known, np.full(len(known), moment, np.int64), picked  # all in the newest scrape
            at = missing[hit]
            times[at], values[at] = moment, picked[hit]
            missing = missing[~hit]
            if not len(missing):
                break
        if len(self.side[0]):
            self._latest_side(known, start, end, times, values)
        present = times >= 0
        return known[present], times[present], values[present]

    def _rows_newest_first(self, start: int, end: int) -> Iterator[tuple[int, Float64s]]:
        if self.ascending:
            rows: Iterable[int] = reversed(range(*self._span(start, end)))
        else:
            rows = reversed(self._rows_by_time(start, end).tolist())
        begins = [first for first, _ in self.segments]
        for row in rows:
            first, cells = self.segments[bisect_right(begins, row) - 1]
            yield int(self.times[row]), cells[row - first]

    def _latest_side(self, known: Int64s, start: int, end: int, times: Int64s, values: Float64s) -> None:
        side_times, series, side_values = self.side
        inside = np.flatnonzero((side_times >= start) & (side_times <= end) & np.isin(series, known))
        order = inside[np.argsort(side_times[inside], kind="stable")]
        at = np.searchsorted(known, series[order])
        newer = side_times[order] >= times[at]
        # Ascending by time: of several samples of one series, the last assignment is the newest.
        times[at[newer]] = side_times[order][newer]
        values[at[newer]] = side_values[order][newer]

    def _add_side(
        self, known: Int64s, rows: Int64s, start: int, end: int, by_series: dict[int, Samples]
    ) -> None:
        times, series, values = self.side
        inside = np.flatnonzero((times >= start) & (times <= end) & np.isin(series, known))
        if not len(inside):
            return
        order = inside[np.lexsort((times[inside], series[inside]))]
        sids, starts = np.unique(series[order], return_index=True)
        shared = {rows.tobytes(): rows}
        for sid, at in zip(sids.tolist(), np.split(order, starts[1:]), strict=True):
            own_times, own_values = times[at], values[at]
            if sid in by_series:
                own_times, own_values = merge_samples([by_series[sid], (own_times, own_values)])
            own_times = shared.setdefault(own_times.tobytes(), own_times)
            by_series[sid] = own_times, own_values


def _filled(series: list[int], times: Int64s, cells: Float64s) -> dict[int, Samples]:
    """Return the samples in a matrix with one line per series; cells may be empty."""
    if not np.count_nonzero(np.isnan(cells)):  # an empty cell is a NaN
        return {sid: (times, line) for sid, line in zip(series, cells, strict=True)}
    present = cells.view(np.int64) != ABSENT_BITS
    by_series: dict[int, Samples] = {}
    shared: dict[bytes, Int64s] = {}
    for sid, line, mask, full in zip(series, cells, present, present.all(axis=1).tolist(), strict=True):
        if full:
            by_series[sid] = times, line
            continue
        key = mask.tobytes()
        if key not in shared:
            shared[key] = times[mask]
        if len(shared[key]):
            by_series[sid] = shared[key], line[mask]
    return by_series


def column_lines(rows: Float64s, columns: Int64s) -> Float64s:
    """Return columns of the rows, each as a line."""
    try:
        # A single column is a slice, which is much faster than indexing with an array.
        return rows[:, columns.item()] if len(columns) == 1 else rows[:, columns].T
    except IndexError:  # rows that are older than a column are shorter: they have no sample in it
        lines = np.full((len(columns), len(rows)), ABSENT)
        inside = columns < rows.shape[1]
        lines[inside] = rows[:, columns[inside]].T
        return lines


def merge_samples(parts: list[Samples]) -> Samples:
    """Merge several runs into one in time order; of two samples at the same time the earlier run's is kept."""
    times = np.concatenate([part[0] for part in parts])
    values = np.concatenate([part[1] for part in parts])
    order = np.argsort(times, kind="stable")
    times, values = times[order], values[order]
    first = np.ones(len(times), np.bool_)
    np.not_equal(times[1:], times[:-1], out=first[1:])
    return (times, values) if first.all() else (times[first], values[first])
