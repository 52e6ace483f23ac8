"""Reads a selection as columns: a few array operations per target, none per series.

Most samples that a wide query reads are in rows of heads. Those are copied from the rows to one flat array. All
others (sealed, late or scattered samples, series that several targets write, series that are absent in the
newest row) are read by `Reader`, only for the targets or series that need it. The newest rows of all targets
are read at once (`NewestRows`). Recent rows of a wide selection are kept between range queries
(`KeptSelections`), and only targets with new rows are visited.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.contents import Contents, NewestCells
from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT, ABSENT_BITS, Samples, column_lines
from gpuscope.history.store.reader import LoadAdmission, Reader
from gpuscope.history.store.recent_columns import RecentColumns, RecentRows, TargetHeads
from gpuscope.history.store.selections import Groups, HeadColumns, SeriesSelection
from gpuscope.history.store.tick import Float64s, Int64s, distinct
from gpuscope.model.series import Admit, Series
from gpuscope.model.series_columns import SeriesColumns, TimeAxes, flat_axes

# The recent rows of wide selections, kept between range queries.
#
# They are kept from the first query of a selection on: filling a `RecentColumns` takes as long as reading the
# heads. The memory of all is limited; the selection that was not read for the longest time loses its rows
# first.

MIN_TARGETS = 64
"""Of a selection whose rows are kept: fewer targets are read as fast from their heads."""
MAX_BYTES = 32 << 20
"""Of the kept rows of all selections. `gpuscope_store_kept_rows_bytes` shows how many there are."""


@dataclass(slots=True)
class _Kept:
    columns: RecentColumns
    last_use: int = 0


class KeptSelections:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A selection that the cache of selections has dropped loses what is kept of it.
        self._kept: WeakKeyDictionary[SeriesSelection, _Kept] = WeakKeyDictionary()
        self._uses = 0

    @property
    def nbytes(self) -> int:
        """Return the memory of the kept rows; a query that reads rows dropped meanwhile has them for itself."""
        with self._lock:
            return sum([kept.columns.nbytes for kept in self._kept.values()])

    @staticmethod
    def is_kept(chosen: SeriesSelection) -> bool:
        """Return whether rows of a selection are worth keeping."""
        return not chosen.is_shared and len(chosen.targets) >= MIN_TARGETS

    def recent(
        self,
        chosen: SeriesSelection,
        now: TargetHeads,
        start: int,
        end: int,
        read_newest: Callable[[], NewestCells],
    ) -> RecentRows | None:
        """As `RecentColumns.read`."""
        with self._lock:
            kept = self._kept.get(chosen)
            if kept is None:
                kept = self._kept[chosen] = _Kept(RecentColumns(chosen))
            self._uses += 1
            kept.last_use = self._uses
        rows = kept.columns.read(chosen, now, start, end, read_newest)
        with self._lock:
            self._make_room(kept)
        return rows

    def _make_room(self, used: _Kept) -> None:
        total = sum([kept.columns.nbytes for kept in self._kept.values()])
        for chosen, one in sorted(self._kept.items(), key=lambda item: item[1].last_use):
            if total <= MAX_BYTES:
                return
            if one is not used:
                total -= one.columns.nbytes
                del self._kept[chosen]


_Index = NDArray[np.intp]

MAX_FEW_SERIES = 16
"""Read series by series: the array operations for all targets together take longer."""


# Named tuples, because one is made for every target of a query: a dataclass takes four times as long.
class _TargetSource(NamedTuple):
    """A target's head and what else may hold its samples."""

    number: int
    """Of the target in the selection."""
    target: int
    first_row: int
    """Of the selection."""
    series_count: int
    """Of the target's series in the selection."""
    head: Head
    newest_sealed: int
    is_late: bool


class _HeadRows(NamedTuple):
    """Head rows in a time range, and where they have the selected series."""

    times: Int64s
    parts: list[Float64s]
    found: HeadColumns
    cells: int
    """How many cells these are."""


class ColumnReader:
    """See the module docstring."""

    def __init__(self, reader: Reader, contents: Contents) -> None:
        self._reader = reader
        self._contents = contents
        self._kept = KeptSelections()

    @property
    def kept_rows_bytes(self) -> int:
        """Memory of the rows kept between queries."""
        return self._kept.nbytes

    def latest(self, chosen: SeriesSelection, start: int, end: int) -> SeriesColumns:
        """Return the newest sample in [start, end] of each series that has one."""
        if chosen.is_shared:
            return _from_samples(chosen, self._reader.latest(chosen.groups, start, end))
        return _one_each(chosen, *self.newest(chosen, start, end))

    def newest(self, chosen: SeriesSelection, start: int, end: int) -> tuple[Int64s, Float64s]:
        """Return time and value of the newest sample in [start, end] for each row of the selection; `ABSENT`
        is the value of a series without one."""
        if chosen.is_shared:
            times, values = np.full(len(chosen.series), -1), np.full(len(chosen.series), ABSENT)
            self._put(chosen, self._reader.latest(chosen.groups, start, end), times, values)
            return times, values
        now = self._heads(chosen)
        moments, values, is_read = self._newest_cells(chosen, now)
        is_read &= (moments <= end) & (moments >= np.array(now.newest_sealed, np.int64))
        is_read &= ~np.array(now.is_late, np.bool_)
        if not (is_read.all() and (moments >= start).all()):
            values[np.repeat(~is_read | (moments < start), chosen.counts)] = ABSENT
        moments[~is_read] = -1
        unread = np.flatnonzero(~is_read).tolist()
        if len(unread) >= MIN_TARGETS:
            chosen.find_head_columns(now.heads)
        rest: Groups = {}
        for source in _sources(chosen, now, unread):
            row = None if source.is_late else source.head.newest_row(end)
            if row is None or row[0] < source.newest_sealed:
                # After a clock change, a block may hold newer samples than the head.
                rest[source.target] = chosen.groups[source.target]
                continue
            moments[source.number] = row[0]
            columns = chosen.head_columns(source.target, source.first_row, source.head)
            if row[0] >= start and columns.width <= len(row[1]):
                values[columns.rows] = row[1][columns.columns]
        times = np.repeat(moments, chosen.counts)
        absent = np.flatnonzero(values.view(np.int64) == ABSENT_BITS)
        for source in _sources(chosen, now, _owners(chosen, absent)):
            if source.target not in rest:
                rest |= _missing(chosen, source, absent, start)
        if rest:
            self._put(chosen, self._reader.latest(rest, start, end), times, values)
        return times, values

    def _newest_cells(self, chosen: SeriesSelection, now: TargetHeads) -> NewestCells:
        """Return the newest row of each target, whatever its time, for selections that are not shared."""
        cells = self._contents.newest.read(chosen.targets, chosen.series, now.heads)
        if chosen.is_outdated:  # another target may have overwritten values of these series
            cells.is_usable[:] = False
        return cells

    @staticmethod
    def _put(chosen: SeriesSelection, by_series: dict[int, Samples], times: Int64s, values: Float64s) -> None:
        rows = chosen.rows_of(np.fromiter(by_series, np.int64, len(by_series)))
        times[rows] = [own[-1] for own, _ in by_series.values()]
        values[rows] = [some[-1] for _, some in by_series.values()]

    def read(self, chosen: SeriesSelection, start: int, end: int, admit: Admit | None) -> SeriesColumns:
        """Return the samples in [start, end] of each series that has some."""
        if chosen.is_shared or len(chosen.series) <= MAX_FEW_SERIES:
            return _from_samples(chosen, self._reader.read(chosen.groups, start, end, admit))
        if self._kept.is_kept(chosen):
            now = self._heads(chosen)
            recent = self._kept.recent(chosen, now, start, end, partial(self._newest_cells, chosen, now))
            if recent is not None:
                return self._join_recent(chosen, recent, start, end, admit)
        rest: Groups = {}
        plain: list[_HeadRows] = []
        bounds = np.array((start, end + 1))
        for source in self._all_sources(chosen):
            rows = None
            if not source.is_late and source.newest_sealed < start:
                rows = source.head.rows_between(bounds)
            if rows is None:
                rest[source.target] = chosen.groups[source.target]
            elif len(rows[0]):
                columns = chosen.head_columns(source.target, source.first_row, source.head)
                if columns.series_count:
                    plain.append(_HeadRows(*rows, columns, len(rows[0]) * columns.series_count))
        if admit is not None:
            LoadAdmission(admit).request(sum(selection.cells for selection in plain))
        others = self._reader.read(rest, start, end, admit) if rest else {}
        return _join(chosen, plain, others) if plain else _from_samples(chosen, others)

    def _join_recent(
        self, chosen: SeriesSelection, recent: RecentRows, start: int, end: int, admit: Admit | None
    ) -> SeriesColumns:
        """Return kept rows, and the samples of targets whose rows cannot be used."""
        if admit is not None:
            LoadAdmission(admit).request(int(np.diff(recent.axis_starts)[recent.axis].sum()))
        unread = chosen.targets[~recent.is_usable].tolist()
        rest = {target: chosen.groups[target] for target in unread}
        others = self._reader.read(rest, start, end, admit) if rest else {}
        return _add_others(chosen, recent, others)

    def rows_with_data(self, chosen: SeriesSelection, start: int, end: int) -> _Index:
        """Return the rows of series in a head or block that overlaps [start, end]."""
        now = self._heads(chosen)
        whole = np.zeros(len(now.heads), np.bool_)
        if len(now.heads) and not chosen.is_shared:
            moments, values, is_read = self._newest_cells(chosen, now)
            is_present = values.view(np.int64) != ABSENT_BITS
            whole = is_read & (moments >= start) & (moments <= end)
            whole &= np.logical_and.reduceat(is_present, chosen.first_rows[:-1])
        parts: list[_Index] = [np.flatnonzero(np.repeat(whole, chosen.counts))]
        rest: list[int] = []
        for source in _sources(chosen, now, np.flatnonzero(~whole).tolist()):
            if chosen.is_shared or source.is_late or source.newest_sealed >= start:
                rest.append(source.target)
            elif source.head.overlaps(start, end):
                columns = chosen.head_columns(source.target, source.first_row, source.head)
                parts.append(columns.all_rows)
        if rest:
            parts += [
                chosen.rows_of(some) for some in self._reader.series_with_data(chosen.groups, rest, start, end)
            ]
        return distinct(np.concatenate(parts))

    def _all_sources(self, chosen: SeriesSelection) -> Iterator[_TargetSource]:
        now = self._heads(chosen)
        if len(now.heads) >= MIN_TARGETS:
            chosen.find_head_columns(now.heads)
        return _sources(chosen, now, range(len(now.heads)))

    def _heads(self, chosen: SeriesSelection) -> TargetHeads:
        with self._contents.lock:
            states = self._contents.get_all(chosen.targets.tolist())
            return TargetHeads(
                [state.head for state in states],
                [state.newest_sealed for state in states],
                [bool(state.late) for state in states],
            )


def _sources(chosen: SeriesSelection, now: TargetHeads, numbers: Iterable[int]) -> Iterator[_TargetSource]:
    """Yield some of the targets, by number."""
    targets, rows = chosen.targets.tolist(), chosen.first_rows
    for number in numbers:
        first = rows[number]
        yield _TargetSource(
            number, targets[number], first, rows[number + 1] - first,
            now.heads[number], now.newest_sealed[number], now.is_late[number],
        )  # fmt: skip


def _add_others(chosen: SeriesSelection, recent: RecentRows, others: dict[int, Samples]) -> SeriesColumns:
    """Return kept rows with samples read elsewhere; series with absent cells get an axis of their own."""
    axis, starts = recent.axis.astype(np.int64), recent.value_starts
    axes: list[Int64s] = []
    lines: list[Float64s] = []
    rows: list[int] = []
    for row in recent.gaps.tolist():
        first, last = recent.axis_starts[axis[row]], recent.axis_starts[axis[row] + 1]
        line = recent.values[starts[row] : starts[row] + last - first]
        kept = line.view(np.int64) != ABSENT_BITS
        rows.append(row)
        axes.append(recent.times[first:last][kept])
        lines.append(line[kept])
    if others:
        rows += chosen.rows_of(np.fromiter(others, np.int64, len(others))).tolist()
        axes += [times for times, _ in others.values()]
        lines += [values for _, values in others.values()]
    times, axis_starts, values = recent.times, recent.axis_starts, recent.values
    if rows:
        sizes = np.array([len(line) for line in lines])
        axis[rows] = len(axis_starts) - 1 + np.arange(len(rows))
        starts[rows] = len(values) + np.cumsum(sizes) - sizes
        axis_starts = np.append(axis_starts, axis_starts[-1] + np.cumsum(sizes))
        times, values = np.concatenate((times, *axes)), np.concatenate((values, *lines))
    alive = np.diff(axis_starts)[axis] > 0
    if alive.all():
        return SeriesColumns(chosen.labels, axis, times, axis_starts, values, starts)
    found = np.flatnonzero(alive)
    return SeriesColumns(chosen.labels.take(found), axis[found], times, axis_starts, values, starts[found])


def _owners(chosen: SeriesSelection, rows: _Index) -> list[int]:
    """Return the numbers of the targets that have rows of the selection."""
    if not len(rows):
        return []
    owners: list[int] = distinct(np.searchsorted(chosen.first_rows[1:], rows, side="right")).tolist()
    return owners


def _missing(chosen: SeriesSelection, source: _TargetSource, absent: _Index, start: int) -> Groups:
    """Return the target's series without a value that may have one in an earlier row or in a block."""
    first = source.first_row
    rows = absent[absent.searchsorted(first) : absent.searchsorted(first + source.series_count)]
    if source.newest_sealed < start:  # only the head can have it
        rows = np.intersect1d(rows, chosen.head_columns(source.target, first, source.head).all_rows)
    return {source.target: chosen.series[rows]} if len(rows) else {}


def _one_each(chosen: SeriesSelection, times: Int64s, values: Float64s) -> SeriesColumns:
    labels = chosen.labels
    present = values.view(np.int64) != ABSENT_BITS
    if not present.all():
        rows = np.flatnonzero(present)
        labels, times, values = labels.take(rows), times[rows], values[rows]
    each = np.arange(len(values) + 1)
    return SeriesColumns(labels, each[:-1], times, each, values, each[:-1])


def _from_samples(chosen: SeriesSelection, by_series: dict[int, Samples]) -> SeriesColumns:
    rows = chosen.rows_of(np.fromiter(by_series, np.int64, len(by_series)))
    labels = chosen.labels if _is_all(rows, len(chosen.series)) else chosen.labels.take(rows)
    return SeriesColumns.of([Series((), *samples) for samples in by_series.values()], labels)


def _is_all(rows: _Index, count: int) -> bool:
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _join(chosen: SeriesSelection, plain: list[_HeadRows], others: dict[int, Samples]) -> SeriesColumns:
    """Return rows of heads and samples read elsewhere, in the order of the selection."""
    axes = [selection.times for selection in plain]
    counts = [selection.found.series_count for selection in plain]
    axis = np.repeat(np.arange(len(axes)), counts)
    rows = np.concatenate([selection.found.all_rows for selection in plain])
    lengths = np.repeat([len(times) for times in axes], counts)
    starts = np.cumsum(lengths) - lengths
    values = _copy_cells(plain)
    _close_gaps(axes, axis, values, starts)
    if others:
        known = TimeAxes()
        numbers = [known.number(times) for times, _ in others.values()]
        axis = np.append(axis, np.array(numbers) + len(axes))
        axes += known.arrays
        rows = np.append(rows, chosen.rows_of(np.fromiter(others, np.int64, len(others))))
        sizes = [len(times) for times, _ in others.values()]
        starts = np.append(starts, len(values) + np.cumsum(sizes) - sizes)
        values = np.concatenate((values, *(some for _, some in others.values())))
    times, axis_starts = flat_axes(axes)
    alive = np.flatnonzero(np.diff(axis_starts)[axis])
    order = alive[np.argsort(rows[alive], kind="stable")]
    rows = rows[order]
    labels = chosen.labels if len(rows) == len(chosen.series) else chosen.labels.take(rows)
    return SeriesColumns(labels, axis[order], times, axis_starts, values, starts[order])


def _copy_cells(plain: list[_HeadRows]) -> Float64s:
    """Return the values of all series, one series after the other."""
    values = np.empty(sum(selection.cells for selection in plain))
    at = 0
    for selection in plain:
        found = selection.found
        lines = values[at : at + selection.cells].reshape(found.series_count, -1)
        at += selection.cells
        begin = 0
        for part in selection.parts:
            end = begin + len(part)
            if found.width <= part.shape[1]:
                lines[:, begin:end] = part[:, found.columns].T
            else:  # rows that are older than a column
                lines[:, begin:end] = column_lines(part, found.all_columns)
            begin = end
    return values


def _close_gaps(axes: list[Int64s], axis: _Index, values: Float64s, starts: Int64s) -> None:
    """Move the samples of series with absent cells together, and give each such series its own axis."""
    if not np.isnan(values).any():  # an absent cell is a NaN
        return
    absent = values.view(np.int64) == ABSENT_BITS
    for number in np.flatnonzero(np.logical_or.reduceat(absent, starts)).tolist():
        times = axes[axis[number]]
        line = values[starts[number] : starts[number] + len(times)]
        kept = line.view(np.int64) != ABSENT_BITS
        line[: np.count_nonzero(kept)] = line[kept]
        axis[number] = len(axes)
        axes.append(times[kept])
