"""A least-recently-used cache of decoded chunks, limited in bytes.

Blocks never change and their ids are never reused, so entries never become invalid. A series without samples in
a block has an empty entry.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakValueDictionary

from gpuscope.history.store.chunk_codec import TimeSelection
from gpuscope.history.store.head_view import Samples
from gpuscope.history.store.tick import Int64s

_OVERHEAD = 250


class BlockParts:
    """Data shared by all chunks of a block: timestamp columns, and the first series of each bundle. Equal
    selections return the same timestamps array."""

    __slots__ = ("__weakref__", "_columns", "_picked", "starts")

    def __init__(self, columns: list[Int64s], starts: Int64s) -> None:
        self._columns = columns
        self._picked: WeakValueDictionary[TimeSelection, Int64s] = WeakValueDictionary()
        self.starts = starts

    def pick(self, where: TimeSelection) -> Int64s:
        times = self._picked.get(where)
        if times is None:
            times = self._picked[where] = where.pick(self._columns)
        return times


class ChunkCache:
    """Maps chunk ids to samples; drops the least recently used first."""

    def __init__(self, max_bytes: int) -> None:
        self._max = max_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[int, tuple[Samples, int, BlockParts]] = OrderedDict()
        self.parts: WeakValueDictionary[int, BlockParts] = WeakValueDictionary()
        """By block id; an entry lives as long as a reader or a cached chunk needs it."""
        self.bytes = 0

    def get_many(self, chunks: Iterable[int]) -> dict[int, Samples]:
        found: dict[int, Samples] = {}
        with self._lock:
            for chunk in chunks:
                entry = self._entries.get(chunk)
                if entry is not None:
                    self._entries.move_to_end(chunk)
                    found[chunk] = entry[0]
        return found

    def count(self, chunks: Iterable[int]) -> int | None:
        """Return the number of samples in these chunks; None if a chunk is not cached."""
        entries = self._entries
        total = 0
        for chunk in chunks:
            entry = entries.get(chunk)
            if entry is None:
                return None
            total += len(entry[0][0])
        return total

    def put_many(self, samples: dict[int, Samples], parts: BlockParts) -> None:
        """Add chunks. They keep their block's parts alive, so that chunks decoded later share timestamps."""
        with self._lock:
            for chunk, one in samples.items():
                if chunk in self._entries:
                    continue
                # Most chunks of a block share one timestamps array: count a quarter of it for each.
                size = one[0].nbytes // 4 + one[1].nbytes + _OVERHEAD
                self._entries[chunk] = (one, size, parts)
                self.bytes += size
            while self.bytes > self._max and self._entries:
                self.bytes -= self._entries.popitem(last=False)[1][1]

    def clear(self) -> None:
        with self._lock:
            self._entries.clear()
            self.bytes = 0
