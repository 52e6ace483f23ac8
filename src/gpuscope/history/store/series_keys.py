"""Finds a series by its label pairs, without keeping their numbers a second time.

The hashes of all keys are in a sorted array, 12 bytes per series: a dictionary of the keys takes ten times as
much. Keys added since the array was sorted are in a small dictionary. What is found by its hash is compared
with the label pairs themselves. Not thread-safe: belongs to the index and its lock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gpuscope.history.store.series_pairs import SeriesPairs
from gpuscope.history.store.tick import Int64s

MAX_NEW = 4096
"""So many keys, and an eighth of the others, wait in the dictionary."""


class SeriesKeys:
    """Numbers of label pairs, in 32 bits each → series id."""

    def __init__(self, pairs: SeriesPairs, hash_of: Callable[[bytes], int] = hash) -> None:
        """`pairs` has the label pairs of every series that is added here."""
        self._pairs = pairs
        self._hash_of = hash_of
        self._hashes = np.empty(0, np.int64)
        self._series = np.empty(0, np.int32)
        self._new: dict[bytes, int] = {}

    def find(self, key: bytes) -> int | None:
        sid = self._new.get(key)
        if sid is not None:
            return sid
        wanted = self._hash_of(key)
        at = int(self._hashes.searchsorted(wanted))
        while at < len(self._hashes) and self._hashes[at] == wanted:
            sid = int(self._series[at])
            if self._pairs.get(sid).tobytes() == key:
                return sid
            at += 1
        return None

    def add(self, key: bytes, sid: int) -> None:
        """Add a series that is not here yet."""
        self._new[key] = sid
        if len(self._new) > MAX_NEW + len(self._series) // 8:
            new, self._new = self._new, {}
            self.extend(list(new), np.fromiter(new.values(), np.int64, len(new)))

    def extend(self, keys: Sequence[bytes], sids: Int64s) -> None:
        """As `add`, for many series."""
        hashes = np.fromiter(map(self._hash_of, keys), np.int64, len(keys))
        order = np.argsort(hashes)
        hashes, series = hashes[order], sids[order].astype(np.int32)
        # Two sorted arrays are merged in a third of the time that sorting all takes.
        places = self._hashes.searchsorted(hashes)
        self._hashes = np.insert(self._hashes, places, hashes)
        self._series = np.insert(self._series, places, series)

    def remove(self, sids: Int64s) -> None:
        stays = ~np.isin(self._series, sids)
        self._hashes, self._series = self._hashes[stays], self._series[stays]
        gone = set(sids.tolist())
        self._new = {key: sid for key, sid in self._new.items() if sid not in gone}
