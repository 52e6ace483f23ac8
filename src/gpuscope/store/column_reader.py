"""Reads a selection as columns: a few array operations per target, none per series.

Most samples that a wide query reads are in rows of heads. Those are copied from the rows to one flat array. All
others (sealed, late or scattered samples, series that several targets write, series that are absent in the
newest row) are read by `Reader`, only for the targets or series that need it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpuscope.series import Admit, Series
from gpuscope.series_columns import SeriesColumns, TimeAxes, flat_axes
from gpuscope.store.contents import Contents
from gpuscope.store.head import Head
from gpuscope.store.head_view import ABSENT, ABSENT_BITS, Samples, column_lines
from gpuscope.store.reader import LoadAdmission, Reader
from gpuscope.store.selections import Groups, HeadColumns, Selection
from gpuscope.store.tick import Float64s, Int64s

_Index = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class _Source:
    """A target's head and what else may hold its samples."""

    target: int
    first_row: int
    """Of the selection."""
    head: Head
    newest_sealed: int
    is_late: bool


@dataclass(frozen=True, slots=True)
class _Rows:
    """Head rows in a time range, and where they have the selected series."""

    times: Int64s
    parts: list[Float64s]
    found: HeadColumns

    @property
    def cells(self) -> int:
        return len(self.times) * len(self.found.rows)


class ColumnReader:
    """See the module docstring."""

    def __init__(self, reader: Reader, contents: Contents) -> None:
        self._reader = reader
        self._contents = contents

    def latest(self, chosen: Selection, start: int, end: int) -> SeriesColumns:
        """Return the newest sample in [start, end] of each series that has one."""
        if chosen.is_shared:
            return _from_samples(chosen, self._reader.latest(chosen.groups, start, end))
        times = np.full(len(chosen.series), -1, np.int64)
        values = np.full(len(chosen.series), ABSENT)
        rest: Groups = {}
        for source in self._sources(chosen):
            row = None if source.is_late else source.head.newest_row(end)
            if row is None or row[0] < source.newest_sealed:
                # After a clock change, a block may hold newer samples than the head.
                rest[source.target] = chosen.groups[source.target]
                continue
            found = chosen.head_columns(source.target, source.first_row, source.head)
            complete = row[0] >= start and _take_row(row, found, times, values)
            if not complete or len(found.rows) < len(chosen.groups[source.target]):
                missing = _missing(chosen, source, found, values, start)
                if len(missing):
                    rest[source.target] = missing
        if rest:
            for sid, (own, some) in self._reader.latest(rest, start, end).items():
                row_number = int(chosen.rows_of(np.array([sid]))[0])
                times[row_number], values[row_number] = own[-1], some[-1]
        return _one_each(chosen, times, values)

    def read(self, chosen: Selection, start: int, end: int, admit: Admit | None) -> SeriesColumns:
        """Return the samples in [start, end] of each series that has some."""
        if chosen.is_shared:
            return _from_samples(chosen, self._reader.read(chosen.groups, start, end, admit))
        rest: Groups = {}
        plain: list[_Rows] = []
        for source in self._sources(chosen):
            rows = None
            if not source.is_late and source.newest_sealed < start:
                rows = source.head.rows_between(start, end)
            if rows is None:
                rest[source.target] = chosen.groups[source.target]
            elif len(rows[0]):
                found = chosen.head_columns(source.target, source.first_row, source.head)
                if len(found.rows):
                    plain.append(_Rows(*rows, found))
        if admit is not None:
            LoadAdmission(admit).request(sum(one.cells for one in plain))
        others = self._reader.read(rest, start, end, admit) if rest else {}
        return _join(chosen, plain, others) if plain else _from_samples(chosen, others)

    def _sources(self, chosen: Selection) -> Iterator[_Source]:
        get = self._contents.get
        with self._contents.lock:
            states = [get(target) for target in chosen.groups]
            found = [
                _Source(state.id, first_row, state.head, state.newest_sealed, bool(state.late))
                for state, first_row in zip(states, chosen.first_rows, strict=False)
                if state is not None
            ]
        return iter(found)


def _take_row(row: tuple[int, Float64s], found: HeadColumns, times: Int64s, values: Float64s) -> bool:
    """Copy a row's cells; return False if some are absent."""
    time, cells = row
    if found.width > len(cells):
        return False  # the row is older than a column
    picked = cells.take(found.columns)
    values[found.rows] = picked
    times[found.rows] = time
    return not bool((picked.view(np.int64) == ABSENT_BITS).any())


def _missing(chosen: Selection, source: _Source, found: HeadColumns, values: Float64s, start: int) -> Int64s:
    """Return the target's series without a value that may have one in an earlier row or in a block."""
    series = chosen.groups[source.target]
    is_missing = values[source.first_row : source.first_row + len(series)].view(np.int64) == ABSENT_BITS
    if source.newest_sealed < start:  # only the head can have it
        in_head = np.zeros(len(series), np.bool_)
        in_head[found.rows - source.first_row] = True
        is_missing &= in_head
    missing: Int64s = series[is_missing]
    return missing


def _one_each(chosen: Selection, times: Int64s, values: Float64s) -> SeriesColumns:
    labels = chosen.labels
    found = values.view(np.int64) != ABSENT_BITS
    if not found.all():
        rows = np.flatnonzero(found)
        labels, times, values = labels.take(rows), times[rows], values[rows]
    each = np.arange(len(values) + 1)
    return SeriesColumns(labels, each[:-1], times, each, values, each[:-1])


def _from_samples(chosen: Selection, found: dict[int, Samples]) -> SeriesColumns:
    rows = chosen.rows_of(np.fromiter(found, np.int64, len(found)))
    labels = chosen.labels if _is_all(rows, len(chosen.series)) else chosen.labels.take(rows)
    return SeriesColumns.of([Series((), *samples) for samples in found.values()], labels)


def _is_all(rows: _Index, count: int) -> bool:
    return len(rows) == count and bool((rows == np.arange(count)).all())


def _join(chosen: Selection, plain: list[_Rows], others: dict[int, Samples]) -> SeriesColumns:
    """Return rows of heads and samples read elsewhere, in the order of the selection."""
    axes = [one.times for one in plain]
    counts = [len(one.found.rows) for one in plain]
    axis = np.repeat(np.arange(len(axes)), counts)
    rows = np.concatenate([one.found.rows for one in plain])
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
        lines = values[at : at + one.cells].reshape(len(one.found.rows), -1)
        at += one.cells
        begin = 0
        for part in one.parts:
            lines[:, begin : begin + len(part)] = column_lines(part, one.found.columns)
            begin += len(part)
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
