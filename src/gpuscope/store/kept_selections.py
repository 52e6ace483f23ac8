"""What is kept between queries of wide selections that are queried repeatedly.

`NewestCells` has the newest row of each target, for instant queries; `RecentColumns` the rows of the last
minutes, for range queries. Both begin with the second query of a selection: most are queried only once. The
memory of all is limited; the selection that was not read for the longest time loses its rows first.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from gpuscope.store.head import Head
from gpuscope.store.head_view import ABSENT
from gpuscope.store.recent_columns import END_OF_TIME, RecentColumns, TargetHeads, changed_heads
from gpuscope.store.selections import SeriesSelection
from gpuscope.store.tick import Float64s, Int64s

MIN_TARGETS = 64
"""Of a selection of which something is kept: fewer targets are read as fast from their heads."""
MAX_CELLS = 4 << 20
"""Of the recent rows of all selections: 32 MiB."""


class NewestCells:
    """The newest row of each target of a selection. Thread-safe."""

    def __init__(self, chosen: SeriesSelection) -> None:
        self._lock = threading.Lock()
        self._targets = list(chosen.groups)
        self._heads: list[Head | None] = [None] * len(self._targets)
        self._versions = [0] * len(self._targets)
        self._moments = np.full(len(self._targets), END_OF_TIME)
        self._values = np.full(len(chosen.series), ABSENT)

    def read(self, chosen: SeriesSelection, now: TargetHeads) -> tuple[Int64s, Float64s]:
        """Return the time of each target's newest row, and the row's value of each series. The time is
        `END_OF_TIME` if there is no row, or if samples are not all in ascending rows."""
        with self._lock:
            versions = [head.version for head in now.heads]  # before the rows
            for number in changed_heads(self._heads, self._versions, now, versions):
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
    was_read: bool = False
    was_read_at_once: bool = False
    last_use: int = 0

    @property
    def cells(self) -> int:
        return 0 if self.recent is None else self.recent.cells


class KeptSelections:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # A selection that the cache of selections has dropped loses what is kept of it.
        self._kept: WeakKeyDictionary[SeriesSelection, _Kept] = WeakKeyDictionary()
        self._uses = 0

    def newest(self, chosen: SeriesSelection) -> NewestCells | None:
        """Return the newest rows of a selection; None if they are not worth keeping."""
        if chosen.is_shared or len(chosen.groups) < MIN_TARGETS:
            return None
        with self._lock:
            kept = self._use(chosen)
            if kept.newest is None and kept.was_read_at_once:
                kept.newest = NewestCells(chosen)
            kept.was_read_at_once = True
            return kept.newest

    def recent(self, chosen: SeriesSelection) -> RecentColumns | None:
        """Return the recent rows of a selection; None if they are not worth keeping."""
        if chosen.is_shared or len(chosen.groups) < MIN_TARGETS:
            return None
        with self._lock:
            kept = self._use(chosen)
            if kept.recent is None and kept.was_read:
                kept.recent = RecentColumns(chosen)
            kept.was_read = True
            self._make_room(kept)
            return kept.recent

    def _use(self, chosen: SeriesSelection) -> _Kept:
        kept = self._kept.get(chosen)
        if kept is None:
            kept = self._kept[chosen] = _Kept()
        self._uses += 1
        kept.last_use = self._uses
        return kept

    def _make_room(self, used: _Kept) -> None:
        others = sorted((one for one in self._kept.values() if one.cells), key=lambda one: one.last_use)
        total = sum(one.cells for one in others)
        for one in others:
            if total <= MAX_CELLS or one is used:
                return
            total -= one.cells
            one.recent = None
