"""What is kept between queries of wide selections that are queried repeatedly.

`NewestCells` has the newest row of each target, for instant queries; `RecentColumns` the rows of the last
minutes, for range queries. Both begin with the first query of a selection: filling them takes as long as
reading the heads. The memory of all is limited; the selection that was not read for the longest time loses its
rows first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from gpuscope.store.head import Head
from gpuscope.store.head_view import ABSENT
from gpuscope.store.recent_columns import END_OF_TIME, RecentColumns, RecentRows, TargetHeads, changed_heads
from gpuscope.store.selections import SeriesSelection
from gpuscope.store.tick import Float64s, Int64s

MIN_TARGETS = 64
"""Of a selection of which something is kept: fewer targets are read as fast from their heads."""
MAX_BYTES = 32 << 20
"""Of the kept rows of all selections. `gpuscope_store_kept_rows_bytes` shows how many there are."""


class NewestCells:
    """The newest row of each target of a selection. Thread-safe."""

    def __init__(self, chosen: SeriesSelection) -> None:
        self._lock = threading.Lock()
        self._targets = list(chosen.groups)
        self._heads: list[Head | None] = [None] * len(self._targets)
        self._versions = [0] * len(self._targets)
        self._moments = np.full(len(self._targets), END_OF_TIME)
        self._values = np.full(len(chosen.series), ABSENT)

    @property
    def nbytes(self) -> int:
        return self._moments.nbytes + self._values.nbytes

    def read(self, chosen: SeriesSelection, now: TargetHeads) -> tuple[Int64s, Float64s]:
        """Return the time of each target's newest row, and the row's value of each series. The time is
        `END_OF_TIME` if there is no row, or if samples are not all in ascending rows."""
        with self._lock:
            versions = [head.version for head in now.heads]  # before the rows
            changed = changed_heads(self._heads, self._versions, now, versions)
            if changed:
                chosen.find_head_columns(now.heads)
            for number in changed:
                self._read(chosen, number, now.heads[number])
                self._heads[number], self._versions[number] = now.heads[number], versions[number]
            return self._moments.copy(), self._values.copy()

    def _read(self, chosen: SeriesSelection, number: int, head: Head) -> None:
        first, last = chosen.first_rows[number : number + 2]
        row = head.newest_row(END_OF_TIME)
        if row is None:
            self._moments[number] = END_OF_TIME
            return
        self._moments[number] = row[0]
        found = chosen.head_columns(self._targets[number], first, head)
        is_inside = found.width <= len(row[1])
        if not is_inside or found.series_count < last - first:
            self._values[first:last] = ABSENT
        if is_inside:
            self._values[found.rows] = row[1][found.columns]


@dataclass(slots=True)
class _Kept:
    newest: NewestCells | None = None
    recent: RecentColumns | None = None
    last_use: int = 0

    @property
    def nbytes(self) -> int:
        newest, recent = self.newest, self.recent
        return (0 if newest is None else newest.nbytes) + (0 if recent is None else recent.nbytes)


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
            return sum([one.nbytes for one in self._kept.values()])

    @staticmethod
    def is_kept(chosen: SeriesSelection) -> bool:
        """Return whether rows of a selection are worth keeping."""
        return not chosen.is_shared and len(chosen.groups) >= MIN_TARGETS

    def newest(self, chosen: SeriesSelection, now: TargetHeads) -> tuple[Int64s, Float64s]:
        """As `NewestCells.read`."""
        with self._lock:
            kept = self._use(chosen)
            cells = kept.newest
            if cells is None:
                cells = kept.newest = NewestCells(chosen)
                self._make_room(kept)
        return cells.read(chosen, now)

    def recent(self, chosen: SeriesSelection, now: TargetHeads, start: int, end: int) -> RecentRows | None:
        """As `RecentColumns.read`."""
        with self._lock:
            kept = self._use(chosen)
            columns = kept.recent
            if columns is None:
                columns = kept.recent = RecentColumns(chosen)
        rows = columns.read(chosen, now, start, end)
        with self._lock:
            self._make_room(kept)
        return rows

    def _use(self, chosen: SeriesSelection) -> _Kept:
        kept = self._kept.get(chosen)
        if kept is None:
            kept = self._kept[chosen] = _Kept()
        self._uses += 1
        kept.last_use = self._uses
        return kept

    def _make_room(self, used: _Kept) -> None:
        total = sum([one.nbytes for one in self._kept.values()])
        if total <= MAX_BYTES:
            return
        for one in sorted(self._kept.values(), key=lambda one: one.last_use):
            if one is not used:
                total -= one.nbytes
                one.newest = one.recent = None
                if total <= MAX_BYTES:
                    return
