"""The label pairs of all series, as numbers in one flat array.

The labels of thousands of series are read by a few array operations, without a Python object for each series.
Not thread-safe: belongs to the index and its lock.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gpuscope.history.store.tick import Int64s
from gpuscope.model.label_columns import Codes

_NO_SERIES = -1
_MIN_SIZE = 1024


class SeriesPairs:
    """Series id → the numbers of its label pairs, in the order of the label names."""

    def __init__(self) -> None:
        self._first = np.zeros(_MIN_SIZE, np.int64)
        """Where the pairs of each series id begin."""
        self._counts = np.full(_MIN_SIZE, _NO_SERIES, np.int32)
        self._flat = np.zeros(_MIN_SIZE, np.int32)
        self._used = 0
        self._series = 0

    def __len__(self) -> int:
        return self._series

    def __contains__(self, sid: int) -> bool:
        return 0 <= sid < len(self._counts) and bool(self._counts[sid] != _NO_SERIES)

    def add(self, sid: int, packed: bytes) -> None:
        """Add a series that is not here yet, with the numbers of its pairs in 32 bits each."""
        count = len(packed) >> 2
        begin = self._make_room(sid, count)
        self._first[sid], self._counts[sid] = begin, count
        self._flat[begin : begin + count] = np.frombuffer(packed, "<i4")
        self._series += 1

    def extend(self, sids: Int64s, packed: Sequence[bytes]) -> None:
        """As `add`, for many series."""
        numbers = np.frombuffer(b"".join(packed), "<i4")
        counts = np.fromiter(map(len, packed), np.int64, len(packed)) >> 2
        begin = self._make_room(int(sids.max(initial=-1)), len(numbers))
        self._first[sids] = begin + np.cumsum(counts) - counts
        self._counts[sids] = counts
        self._flat[begin : begin + len(numbers)] = numbers
        self._series += len(packed)

    def _make_room(self, sid: int, count: int) -> int:
        """Make room for a series id and for a count of pairs; return where these begin."""
        known, begin = len(self._counts), self._used
        if sid >= known:
            size = max(sid + 1, known * 5 // 4)
            self._first = np.concatenate((self._first, np.zeros(size - known, np.int64)))
            self._counts = np.concatenate((self._counts, np.full(size - known, _NO_SERIES, np.int32)))
        self._used += count
        if self._used > len(self._flat):
            grown = np.empty(max(self._used, len(self._flat) * 5 // 4), np.int32)
            grown[:begin] = self._flat[:begin]
            self._flat = grown
        return begin

    def get(self, sid: int) -> Codes:
        """Return the pairs of a series; none if it is not here (any more)."""
        if sid not in self:
            return self._flat[:0]
        first = self._first[sid]
        return self._flat[first : first + self._counts[sid]]

    def numbers_of(self, sids: Int64s) -> tuple[Codes, Int64s]:
        """Return the pairs of series one after the other, and how many each of them has."""
        counts = np.maximum(self._counts.take(sids), 0).astype(np.int64)
        firsts = self._first.take(sids)
        ends = np.cumsum(counts)
        total = int(ends[-1]) if len(ends) else 0
        if total and (firsts[1:] == firsts[0] + ends[:-1]).all():  # they are side by side
            return self._flat[firsts[0] : firsts[0] + total], counts
        return self._flat.take(np.repeat(firsts - (ends - counts), counts) + np.arange(total)), counts

    def ids(self) -> Int64s:
        """Return the ids of all series, ascending."""
        return np.flatnonzero(self._counts != _NO_SERIES)

    def remove(self, sids: Int64s) -> None:
        """Remove series, each of which is here."""
        self._counts[sids] = _NO_SERIES
        rest = self.ids()
        self._flat, counts = self.numbers_of(rest)
        self._first[rest] = np.cumsum(counts) - counts
        self._used, self._series = len(self._flat), len(rest)
