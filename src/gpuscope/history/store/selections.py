"""A cache of recent selections: matchers → series, with their labels and their columns in the heads.

Dashboards repeat the same queries while series rarely change. When the index has changed, the matchers are
applied again; if they give the same series, the selection is still used.
The cache is limited in entries and in series; the least recently used entries are dropped first.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.head import Head
from gpuscope.history.store.index import Index
from gpuscope.history.store.tick import Int64s
from gpuscope.model.label_columns import LabelColumns
from gpuscope.model.series import Admit, Matcher

_MAX_ENTRIES = 1_024
MIN_CACHED_SERIES = 300_000
"""Of all entries, up to 250 bytes each with the encoded label sets. A store that has more series keeps as many:
checks and rules select most of them, and would otherwise encode their labels anew in each round."""
_MAX_KEY_CHARS = 2_000
"""Total length of the matchers' values; longer keys are not cached, because they could fill the memory."""

_ID_BITS = 32
"""Ids of series are smaller than 2 to this power."""

Groups = dict[int, Int64s]


# A named tuple: one is made for every target of a new selection.
class HeadColumns(NamedTuple):
    """Where a target's head has selected series."""

    order: tuple[Int64s, Int64s]
    """The `Head.order` for which this is valid."""
    all_rows: Int64s
    """Rows of the selection: of its series that are in the head."""
    all_columns: Int64s
    rows: Int64s | slice
    """As `all_rows`, a slice if possible: copying is much faster with one."""
    columns: Int64s | slice
    series_count: int
    width: int
    """Cells that a row must have to contain all columns."""

    @staticmethod
    def find(head: Head, series: Int64s, first_row: int) -> HeadColumns:
        order = head.order  # first: the columns are those of this order or of a later one
        columns = head.find_columns(series)
        count = len(series)
        rows = np.arange(first_row, first_row + count)
        width = int(columns.max(initial=-1)) + 1
        if columns.min(initial=0) >= 0:  # the head has all of them
            whole = slice(first_row, first_row + count)
            # Of ascending columns the ends tell whether they are consecutive. Once columns do not ascend, they
            # never do again, so this is right also if a series was added since.
            if head.columns_ascend and count and width - int(columns[0]) == count:
                return HeadColumns(order, rows, columns, whole, slice(width - count, width), count, width)
            return HeadColumns(order, rows, columns, whole, _slice(columns), count, width)
        found = columns >= 0
        rows, columns = rows[found], columns[found]
        return HeadColumns(order, rows, columns, _slice(rows), _slice(columns), len(columns), width)


def _find_many(heads: Sequence[Head], groups: Sequence[Int64s], first_rows: Sequence[int]) -> list[HeadColumns]:
    """As `HeadColumns.find`, for many targets, each of which has series: one search instead of one for each."""
    orders = [head.order for head in heads]
    ascend = all(head.columns_ascend for head in heads)  # read after the orders, as in `HeadColumns.find`
    sizes = np.array([len(order[0]) for order in orders])
    counts = np.array([len(group) for group in groups])
    base = np.arange(len(heads)) << _ID_BITS
    keys = np.concatenate([order[0] for order in orders])
    keys += np.repeat(base, sizes)
    wanted = np.concatenate(groups)
    wanted += np.repeat(base, counts)
    at = keys.searchsorted(wanted)
    begins = np.cumsum(counts) - counts
    has_all = np.logical_and.reduceat(keys.take(at, mode="clip") == wanted, begins)
    if ascend:  # the columns are 0, 1, 2, …
        columns = at - np.repeat(np.cumsum(sizes) - sizes, counts)
        is_run = np.ones(len(heads), np.bool_)
    else:
        columns = np.concatenate([order[1] for order in orders]).take(at, mode="clip")
        rises = np.ones(len(columns), np.bool_)
        rises[1:] = columns[1:] > columns[:-1]
        rises[begins] = True
        is_run = np.logical_and.reduceat(rises, begins)
    widths = np.maximum.reduceat(columns, begins) + 1
    is_run &= widths - columns[begins] == counts
    rows = np.arange(len(columns))
    columns_of_heads: list[HeadColumns] = []
    each = zip(heads, orders, groups, first_rows, begins.tolist(), has_all.tolist(), is_run.tolist(),
               widths.tolist(), strict=True)  # fmt: skip
    for head, order, group, first, begin, whole, run, width in each:
        if not whole:
            columns_of_heads.append(HeadColumns.find(head, group, first))
            continue
        count = len(group)
        all_columns = columns[begin : begin + count]
        chosen = slice(width - count, width) if run else all_columns
        all_rows = rows[begin : begin + count]
        columns_of_heads.append(
            HeadColumns(order, all_rows, all_columns, slice(first, first + count), chosen, count, width)
        )
    return columns_of_heads


def _slice(numbers: Int64s) -> Int64s | slice:
    """Return consecutive numbers as a slice."""
    if not len(numbers):
        return slice(0)
    first = int(numbers[0])
    is_run = int(numbers[-1]) - first == len(numbers) - 1 and bool((numbers[1:] > numbers[:-1]).all())
    return slice(first, first + len(numbers)) if is_run else numbers


class SeriesSelection:
    """The series that satisfy some matchers, in rows: series of one target are neighbours. Queries share it."""

    def __init__(self, index: Index, series: Int64s) -> None:
        self._index = index
        self._ids = series
        self._claims = index.claims
        self._groups: Groups | None = None
        homes = index.only_targets(series)
        self.is_shared = homes is None
        """Whether a series is written by several targets, or was removed meanwhile."""
        if homes is None:
            self._groups = index.by_target(series)
            self.series = series
            self.targets = np.fromiter(self._groups, np.int64, len(self._groups))
            self.first_rows: list[int] = np.cumsum([0, *map(len, self._groups.values())]).tolist()
        else:
            order = np.argsort(homes, kind="stable")
            ordered = homes[order]
            starts = np.flatnonzero(np.diff(ordered, prepend=0))
            self.series, self.targets = series[order], ordered[starts]
            self.first_rows = [*starts.tolist(), len(series)]
        self._head_columns: dict[int, HeadColumns] = {}

    def part(self, rows: NDArray[np.intp]) -> SeriesSelection:
        """Return a selection of these rows; the whole one if they are most of it, because of what is kept."""
        if 2 * len(rows) > len(self.series):
            return self
        return SeriesSelection(self._index, np.sort(self.series[rows]))

    @property
    def groups(self) -> Groups:
        """Series by target; a series that several targets write is in several groups."""
        if self._groups is None:
            parts = pairwise(self.first_rows)
            self._groups = {
                target: self.series[begin:end]
                for target, (begin, end) in zip(self.targets.tolist(), parts, strict=True)
            }
        return self._groups

    @property
    def is_outdated(self) -> bool:
        """Whether a target began to write series of another one after the selection was made."""
        return self._claims != self._index.claims

    def is_of(self, series: Int64s) -> bool:
        """Return whether these series would give an equal selection."""
        return self._claims == self._index.claims and np.array_equal(series, self._ids)

    @cached_property
    def labels(self) -> LabelColumns:
        return self._index.label_columns(self.series)

    @cached_property
    def _by_id(self) -> Int64s:
        return np.argsort(self.series)

    def rows_of(self, series: Int64s) -> Int64s:
        """Return the rows of series, all of which must be in the selection."""
        return self._by_id[np.searchsorted(self.series, series, sorter=self._by_id)]

    def head_columns(self, target: int, first_row: int, head: Head) -> HeadColumns:
        """Return where the head has the target's series; found once for all queries."""
        known = self._head_columns.get(target)
        if known is None or known.order is not head.order:
            known = self._head_columns[target] = HeadColumns.find(head, self.groups[target], first_row)
        return known

    def find_head_columns(self, heads: Sequence[Head]) -> None:
        """Find where the heads, one for each target, have the series, if that is not known for most of them."""
        if 2 * len(self._head_columns) > len(heads) or self.is_shared or not any(head.rows for head in heads):
            return
        columns = _find_many(heads, list(self.groups.values()), self.first_rows[:-1])
        self._head_columns = dict(zip(self.groups, columns, strict=True))

    @cached_property
    def counts(self) -> Int64s:
        """How many series each target has."""
        rows = np.array(self.first_rows, np.int64)
        return rows[1:] - rows[:-1]


class Selections:
    """Matchers → the series that satisfy them all."""

    def __init__(self, index: Index) -> None:
        self._index = index
        self._lock = threading.Lock()
        self._epoch = -1
        self._known: OrderedDict[tuple[Matcher, ...], tuple[int, SeriesSelection]] = OrderedDict()
        """With the version of the index."""
        self._series = 0

    def find(self, matchers: Sequence[Matcher], admit: Admit | None = None) -> SeriesSelection:
        """Return the selected series. Callers share the result and must not change it. `admit` is as in
        `Index.select`."""
        key, version = tuple(matchers), self._index.version
        known = self._get(key)
        if known is not None and known[0] == version:
            return known[1]
        series = self._index.select(matchers, admit)
        # Usually the new series of the index are others: labels and columns of this selection stay valid.
        is_same = known is not None and known[1].is_of(series)
        found = known[1] if known is not None and is_same else SeriesSelection(self._index, series)
        self._keep(key, version, found)
        return found

    def known(self, matchers: Sequence[Matcher]) -> SeriesSelection | None:
        """Return the cached result; None if there is none that is up to date."""
        known = self._get(tuple(matchers))
        return known[1] if known is not None and known[0] == self._index.version else None

    def _get(self, key: tuple[Matcher, ...]) -> tuple[int, SeriesSelection] | None:
        epoch = self._index.epoch
        with self._lock:
            if epoch != self._epoch:  # series were removed: labels of the selections hold their text
                self._known.clear()
                self._epoch, self._series = epoch, 0
            entry = self._known.get(key)
            if entry is not None:
                self._known.move_to_end(key)
            return entry

    def _keep(self, key: tuple[Matcher, ...], version: int, selection: SeriesSelection) -> None:
        if sum(len(matcher.value) for matcher in key) > _MAX_KEY_CHARS:
            return
        with self._lock:
            # A result computed while the index changed may be of either version: do not cache it.
            if version != self._index.version or self._epoch != self._index.epoch:
                return
            before = self._known.pop(key, None)
            self._series += len(selection.series) - (0 if before is None else len(before[1].series))
            self._known[key] = version, selection
            most = max(MIN_CACHED_SERIES, len(self._index))
            while self._series > most or len(self._known) > _MAX_ENTRIES:
                self._series -= len(self._known.popitem(last=False)[1][1].series)
