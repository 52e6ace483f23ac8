"""Postings: the series of each label pair.

A sorted array, and an unsorted tail of series added since the array was built. The array is rebuilt when the
tail reaches an eighth of it.
"""

from __future__ import annotations

import numpy as np

from gpuscope.history.store.series_pairs import SeriesPairs
from gpuscope.history.store.tick import Int64s

_MAX_TAIL = 4096


class Postings:
    """Pair → series, sorted by pair, with an unsorted tail."""

    def __init__(self, every: SeriesPairs) -> None:
        self._all = every
        self._build()

    def _build(self) -> None:
        sids = self._all.ids()
        pairs, counts = self._all.numbers_of(sids)
        order = np.argsort(pairs, kind="stable")
        self._pairs, self._series = pairs[order], np.repeat(sids.astype(np.int32), counts)[order]
        # Bytes: lists of millions of integers would be scanned by every full garbage collection.
        self._tail_pairs = bytearray()
        self._tail_series = bytearray()

    def add(self, sid: int, packed: bytes) -> None:
        self._tail_pairs += packed
        self._tail_series += sid.to_bytes(4, "little") * (len(packed) >> 2)

    def _rebuild_if_large(self) -> None:
        # A rebuild sorts everything, so it waits until the tail is large.
        if len(self._tail_pairs) >> 2 > _MAX_TAIL + len(self._pairs) // 8:
            self._build()

    def estimate(self, numbers: list[int]) -> int:
        wanted = np.array(numbers, np.int32)
        starts = np.searchsorted(self._pairs, wanted)
        ends = np.searchsorted(self._pairs, wanted, side="right")
        return int((ends - starts).sum())

    def union(self, numbers: list[int]) -> Int64s:
        """Return ascending ids of series that have any of these pairs, which must be of one label name."""
        self._rebuild_if_large()
        wanted = np.array(numbers, np.int32)
        starts = np.searchsorted(self._pairs, wanted).tolist()
        ends = np.searchsorted(self._pairs, wanted, side="right").tolist()
        parts = [self._series[start:end] for start, end in zip(starts, ends, strict=True)]
        if self._tail_pairs:
            # Copies: a view of a bytearray would not let it grow.
            tail = np.frombuffer(bytes(self._tail_pairs), "<i4")
            parts.append(np.frombuffer(bytes(self._tail_series), "<i4")[np.isin(tail, wanted)])
        if not parts:
            return np.empty(0, np.int64)
        found = np.concatenate(parts).astype(np.int64)
        if len(parts) > 1:
            found.sort()
        return found

    def sizes(self) -> dict[int, int]:
        """Return the number of series of each pair."""
        numbers, counts = np.unique(self._all.numbers_of(self._all.ids())[0], return_counts=True)
        return dict(zip(numbers.tolist(), counts.tolist(), strict=True))
