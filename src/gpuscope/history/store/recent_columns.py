"""Recent samples of a wide selection, kept between queries: only targets with new samples are read again.

Dashboards repeat a query over thousands of series every few seconds, and between two queries few of 1,000
targets are scraped. `RecentColumns` keeps the rows of the last minutes as a matrix, one line per series.
Readers share the matrix without a copy: rows are added behind those that they read, and any other change is
made in a new matrix. Targets that have late or unsorted samples, or samples of the time range in a block, are
left to the caller.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.contents import NO_ROW, NewestCells
from gpuscope.history.store.head import EDIT, Head
from gpuscope.history.store.head_view import ABSENT, ABSENT_BITS, column_lines
from gpuscope.history.store.selections import HeadColumns, SeriesSelection
from gpuscope.history.store.tick import Bools, Float64s, Int64s

MAX_SPAN_MS = 900_000
"""Longer queries usually read blocks, too."""
MAX_BYTES = 8 << 20
"""Of one selection."""
END_OF_TIME = np.iinfo(np.int64).max
_SPARE_MS = 60_000
"""Kept longer than the longest query needs: otherwise each new row would require a new matrix."""
_MIN_ROWS = 16
MANY_TARGETS = 16
"""Whose newest rows are added together."""


class TargetHeads(NamedTuple):
    """What a selection's targets have at one moment; read under the lock of the contents."""

    heads: list[Head]
    newest_sealed: list[int]
    is_late: list[bool]


class _NewRows(NamedTuple):
    """Rows of a head that are not in the matrix yet."""

    number: int
    """Of the target in the selection."""
    replaces: bool
    """Whether these are all rows of the target."""
    times: Int64s
    parts: list[Float64s]


class RecentRows(NamedTuple):
    """The rows of all targets in a time range. Each target has a time axis."""

    is_usable: Bools
    """By target; the axis of any other is empty."""
    axis: NDArray[np.intp]
    """Of each series."""
    times: Int64s
    axis_starts: Int64s
    values: Float64s
    value_starts: Int64s
    """Where each series begins in the values."""
    gaps: NDArray[np.intp]
    """Series that may have absent cells."""


class RecentColumns:
    """See the module docstring. Thread-safe."""

    def __init__(self, chosen: SeriesSelection) -> None:
        self._lock = threading.Lock()
        self._targets = chosen.targets.tolist()
        self._firsts = chosen.first_rows
        self._axis = np.repeat(np.arange(len(self._targets)), chosen.counts)
        self._forget()
        self._span_ms = 0
        """The longest time range that was read."""
        self._max_span_ms = MAX_SPAN_MS

    def _forget(self) -> None:
        count = len(self._targets)
        self._heads: list[Head | None] = [None] * count
        self._versions = [0] * count
        self._is_plain = np.zeros(count, np.bool_)
        self._used = np.zeros(count, np.int64)
        self._since = END_OF_TIME
        """Rows before this time are not kept."""
        self._times = np.empty((count, 0), np.int64)
        self._values = np.empty((len(self._axis), 0))
        self._last_absent = np.full(len(self._axis), -1, np.int64)
        """The last column without a sample, of each series."""

    @property
    def nbytes(self) -> int:
        return self._values.nbytes + self._times.nbytes

    def read(
        self,
        chosen: SeriesSelection,
        now: TargetHeads,
        start: int,
        end: int,
        read_newest: Callable[[], NewestCells],
    ) -> RecentRows | None:
        """Return the rows in [start, end]; None if they are too many to keep. `read_newest` returns the newest
        row of each target."""
        with self._lock:
            if not self._update(chosen, now, start, read_newest):
                return None
            usable = self._is_plain & ~np.array(now.is_late, np.bool_)
            usable &= np.array(now.newest_sealed, np.int64) < start
            low = np.count_nonzero(self._times < start, axis=1)
            high = np.maximum(np.count_nonzero(self._times <= end, axis=1), low)
            high[~usable] = low[~usable]
            column = np.arange(self._times.shape[1])
            inside = (column >= low[:, None]) & (column < high[:, None])
            axis_starts = np.zeros(len(low) + 1, np.int64)
            np.cumsum(high - low, out=axis_starts[1:])
            begins = low[self._axis]
            gaps = np.flatnonzero((self._last_absent >= begins) & (high[self._axis] > begins))
            starts = np.arange(len(begins)) * self._values.shape[1] + begins
            values = self._values.reshape(-1)
            values.flags.writeable = False
            return RecentRows(usable, self._axis, self._times[inside], axis_starts, values, starts, gaps)

    def _update(
        self, chosen: SeriesSelection, now: TargetHeads, start: int, read_newest: Callable[[], NewestCells]
    ) -> bool:
        """Read what is new; False if it is too much to keep."""
        # First: a change while the rows are read is then seen by the next query.
        versions = [head.version for head in now.heads]
        newest = max([head.last or start for head in now.heads])
        if newest - start > self._max_span_ms:
            return False
        self._span_ms = max(self._span_ms, newest - start)
        reads_all = start < self._since
        changed = (
            range(len(versions)) if reads_all else changed_heads(self._heads, self._versions, now, versions)
        )
        if not reads_all and len(changed) >= MANY_TARGETS:
            changed = self._add_newest(changed, now, versions, read_newest)
        if not changed:
            return True
        since = newest - self._span_ms - _SPARE_MS if reads_all else self._since
        new_rows: list[_NewRows] = []
        chosen.find_head_columns(now.heads)
        for number in changed:
            head = now.heads[number]
            replaces = reads_all or self._is_replaced(number, head, versions[number])
            begin = max(since, now.newest_sealed[number] + 1)
            if not replaces and self._used[number]:
                begin = int(self._times[number, self._used[number] - 1]) + 1
            rows = head.rows_since(begin)
            self._is_plain[number] = rows is not None
            if rows is not None:
                new_rows.append(_NewRows(number, replaces, *rows))
            self._heads[number], self._versions[number] = head, versions[number]
        if not self._make_room(new_rows, since, newest):
            self._forget()
            self._max_span_ms = newest - start - 1
            return False
        for new in new_rows:
            self._add(chosen, new, now.heads[new.number])
        if reads_all:
            self._find_absent(slice(None), 0, self._values.shape[1])
        else:
            for new in new_rows:
                end = int(self._used[new.number])
                series = slice(self._firsts[new.number], self._firsts[new.number + 1])
                self._find_absent(series, end - len(new.times), end)
        return True

    def _add_newest(
        self,
        changed: Sequence[int],
        now: TargetHeads,
        versions: Sequence[int],
        read_newest: Callable[[], NewestCells],
    ) -> Sequence[int]:
        """Add the newest rows of all targets that have exactly one new row, and return the others."""
        newest = read_newest()
        is_next = np.zeros(len(self._targets), np.bool_)
        # A head that has changed since the versions were read may have another newest row.
        is_next[changed] = [
            self._heads[number] is now.heads[number]
            and self._versions[number] + 1 == versions[number] == now.heads[number].version
            for number in changed
        ]
        last = np.maximum(self._used - 1, 0)
        known = np.take_along_axis(self._times, last[:, None], axis=1)[:, 0] if self._times.size else last
        is_next &= newest.is_usable & self._is_plain & (self._used > 0) & (self._used < self._times.shape[1])
        is_next &= (newest.moments > known) & (newest.moments < NO_ROW)
        numbers = np.flatnonzero(is_next)
        rows = np.flatnonzero(is_next[self._axis])
        columns, cells = self._used[self._axis[rows]], newest.values[rows]
        self._values[rows, columns] = cells
        absent = cells.view(np.int64) == ABSENT_BITS
        self._last_absent[rows[absent]] = columns[absent]
        self._times[numbers, self._used[numbers]] = newest.moments[numbers]
        self._used[numbers] += 1
        for number in numbers.tolist():
            self._versions[number] += 1
        return [number for number in changed if not is_next[number]]

    def _is_replaced(self, number: int, head: Head, version: int) -> bool:
        is_same = self._heads[number] is head and self._is_plain[number]
        return not is_same or self._versions[number] // EDIT != version // EDIT

    def _make_room(self, new_rows: Sequence[_NewRows], since: int, newest: int) -> bool:
        """Make a new matrix if rows are replaced, or if the old one is full; False if it would be too large."""
        kept = self._used.copy()
        kept[[rows.number for rows in new_rows if rows.replaces]] = 0
        needed = kept.copy()
        # Of no target that changed the rows may be plain: an empty list would be one of floats.
        needed[[rows.number for rows in new_rows]] += np.array([len(rows.times) for rows in new_rows], np.int64)
        width = self._times.shape[1]
        is_full = int(needed.max(initial=0)) > width
        begins = np.zeros(len(kept), np.int64)
        if is_full:
            since = max(since, newest - self._span_ms - _SPARE_MS)
            begins = np.minimum(np.count_nonzero(self._times < since, axis=1), kept)
            width = max(_MIN_ROWS, int((needed - begins).max(initial=0)) * 5 // 4 + 4)
            if width * (len(self._axis) + len(kept)) * self._values.itemsize > MAX_BYTES:
                return False
        self._since = since
        if is_full or (kept != self._used).any():
            self._copy(begins, kept, width)
        return True

    def _copy(self, begins: Int64s, ends: Int64s, width: int) -> None:
        """Copy columns of each target to a new matrix; readers keep the old one."""
        times = np.full((len(self._targets), width), END_OF_TIME)
        values = np.zeros((len(self._axis), width))
        for number in np.flatnonzero(begins < ends).tolist():
            columns = slice(begins[number], ends[number])
            count = int(ends[number] - begins[number])
            rows = slice(self._firsts[number], self._firsts[number + 1])
            times[number, :count] = self._times[number, columns]
            values[rows, :count] = self._values[rows, columns]
        self._used = np.maximum(ends - begins, 0)
        self._last_absent = np.maximum(self._last_absent - begins[self._axis], -1)
        self._last_absent[self._used[self._axis] == 0] = -1
        self._times, self._values = times, values

    def _add(self, chosen: SeriesSelection, rows: _NewRows, head: Head) -> None:
        number, count = rows.number, len(rows.times)
        if not count:
            return
        first, last = self._firsts[number], self._firsts[number + 1]
        begin = int(self._used[number])
        columns = chosen.head_columns(self._targets[number], first, head)
        _copy_cells(self._values[first:last, begin : begin + count], rows.parts, columns, first)
        self._times[number, begin : begin + count] = rows.times
        self._used[number] = begin + count

    def _find_absent(self, series: slice, begin: int, end: int) -> None:
        """Find the last column without a sample in new cells; cells that are not used yet are 0."""
        cells = self._values[series, begin:end]
        if np.isnan(cells).any():  # an absent cell is a NaN
            absent = cells.view(np.int64) == ABSENT_BITS
            lines = np.flatnonzero(absent.any(axis=1))
            self._last_absent[series][lines] = end - 1 - absent[lines, ::-1].argmax(axis=1)


def changed_heads(
    heads: Sequence[Head | None], versions: Sequence[int], now: TargetHeads, versions_now: Sequence[int]
) -> Sequence[int]:
    """Return the numbers of targets whose head has changed."""
    if heads == now.heads and versions == versions_now:
        return ()
    pairs = zip(heads, now.heads, versions, versions_now, strict=True)
    return [number for number, (a, b, old, new) in enumerate(pairs) if a is not b or old != new]


def _copy_cells(cells: Float64s, parts: Sequence[Float64s], columns: HeadColumns, first: int) -> None:
    begin = 0
    for part in parts:
        some = cells[:, begin : begin + len(part)]
        begin += len(part)
        if columns.series_count == len(cells) and columns.width <= part.shape[1]:
            some[:] = part[:, columns.columns].T
        else:  # series that the head does not have, or rows that are older than a column
            some[:] = ABSENT
            some[columns.all_rows - first] = column_lines(part, columns.all_columns)
