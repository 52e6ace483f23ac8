"""Publishing blocks: bundles first, in slices, then one short transaction that makes them count.

A bundle belongs to the store only while its block's row exists. So a merge can write its bundles and sweep the
old ones a slice at a time, ticks are committed in between, and a crash at any point leaves at most bundles
without a block, which the next opening sweeps away.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from gpuscope.store.block_builder import INSERT_BLOCK, INSERT_BUNDLE, BuiltBlock
from gpuscope.store.bundle import BundleRow
from gpuscope.store.contents import Block, Catalog
from gpuscope.store.schema import BLOCK_BITS
from gpuscope.store.store_errors import StoreError, from_sqlite
from gpuscope.store.writer import Writer

_AT_ONCE = 64
Change = Callable[[sqlite3.Connection], int | None]


def _nothing(db: sqlite3.Connection) -> None:
    return None


class BlockWriter:
    """Adds and drops blocks through the writer's turn; call it from any other thread."""

    def __init__(self, db: sqlite3.Connection, writer: Writer, catalog: Catalog) -> None:
        self._db = db
        self._writer = writer
        self._catalog = catalog

    def use_database(self, db: sqlite3.Connection) -> None:
        """Another file from now on."""
        self._db = db

    def stage(self, built: BuiltBlock) -> None:
        """Write a block's bundles; they do not count before `publish`."""
        for at in range(0, len(built.bundles), _AT_ONCE):
            rows = built.bundles[at : at + _AT_ONCE]

            def insert(db: sqlite3.Connection, rows: list[BundleRow] = rows) -> None:
                db.executemany(INSERT_BUNDLE, rows)

            self.transaction(insert)

    def publish(
        self,
        built: Sequence[BuiltBlock],
        dropped: Sequence[Block] = (),
        change: Change = _nothing,
        swap: Callable[[], None] = lambda: None,
    ) -> None:
        """Make staged blocks count and others not, with what else belongs to it, as one step for readers."""

        def apply(db: sqlite3.Connection) -> None:
            db.executemany(INSERT_BLOCK, [one.row() for one in built])
            db.executemany("DELETE FROM block WHERE id = ?", [(block.id,) for block in dropped])
            change(db)

        def swap_all() -> None:
            self._catalog.drop_blocks(dropped)
            self._catalog.add_blocks(one.block for one in built)
            swap()

        self.transaction(apply, swap_all)
        self.sweep(block.id for block in dropped)

    def discard(self, blocks: Iterable[int]) -> None:
        """Sweep what a failed attempt has staged, if that is possible now; else the next opening does it."""
        with suppress(StoreError):
            self.sweep(blocks)

    def sweep(self, blocks: Iterable[int]) -> None:
        """Delete bundles of blocks that do not count (any more)."""
        for block in blocks:

            def delete(db: sqlite3.Connection, block: int = block) -> int:
                return _delete_some(db, block << BLOCK_BITS, (block + 1) << BLOCK_BITS)

            while self.transaction(delete) == _AT_ONCE:
                pass

    def transaction(self, change: Change, swap: Callable[[], None] | None = None) -> int:
        """Run a change and commit it, in the writer's turn; `swap` follows under the catalogue's lock."""

        def work() -> int:
            db = self._db
            try:
                db.execute("BEGIN IMMEDIATE")
                result = change(db)
                if swap is None:
                    db.execute("COMMIT")
                else:
                    with self._catalog.lock:
                        db.execute("COMMIT")
                        swap()
            except sqlite3.Error as error:
                _roll_back(db)
                raise from_sqlite(error) from error
            except BaseException:
                _roll_back(db)
                raise
            return result or 0

        return self._writer.call(work)


def _roll_back(db: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


def _delete_some(db: sqlite3.Connection, low: int, high: int) -> int:
    ids = db.execute("SELECT id FROM bundle WHERE id >= ? AND id < ? LIMIT ?", (low, high, _AT_ONCE)).fetchall()
    if ids:
        db.execute("DELETE FROM bundle WHERE id BETWEEN ? AND ?", (ids[0][0], ids[-1][0]))
    return len(ids)


def orphans(db: sqlite3.Connection, blocks: set[int]) -> list[int]:
    """Block ids that have bundles but no row; hops from block to block, so it costs one lookup for each."""
    found: list[int] = []
    at = 0
    while True:
        row = db.execute("SELECT id FROM bundle WHERE id >= ? ORDER BY id LIMIT 1", (at,)).fetchone()
        if row is None:
            return found
        block = row[0] >> BLOCK_BITS
        if block not in blocks:
            found.append(block)
        at = (block + 1) << BLOCK_BITS
