"""Chunks of sealed blocks, decoded, with a cache and with tolerance for damage."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterator

import numpy as np

from gpuscope.store.cache import ChunkCache, Columns
from gpuscope.store.catalog import Block
from gpuscope.store.codec import Where, split_chunk, unpack_columns, unpack_integers
from gpuscope.store.headview import Samples
from gpuscope.store.health import Health
from gpuscope.store.schema import CHUNK_BITS
from gpuscope.store.tick import Int64s

log = logging.getLogger(__name__)
_AT_ONCE = 128
_SELECT_MANY = f"SELECT id, data FROM chunk WHERE id IN ({','.join('?' * _AT_ONCE)})"  # noqa: S608
_MASK = (1 << CHUNK_BITS) - 1


class BlockReader:
    """Reads through one connection, inside its transaction."""

    def __init__(self, db: sqlite3.Connection, cache: ChunkCache, health: Health) -> None:
        self._db = db
        self._cache = cache
        self._health = health

    def read(self, block: Block, series: Int64s) -> dict[int, Samples]:
        """All samples of the block for each of the series that is in it."""
        wanted = ((block.id << CHUNK_BITS) | series).tolist()
        cached = self._cache.get_many(wanted)
        missing = [chunk for chunk in wanted if chunk not in cached]
        if missing:
            columns = self._columns_of(block)
            if columns is not None:
                fresh = self._decode(columns, missing)
                self._cache.put_many(fresh, columns)
                cached.update(fresh)
        return {chunk & _MASK: samples for chunk, samples in cached.items()}

    def _decode(self, columns: Columns, chunks: list[int]) -> dict[int, Samples]:
        found: dict[int, Samples] = {}
        for chunk, data in self._fetch(chunks):
            try:
                where, values = split_chunk(data)
                times = columns.pick(where)
                found[chunk] = times, values.decode(len(times))
            except Exception as error:  # pcodec raises its own kinds on a torn blob
                self._damaged(chunk, error)
        return found

    def _fetch(self, chunks: list[int]) -> Iterator[tuple[int, bytes]]:
        for at in range(0, len(chunks), _AT_ONCE):
            some = chunks[at : at + _AT_ONCE]
            try:
                if len(some) < 4:
                    rows = self._one_by_one(some)
                else:
                    padded = some + some[-1:] * (_AT_ONCE - len(some))
                    rows = self._db.execute(_SELECT_MANY, padded).fetchall()
            except sqlite3.DatabaseError:
                rows = self._one_by_one(some)
            yield from rows

    def _one_by_one(self, chunks: list[int]) -> list[tuple[int, bytes]]:
        rows = []
        for chunk in chunks:
            try:
                rows += self._db.execute("SELECT id, data FROM chunk WHERE id = ?", (chunk,)).fetchall()
            except sqlite3.DatabaseError as error:
                self._damaged(chunk, error)
        return rows

    def _columns_of(self, block: Block) -> Columns | None:
        columns = self._cache.columns.get(block.id)
        if columns is not None:
            return columns
        try:
            row = self._db.execute("SELECT times FROM block WHERE id = ?", (block.id,)).fetchone()
            if row is None:
                return None
            columns = self._cache.columns[block.id] = Columns(unpack_columns(row[0]))
        except Exception as error:
            self._damaged(block.id << CHUNK_BITS, error)
        return columns

    def base_times(self, block: Block) -> Int64s | None:
        """The times of the target's scrapes in a block; None if they cannot be read."""
        columns = self._columns_of(block)
        return None if columns is None else columns.pick(Where())

    def members(self, block: Block) -> Int64s:
        """Ascending ids of the series that have samples in a block."""
        try:
            row = self._db.execute("SELECT members FROM block WHERE id = ?", (block.id,)).fetchone()
            return np.empty(0, np.int64) if row is None else unpack_integers(row[0])
        except Exception as error:
            self._damaged(block.id << CHUNK_BITS, error)
            return np.empty(0, np.int64)

    def _damaged(self, chunk: int, error: Exception) -> None:
        if self._health.note_damaged(chunk):
            log.error(
                "store: block %d, series %d cannot be read and is left out: %s",
                chunk >> CHUNK_BITS,
                chunk & _MASK,
                error,
            )
