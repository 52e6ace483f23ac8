"""The recent rows of wide selections, kept between range queries.

They are kept from the first query of a selection on: filling a `RecentColumns` takes as long as reading the
heads. The memory of all is limited; the selection that was not read for the longest time loses its rows first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from gpuscope.history.store.newest_rows import NewestCells
from gpuscope.history.store.recent_columns import RecentColumns, RecentRows, TargetHeads
from gpuscope.history.store.selections import SeriesSelection

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
