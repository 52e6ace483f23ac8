"""One target's newest samples in memory: one row per scrape, one column per series.

Cells without a sample hold the NaN `ABSENT_BITS`, which no stored value can have. Rows are in segments that
only grow, so a reader's `HeadView` stays valid while the writer appends. Scattered samples (each series with
its own timestamps) would waste whole rows, so they go to a side list. Only the writer changes a head; a seal
replaces the head and never shortens it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict

import numpy as np

from gpuscope.history.store.head_view import ABSENT, ABSENT_BITS, HeadView, Layout, Segment, SideList
from gpuscope.history.store.tick import Float64s, Int64s

_SEGMENT_BYTES = 1 << 20
_MIN_ROWS, _MAX_ROWS = 8, 128
_GROWTH_DIVISOR = 4
"""A new segment has a quarter of the rows so far. Larger ones waste memory, smaller ones make reads slower."""
_FREE_ROWS = 16
"""Sparse rows that a head may hold before it must be a quarter full."""
_MAX_LAYOUTS = 8
_BEFORE_ALL = -(1 << 63)
EDIT = 1 << 32
"""See `Head.version`."""


class Head:
    """See the module docstring. `append_row` is the fast path; `insert` accepts samples in any order."""

    def __init__(self) -> None:
        # Ascending ids and their columns, in one attribute so that a reader never sees half an update.
        self._order = (np.empty(0, np.int64), np.empty(0, np.int64))
        self.columns_ascend = True
        """Whether columns are in the order of the ids, as they are if the first scrape had all series."""
        self._times = np.empty(_MIN_ROWS, np.int64)
        self._segments: list[Segment] = []
        self._layouts: OrderedDict[int, Layout] = OrderedDict()
        """By the hash of their series' bytes: the bytes themselves would be a third of a layout's memory."""
        self._latest_layout: Layout | None = None
        self.side_list = SideList()
        self._side_used = 0
        self._cells = 0
        self._ascending = True
        self._last_row = _BEFORE_ALL
        self.version = 0
        """The number of rows, plus `EDIT` for each other change: of a known row, or of the side list."""
        self.rows = 0
        self.samples = 0
        self.first: int | None = None
        self.last: int | None = None

    @property
    def side_samples(self) -> int:
        return self._side_used

    @property
    def series_count(self) -> int:
        return len(self._order[0])

    def nbytes(self) -> int:
        """Return the memory reserved for samples."""
        dense = sum(segment.cells.nbytes for segment in self._segments)
        return dense + self._times.nbytes + 24 * len(self.side_list.times)

    def known_layout(self, series: Int64s) -> Layout | None:
        """Return the layout of exactly these series if an earlier tick had it."""
        latest = self._latest_layout
        if latest is not None and np.array_equal(series, latest.series):
            return latest
        layout = self._layouts.get(hash(series.tobytes()))
        if layout is None or not np.array_equal(series, layout.series):
            return None
        self._latest_layout = layout
        return layout

    def add_layout(self, series: Int64s, epoch: int) -> Layout:
        """Create columns for a tick's series; the caller has checked that the series are distinct."""
        columns = self._make_columns(series)
        in_order = bool((columns == np.arange(len(columns))).all())
        layout = Layout(series.astype(np.uint32), None if in_order else columns.astype(np.int32), epoch)
        self._layouts[hash(series.tobytes())] = layout
        while len(self._layouts) > _MAX_LAYOUTS:
            self._layouts.popitem(last=False)
        self._latest_layout = layout
        return layout

    def _make_columns(self, series: Int64s) -> Int64s:
        columns = self.find_columns(series)
        new = series[columns < 0]
        if len(new):
            # Columns in order of arrival: the rows of a target's first layout can be copied without reordering.
            fresh = new[np.sort(np.unique(new, return_index=True)[1])]
            sorted_series, numbers = self._order
            made = np.arange(self.series_count, self.series_count + len(fresh))
            merged = np.concatenate((sorted_series, fresh))
            order = np.argsort(merged, kind="stable")
            self._set_order(merged[order], np.concatenate((numbers, made))[order])
            columns = self.find_columns(series)
        return columns

    def _set_order(self, sorted_series: Int64s, columns: Int64s) -> None:
        # First: a reader that sees the new columns must not believe that they ascend if they do not.
        self.columns_ascend = bool((columns[1:] > columns[:-1]).all())
        self._order = sorted_series, columns

    def find_columns(self, series: Int64s) -> Int64s:
        """Return the column of each series, -1 if the head does not have it."""
        sorted_series, columns = self._order
        if not len(sorted_series):
            return np.full(len(series), -1, np.int64)
        # Methods, because numpy's functions take as long again: this runs for every target of a new selection.
        at = sorted_series.searchsorted(series)
        positions = columns.take(at, mode="clip")
        missing = sorted_series.take(at, mode="clip") != series
        if missing.any():
            positions[missing] = -1
        return positions

    def append_row(self, time: int, layout: Layout, values: Float64s) -> None:
        """Append a scrape that is newer than all samples here."""
        segment = self._segment_with_room()
        row = segment.cells[segment.used]
        if layout.columns is None:
            count = len(values)
            row[:count] = values
            row[count:] = ABSENT
        else:
            row[:] = ABSENT
            row[layout.columns] = values
        self._finish_row(segment, time, len(values))

    def append_rows(self, times: Int64s, layout: Layout, values: Float64s) -> None:
        """Append scrapes of one layout, each newer than the one before. The head takes ownership of `values`, a
        matrix with one row per scrape."""
        if layout.columns is None:
            self._append_segment(times, values, values.size)
        else:
            for time, row in zip(times.tolist(), values, strict=True):
                self.append_row(time, layout, row)

    def _segment_with_room(self) -> Segment:
        width = max(1, self.series_count)
        if self._segments:
            segment = self._segments[-1]
            if segment.used < len(segment.cells) and width <= segment.cells.shape[1]:
                return segment
            self._close(segment)
        width += max(4, width // 16) if self._segments else 0
        limit = min(_MAX_ROWS, max(_MIN_ROWS, _SEGMENT_BYTES // (8 * width)))
        rows = min(limit, max(_MIN_ROWS, self.rows // _GROWTH_DIVISOR))
        segment = Segment(self.rows, np.empty((rows, width), np.float64))
        self._segments.append(segment)
        return segment

    def _close(self, segment: Segment) -> None:
        """Cut the unused rows off a segment that ends early; readers keep the old arrays."""
        if segment.used < len(segment.cells) // 2:
            self._segments[-1] = Segment(segment.first, segment.cells[: segment.used].copy(), segment.used)

    def _finish_row(self, segment: Segment, time: int, count: int) -> None:
        self._make_room_for_times(1)
        self._times[self.rows] = time
        # Before the row becomes visible: a reader must not assume ascending rows when they no longer are.
        self._ascending &= time > self._last_row
        self._last_row = time
        self._cells += segment.cells.shape[1]
        self._extend_range(time, time, count)
        segment.used += 1
        self.rows += 1  # last: from here on readers see the row
        self.version += 1

    def _make_room_for_times(self, count: int) -> None:
        """Replace a full array by a larger one; readers keep the old one."""
        need = self.rows + count
        if need > len(self._times):
            grown = np.empty(max(need, 2 * len(self._times)), np.int64)
            grown[: self.rows] = self._times[: self.rows]
            self._times = grown

    def _extend_range(self, first: int, last: int, count: int) -> None:
        self.first = first if self.first is None else min(first, self.first)
        self.last = last if self.last is None else max(last, self.last)
        self.samples += count

    def insert(self, series: Int64s, times: Int64s, values: Float64s) -> None:
        """Insert samples in any order; the head must not have any of them yet (see `stored_bits`)."""
        columns = self._make_columns(series)
        moments, inverse = np.unique(times, return_inverse=True)
        for number, moment in enumerate(moments.tolist()):
            chosen = inverse == number
            self._insert_at(moment, series[chosen], columns[chosen], values[chosen])

    def _insert_at(self, moment: int, series: Int64s, columns: Int64s, values: Float64s) -> None:
        place = self._find_row(moment)
        if place is not None:
            segment, row = place
            if int(columns.max()) < segment.cells.shape[1]:
                segment.cells[row, columns] = values
                self.samples += len(values)
                self.version += EDIT
                return
        elif self._may_be_row(len(values)):
            segment = self._segment_with_room()
            row_cells = segment.cells[segment.used]
            row_cells[:] = ABSENT
            row_cells[columns] = values
            self._finish_row(segment, moment, len(values))
            return
        times = np.full(len(values), moment)
        self.side_list = self.side_list.add(self._side_used, times, series, values)
        self._extend_range(moment, moment, len(values))
        self._side_used += len(values)
        self.version += EDIT

    def _may_be_row(self, count: int) -> bool:
        width = self.series_count
        filled = self.samples - self._side_used
        return self._cells + width <= 4 * (filled + count) + _FREE_ROWS * width

    def _find_row(self, moment: int) -> tuple[Segment, int] | None:
        rows = np.flatnonzero(self._times[: self.rows] == moment)
        if not len(rows):
            return None
        row = int(rows[-1])
        segment = next(segment for segment in reversed(self._segments) if segment.first <= row)
        return segment, row - segment.first

    def stored_bits(self, series: Int64s, times: Int64s) -> Int64s:
        """Return the bits of the sample stored for each (series, time); `ABSENT_BITS` where there is none."""
        stored = np.full(len(series), ABSENT_BITS, np.int64)
        columns = self.find_columns(series)
        for segment in self._segments:
            width = segment.cells.shape[1]
            times_here = self._times[segment.first : segment.first + segment.used]
            rows_by_time = np.argsort(times_here, kind="stable")
            ordered = times_here[rows_by_time]
            if not len(ordered):
                continue
            at = np.minimum(np.searchsorted(ordered, times), len(ordered) - 1)
            hit = (ordered[at] == times) & (columns >= 0) & (columns < width)
            if hit.any():
                bits = segment.cells.view(np.int64)[rows_by_time[at[hit]], columns[hit]]
                stored[hit] = np.where(bits == ABSENT_BITS, stored[hit], bits)
        if self._side_used:
            self._find_in_side(series, times, stored)
        return stored

    def _find_in_side(self, series: Int64s, times: Int64s, stored: Int64s) -> None:
        used = self._side_used
        near = np.flatnonzero(np.isin(self.side_list.times[:used], times))
        if not len(near):
            return
        known = {
            (sid, time): bits
            for sid, time, bits in zip(
                self.side_list.series[near].tolist(),
                self.side_list.times[near].tolist(),
                self.side_list.values[near].view(np.int64).tolist(),
                strict=True,
            )
        }
        for i, key in enumerate(zip(series.tolist(), times.tolist(), strict=True)):
            if key in known:
                stored[i] = known[key]

    def view(self) -> HeadView:
        """Return the current contents for readers; later appends are not visible in it."""
        # Read the row count before the segments: a segment added in between has no rows up to it.
        rows, used, side = self.rows, self._side_used, self.side_list
        segments: list[tuple[int, Float64s]] = []
        end = rows
        for segment in reversed(self._segments):
            if segment.first < end:
                segments.append((segment.first, segment.cells[: end - segment.first]))
                end = segment.first
        return HeadView(
            *self._order,
            self._times[:rows],
            tuple(reversed(segments)),
            self._ascending,  # read after the rows: may be False too early, never True too long
            (side.times[:used], side.series[:used], side.values[:used]),
        )

    @property
    def order(self) -> tuple[Int64s, Int64s]:
        """Ascending ids and their columns: a new tuple when there are new columns."""
        return self._order

    def newest_row(self, end: int) -> tuple[int, Float64s] | None:
        """Return time and cells of the newest row up to `end`; None if there is none, or if samples are not
        all in ascending rows."""
        rows = self.rows  # first: all that is read afterwards has at least these rows
        if self._side_used or not self._ascending:
            return None
        times, row = self._times, rows - 1
        if row >= 0 and times[row] > end:
            row = int(times[:rows].searchsorted(end, side="right")) - 1
        if row < 0:
            return None
        for segment in reversed(self._segments):
            if segment.first <= row:
                return int(times[row]), segment.cells[row - segment.first]
        return None

    def overlaps(self, start: int, end: int) -> bool:
        """Return whether any sample is in [start, end]."""
        first, last = self.first, self.last
        if first is None or last is None or last < start or first > end:
            return False
        return last <= end or first >= start or self.view().overlaps(start, end)

    def rows_between(self, bounds: Int64s) -> tuple[Int64s, list[Float64s]] | None:
        """Return times and cells, in parts, of the rows from the first of two times until before the second;
        None if samples are not all in ascending rows."""
        rows = self.rows
        if self._side_used or not self._ascending:
            return None
        return self._cut(*self._times[:rows].searchsorted(bounds).tolist())

    def rows_since(self, begin: int) -> tuple[Int64s, list[Float64s]] | None:
        """As `rows_between`, without an end."""
        rows = self.rows
        if self._side_used or not self._ascending:
            return None
        return self._cut(bisect_left(self._times, begin, 0, rows), rows)

    def _cut(self, low: int, high: int) -> tuple[Int64s, list[Float64s]]:
        """Return times and cells of rows by their numbers."""
        parts: list[Float64s] = []
        stop = high
        for segment in reversed(self._segments):
            if stop <= low:
                break
            if segment.first < stop:
                parts.append(segment.cells[max(low - segment.first, 0) : stop - segment.first])
                stop = segment.first
        return self._times[low:high], parts[::-1]

    def from_time(self, boundary: int) -> Head:
        """Return a new head with the samples at or after a time, and only the series that have some."""
        rest = Head()
        view = self.view()
        kept = [
            (times[late], cells[late])
            for first, cells in view.segments
            if (late := (times := view.times[first : first + len(cells)]) >= boundary).any()
        ]
        side_times, side_series, side_values = view.side
        late = side_times >= boundary
        alive = np.zeros(self.series_count, np.bool_)
        for _, cells in kept:
            width = min(cells.shape[1], len(alive))
            alive[:width] |= (cells[:, :width].view(np.int64) != ABSENT_BITS).any(axis=0)
        alive[self.find_columns(side_series[late])] = True
        renumbered = np.cumsum(alive) - 1
        stays = alive[view.columns]
        rest._set_order(view.sorted_series[stays], renumbered[view.columns[stays]])
        for times, cells in kept:
            chosen = np.ascontiguousarray(cells[:, np.flatnonzero(alive[: cells.shape[1]])])
            rest._append_segment(times, chosen, int(np.count_nonzero(chosen.view(np.int64) != ABSENT_BITS)))
        if late.any():
            rest.side_list = SideList(side_times[late], side_series[late], side_values[late])
            rest._side_used = int(np.count_nonzero(late))
            rest._extend_range(int(side_times[late].min()), int(side_times[late].max()), rest._side_used)
        return rest

    def _append_segment(self, times: Int64s, cells: Float64s, samples: int) -> None:
        """Append existing rows as a full segment."""
        self._segments.append(Segment(self.rows, cells, len(times)))
        self._make_room_for_times(len(times))
        self._times[self.rows : self.rows + len(times)] = times
        self._ascending &= bool(times[0] > self._last_row and (times[1:] > times[:-1]).all())
        self._last_row = int(times[-1])
        self._cells += cells.size
        self._extend_range(int(times.min()), int(times.max()), samples)
        self.rows += len(times)
        self.version += len(times)
