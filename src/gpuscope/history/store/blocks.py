"""Reads samples of sealed blocks through a cache of decoded chunks; skips chunks that are damaged."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Iterable
from weakref import WeakValueDictionary

import numpy as np

from gpuscope.history.store.chunk_codec import (
    TimeSelection,
    from_bundle,
    split_chunk,
    unpack_columns,
    unpack_integers,
)
from gpuscope.history.store.contents import Block
from gpuscope.history.store.head_view import Samples
from gpuscope.history.store.options import OwnStats
from gpuscope.history.store.schema import BLOCK_BITS
from gpuscope.history.store.tick import Int64s, distinct

log = logging.getLogger(__name__)

# A least-recently-used cache of decoded chunks, limited in bytes.
#
# Blocks never change and their ids are never reused, so entries never become invalid. A series without
# samples in a block has an empty entry.

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
        by_chunk: dict[int, Samples] = {}
        with self._lock:
            for chunk in chunks:
                entry = self._entries.get(chunk)
                if entry is not None:
                    self._entries.move_to_end(chunk)
                    by_chunk[chunk] = entry[0]
        return by_chunk

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


_MASK = (1 << BLOCK_BITS) - 1
_NO_SAMPLES: Samples = np.empty(0, np.int64), np.empty(0, np.float64)


class NotCached(Exception):
    """A chunk is not in the cache and must be read from the file."""


class CachedBlocks:
    """Reads blocks from the cache only; needs no connection and no transaction."""

    def __init__(self, cache: ChunkCache) -> None:
        self._cache = cache

    def read(self, block: Block, series: Int64s) -> dict[int, Samples]:
        """As `BlockReader.read`; raises `NotCached` if a chunk is not in the cache."""
        wanted = ((block.id << BLOCK_BITS) | series).tolist()
        cached = self._cache.get_many(wanted)
        if len(cached) < len(wanted):
            raise NotCached
        return {chunk & _MASK: samples for chunk, samples in cached.items() if len(samples[0])}


class BlockReader:
    """Reads blocks through one connection, inside its transaction."""

    def __init__(self, db: sqlite3.Connection, cache: ChunkCache, own_stats: OwnStats) -> None:
        self._db = db
        self._cache = cache
        self._own_stats = own_stats

    def read(self, block: Block, series: Int64s) -> dict[int, Samples]:
        """Return all samples in the block of each given series that is in it."""
        wanted = ((block.id << BLOCK_BITS) | series).tolist()
        by_series = {chunk & _MASK: samples for chunk, samples in self._cache.get_many(wanted).items()}
        if len(by_series) < len(wanted):
            parts = self._parts(block)
            if parts is not None:
                missing = np.array([sid for sid in series.tolist() if sid not in by_series], np.int64)
                fresh = self._decode(block, parts, missing)
                self._cache.put_many(
                    {block.id << BLOCK_BITS | sid: samples for sid, samples in fresh.items()}, parts
                )
                by_series.update(fresh)
        return {sid: samples for sid, samples in by_series.items() if len(samples[0])}

    def _decode(self, block: Block, parts: BlockParts, series: Int64s) -> dict[int, Samples]:
        """Return the samples of each series, empty if it has none; leave out series that cannot be read."""
        by_series: dict[int, Samples] = {}
        series = np.sort(series)
        which = np.searchsorted(parts.starts, series, side="right") - 1
        by_series.update(dict.fromkeys(series[which < 0].tolist(), _NO_SAMPLES))
        for number in distinct(which[which >= 0]).tolist():
            bundle = block.id << BLOCK_BITS | int(parts.starts[number])
            wanted = series[which == number]
            try:
                rows = self._db.execute("SELECT data FROM bundle WHERE id = ?", (bundle,)).fetchall()
                chunks = list(from_bundle(rows[0][0], wanted)) if rows else []
            except (sqlite3.DatabaseError, ValueError) as error:
                self._damaged(bundle, error)
                continue
            if rows:
                by_series.update(dict.fromkeys(wanted.tolist(), _NO_SAMPLES))
            for sid, data in chunks:
                try:
                    where, values = split_chunk(data)
                    times = parts.pick(where)
                    by_series[sid] = times, values.decode(len(times))
                except Exception as error:  # pcodec raises exceptions of its own for a truncated blob
                    del by_series[sid]
                    self._damaged(block.id << BLOCK_BITS | sid, error)
        return by_series

    def _parts(self, block: Block) -> BlockParts | None:
        parts = self._cache.parts.get(block.id)
        if parts is not None:
            return parts
        low, high = block.id << BLOCK_BITS, (block.id + 1) << BLOCK_BITS
        try:
            row = self._db.execute("SELECT times FROM block WHERE id = ?", (block.id,)).fetchone()
            if row is None:
                return None
            ids = self._db.execute("SELECT id FROM bundle WHERE id >= ? AND id < ? ORDER BY id", (low, high))
            starts = np.array([bundle & _MASK for (bundle,) in ids], np.int64)
            parts = self._cache.parts[block.id] = BlockParts(unpack_columns(row[0]), starts)
        except Exception as error:
            self._damaged(low, error)
        return parts

    def base_times(self, block: Block) -> Int64s | None:
        """Return the scrape times in a block; None if they cannot be read."""
        parts = self._parts(block)
        return None if parts is None else parts.pick(TimeSelection())

    def members(self, block: Block) -> Int64s:
        """Return the ids of the series in a block, ascending."""
        try:
            row = self._db.execute("SELECT members FROM block WHERE id = ?", (block.id,)).fetchone()
            return np.empty(0, np.int64) if row is None else unpack_integers(row[0])
        except Exception as error:
            self._damaged(block.id << BLOCK_BITS, error)
            return np.empty(0, np.int64)

    def _damaged(self, chunk: int, error: Exception) -> None:
        if self._own_stats.add_damaged(chunk):
            log.error(
                "store: block %d: series %d cannot be read and is skipped: %s",
                chunk >> BLOCK_BITS,
                chunk & _MASK,
                error,
            )
