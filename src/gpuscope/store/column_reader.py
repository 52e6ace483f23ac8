"""Reads a selection as columns: a few array operations per target, none per series.

Most samples that a wide query reads are in rows of heads. Those are copied from the rows to one flat array. All
others (sealed, late or scattered samples, series that several targets write, series that are absent in the
newest row) are read by `Reader`, only for the targets or series that need it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuscope.series import Admit, Series
from gpuscope.series_columns import SeriesColumns, TimeAxes, flat_axes
from gpuscope.store.arrays import distinct
from gpuscope.store.contents import Contents, StoredTargetState
from gpuscope.store.head import Head
from gpuscope.store.head_view import ABSENT, ABSENT_BITS, Samples, column_lines
from gpuscope.store.reader import LoadAdmission, Reader
from gpuscope.store.selections import Groups, HeadColumns, SeriesSelection
from gpuscope.store.tick import Float64s, Int64s

_Index = NDArray[np.intp]


# Named tuples, because one is made for every target of a query: a dataclass takes four times as long.
class _Source(NamedTuple):
    """A target's head and what else may hold its samples."""

    target: int
    first_row: int
    """Of the selection."""
    series_count: int
    """Of the target's series in the selection."""
    head: Head
    newest_sealed: int
    is_late: bool


class _Rows(NamedTuple):
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

    def latest(self, chosen: SeriesSelection, start: int, end: int) -> SeriesColumns:
        """Return the newest sample in [start, end] of each series that has one."""
        if chosen.is_shared:
            return _from_samples(chosen, self._reader.latest(chosen.groups, start, end))
        values = np.full(len(chosen.series), ABSENT)
        moments: list[int] = []
        sources = self._sources(chosen)
        rest: Groups = {}
        for source in sources:
            row = None if source.is_late else source.head.newest_row(end)
            if row is None or row[0] < source.newest_sealed:
                # After a clock change, a block may hold newer samples than the head.
                rest[source.target] = chosen.groups[source.target]
                moments.append(-1)
                continue
            moments.append(row[0])
            found = chosen.head_columns(source.target, source.first_row, source.head)
            if row[0] >= start and found.width <= len(row[1]):
                values[found.rows] = row[1][found.columns]
        times = np.repeat(np.array(moments, np.int64), [source.series_count for source in sources])
        absent = np.flatnonzero(values.view(np.int64) == ABSENT_BITS)
        for source in _owners(sources, absent):
            if source.target not in rest:
                rest |= _missing(chosen, source, absent, start)
        if rest:
            others = self._reader.latest(rest, start, end)
            rows = chosen.rows_of(np.fromiter(others, np.int64, len(others)))
            times[rows] = [own[-1] for own, _ in others.values()]
            values[rows] = [some[-1] for _, some in others.values()]
        return _one_each(chosen, times, values)

    def read(self, chosen: SeriesSelection, start: int, end: int, admit: Admit | None) -> SeriesColumns:
        """Return the samples in [start, end] of each series that has some."""
        if chosen.is_shared:
            return _from_samples(chosen, self._reader.read(chosen.groups, start, end, admit))
        rest: Groups = {}
        plain: list[_Rows] = []
        bounds = np.array((start, end + 1))
        for source in self._sources(chosen):
            rows = None
            if not source.is_late and source.newest_sealed < start:
                rows = source.head.rows_between(bounds)
            if rows is None:
                rest[source.target] = chosen.groups[source.target]
            elif len(rows[0]):
                found = chosen.head_columns(source.target, source.first_row, source.head)
                if found.count:
                    plain.append(_Rows(*rows, found, len(rows[0]) * found.count))
        if admit is not None:
            LoadAdmission(admit).request(sum(one.cells for one in plain))
        others = self._reader.read(rest, start, end, admit) if rest else {}
        return _join(chosen, plain, others) if plain else _from_samples(chosen, others)

    def rows_with_data(self, chosen: SeriesSelection, start: int, end: int) -> _Index:
        """Return the rows of series in a head or block that overlaps [start, end]."""
        found: list[_Index] = [np.empty(0, np.intp)]
        rest: list[int] = []
        for source in self._sources(chosen):
            if chosen.is_shared or source.is_late or source.newest_sealed >= start:
                rest.append(source.target)
            elif source.head.overlaps(start, end):
                columns = chosen.head_columns(source.target, source.first_row, source.head)
                found.append(columns.all_rows)
        if rest:
            found += [
                chosen.rows_of(some) for some in self._reader.series_with_data(chosen.groups, rest, start, end)
            ]
        return distinct(np.concatenate(found))

    def _sources(self, chosen: SeriesSelection) -> list[_Source]:
        get = self._contents.get
        with self._contents.lock:
            # Of a target that was just removed nothing is read.
            states = [get(target) or StoredTargetState(target, "") for target in chosen.groups]
            return [
                _Source(state.id, first, last - first, state.head, state.newest_sealed, bool(state.late))
                for state, first, last in zip(states, chosen.first_rows, chosen.first_rows[1:], strict=False)
            ]


def _owners(sources: list[_Source], rows: _Index) -> list[_Source]:
    """Return the sources of rows of the selection."""
    ends = np.cumsum([source.series_count for source in sources])
    return [sources[number] for number in distinct(np.searchsorted(ends, rows, side="right")).tolist()]


def _missing(chosen: SeriesSelection, source: _Source, absent: _Index, start: int) -> Groups:
    """Return the target's series without a value that may have one in an earlier row or in a block."""
    first = source.first_row
    rows = absent[absent.searchsorted(first) : absent.searchsorted(first + source.series_count)]
    if source.newest_sealed < start:  # only the head can have it
        rows = np.intersect1d(rows, chosen.head_columns(source.target, first, source.head).all_rows)
    return {source.target: chosen.series[rows]} if len(rows) else {}


def _one_each(chosen: SeriesSelection, times: Int64s, values: Float64s) -> SeriesColumns:
    labels = chosen.labels
    found = values.view(np.int64) != ABSENT_BITS
    if not found.all():
        rows = np.flatnonzero(found)
        labels, times, values = labels.take(rows), times[rows], values[rows]
    each = np.arange(len(values) + 1)
    return SeriesColumns(labels, each[:-1], times, each, values, each[:-1])


def _from_samples(chosen: SeriesSelection, found: dict[int, Samples]) -> SeriesColumns:
    rows = chosen.rows_of(np.fromiter(found, np.int64, len(found)))
    labels = chosen.labels if _is_all(rows, len(chosen.series)) else chosen.labels.take(rows)
    return SeriesColumns.of([Series((), *samples) for samples in found.values()], labels)


def _is_all(rows: _Index, count: int) -> bool:
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _join(chosen: SeriesSelection, plain: list[_Rows], others: dict[int, Samples]) -> SeriesColumns:
    """Return rows of heads and samples read elsewhere, in the order of the selection."""
    axes = [one.times for one in plain]
    counts = [one.found.count for one in plain]
    axis = np.repeat(np.arange(len(axes)), counts)
    rows = np.concatenate([one.found.all_rows for one in plain])
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


def _copy_cells(plain: list[_Rows]) -> Float64s:
    """Return the values of all series, one series after the other."""
    values = np.empty(sum(one.cells for one in plain))
    at = 0
    for one in plain:
        found = one.found
        lines = values[at : at + one.cells].reshape(found.count, -1)
        at += one.cells
        begin = 0
        for part in one.parts:
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
