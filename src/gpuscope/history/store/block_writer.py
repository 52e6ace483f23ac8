"""Publishes blocks: writes the bundles in small transactions, then adds the block row in a short last one.

A bundle belongs to the store only while its block's row exists. So a merge can write new bundles and delete old
ones in small transactions, with ticks committed in between. A crash leaves at most bundles without a block row,
which the next start deletes.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

from gpuscope.history.store.block_builder import INSERT_BLOCK, INSERT_BUNDLE, BuiltBlock
from gpuscope.history.store.bundle import BundleRow
from gpuscope.history.store.contents import Block, Contents
from gpuscope.history.store.schema import BLOCK_BITS
from gpuscope.history.store.store_errors import StoreError, from_sqlite
from gpuscope.history.store.writer import Writer

_BATCH_BUNDLES = 64
Change = Callable[[sqlite3.Connection], int | None]


def _nothing(db: sqlite3.Connection) -> None:
    return None


class BlockWriter:
    """Adds and removes blocks on the writer's thread; callable from any thread."""

    def __init__(self, db: sqlite3.Connection, writer: Writer, contents: Contents) -> None:
        self._db = db
        self._writer = writer
        self._contents = contents

    def use_database(self, db: sqlite3.Connection) -> None:
        """Use another file from now on."""
        self._db = db

    def stage(self, built: BuiltBlock) -> None:
        """Write a block's bundles; readers do not see them before `publish`."""
        for at in range(0, len(built.bundles), _BATCH_BUNDLES):
            rows = built.bundles[at : at + _BATCH_BUNDLES]

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
        """Add staged blocks, drop others and apply `change` in one transaction; `swap` follows under the
        lock."""

        def apply(db: sqlite3.Connection) -> None:
            db.executemany(INSERT_BLOCK, [new_block.row() for new_block in built])
            db.executemany("DELETE FROM block WHERE id = ?", [(block.id,) for block in dropped])
            change(db)

        def swap_all() -> None:
            self._contents.drop_blocks(dropped)
            self._contents.add_blocks(new_block.block for new_block in built)
            swap()

        self.transaction(apply, swap_all)
        self.sweep(block.id for block in dropped)

    def discard(self, blocks: Iterable[int]) -> None:
        """Delete the bundles of a failed attempt. If that fails too, the next start deletes them."""
        with suppress(StoreError):
            self.sweep(blocks)

    def sweep(self, blocks: Iterable[int]) -> None:
        """Delete the bundles of blocks that have no row."""
        for block in blocks:

            def delete(db: sqlite3.Connection, block: int = block) -> int:
                return _delete_some(db, block << BLOCK_BITS, (block + 1) << BLOCK_BITS)

            while self.transaction(delete) == _BATCH_BUNDLES:
                pass

    def transaction(self, change: Change, swap: Callable[[], None] | None = None) -> int:
        """Run a change and commit it on the writer's thread; `swap` follows under the contents' lock."""

        def work() -> int:
            db = self._db
            try:
                db.execute("BEGIN IMMEDIATE")
                result = change(db)
                if swap is None:
                    db.execute("COMMIT")
                else:
                    with self._contents.lock:
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
    ids = db.execute(
        "SELECT id FROM bundle WHERE id >= ? AND id < ? LIMIT ?", (low, high, _BATCH_BUNDLES)
    ).fetchall()
    if ids:
        db.execute("DELETE FROM bundle WHERE id BETWEEN ? AND ?", (ids[0][0], ids[-1][0]))
    return len(ids)


def orphans(db: sqlite3.Connection, blocks: set[int]) -> list[int]:
    """Return ids of blocks that have bundles but no row; needs one lookup per block."""
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
