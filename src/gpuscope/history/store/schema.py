"""The store's file: tables, migrations, and how connections are opened.

One SQLite file in WAL mode with `synchronous=FULL`: a committed transaction survives a power failure. Ticks and
chunks are in the same file, so sealing (insert chunks, delete ticks) is one transaction. `auto_vacuum` is
incremental, so that freed pages can be returned to the file system. A second file for ticks was measured: same
commit time, more disk space, and no atomic transaction across two files in WAL mode.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscope.history.store.store_errors import StoreTooNewError, from_sqlite

FILE_NAME = "store.sqlite"
APPLICATION_ID = 0x47505553
TICK_BITS = 36
"""A tick's id is target << TICK_BITS | sequence: one target's ticks are a range of ids."""
BLOCK_BITS = 32
"""A bundle's id is block << BLOCK_BITS | its first series: a block's bundles are a range of ids."""


@dataclass(frozen=True, slots=True)
class Migration:
    """One step from the previous version to `version`, applied in one transaction."""

    version: int
    name: str
    apply: Callable[[sqlite3.Connection], None]


def _script(*statements: str) -> Callable[[sqlite3.Connection], None]:
    def apply(db: sqlite3.Connection) -> None:
        for statement in statements:
            db.execute(statement)

    return apply


MIGRATIONS: tuple[Migration, ...] = (
    Migration(
        1,
        "tables",
        _script(
            "CREATE TABLE target (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, floor INTEGER)",
            # A label pair is stored once; a series is the array of its pairs' ids (int32, by label name).
            "CREATE TABLE pair (id INTEGER PRIMARY KEY, name TEXT NOT NULL, value TEXT NOT NULL)",
            "CREATE TABLE series (id INTEGER PRIMARY KEY, target INTEGER NOT NULL, pairs BLOB NOT NULL)",
            # Series that more than one target writes; rare, but two exporters may expose the same labels.
            "CREATE TABLE shared (series INTEGER, target INTEGER, PRIMARY KEY (series, target)) WITHOUT ROWID",
            # The series ids of a tick, stored once and referenced by every tick with the same series.
            "CREATE TABLE layout (id INTEGER PRIMARY KEY, target INTEGER NOT NULL, series BLOB NOT NULL)",
            """CREATE TABLE tick (id INTEGER PRIMARY KEY, first INTEGER NOT NULL, last INTEGER NOT NULL,
               layout INTEGER, data BLOB NOT NULL)""",
            """CREATE TABLE block (id INTEGER PRIMARY KEY, target INTEGER NOT NULL, level INTEGER NOT NULL,
               first INTEGER NOT NULL, last INTEGER NOT NULL, samples INTEGER NOT NULL,
               times BLOB NOT NULL, members BLOB NOT NULL)""",
            "CREATE TABLE bundle (id INTEGER PRIMARY KEY, data BLOB NOT NULL)",
        ),
    ),
    # Ticks of late heads have their own table, because sealing a head deletes all ticks before a time.
    Migration(2, "late", _script("CREATE TABLE late (id INTEGER PRIMARY KEY, data BLOB NOT NULL)")),
)


def connect(path: Path, *, read_only: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode: the store issues BEGIN itself. The caller serialises its use."""
    mode = "ro" if read_only else "rwc"
    uri = f"{path.absolute().as_uri()}?mode={mode}"
    db = sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, timeout=30.0)
    try:
        if not read_only:
            _prepare(db)
        db.execute("PRAGMA cache_size = -1024")
        db.execute("PRAGMA temp_store = MEMORY")
    except sqlite3.Error:
        db.close()
        raise
    return db


def _prepare(db: sqlite3.Connection) -> None:
    # auto_vacuum must be set before the first table exists; in an existing file the line has no effect.
    db.execute("PRAGMA auto_vacuum = INCREMENTAL")
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA wal_autocheckpoint = 1000")
    db.execute("PRAGMA journal_size_limit = 8388608")


def migrate(db: sqlite3.Connection, now_ms: int, migrations: Sequence[Migration] = MIGRATIONS) -> int:
    """Migrate a file to the newest version, one transaction per step; return the version."""
    try:
        db.execute(
            "CREATE TABLE IF NOT EXISTS migration (version INTEGER PRIMARY KEY, name TEXT, applied_ms INTEGER)"
        )
        version = schema_version(db)
        newest = migrations[-1].version
        if version > newest:
            raise StoreTooNewError(
                f"the data was written by a newer gpuscope (schema {version}, this version knows {newest}); "
                "upgrade gpuscope or choose another data folder"
            )
        for step in migrations:
            if step.version > version:
                _apply(db, step, now_ms)
        return newest
    except sqlite3.Error as error:
        raise from_sqlite(error) from error


def _apply(db: sqlite3.Connection, step: Migration, now_ms: int) -> None:
    db.execute("BEGIN IMMEDIATE")
    try:
        step.apply(db)
        db.execute("INSERT INTO migration VALUES (?, ?, ?)", (step.version, step.name, now_ms))
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def schema_version(db: sqlite3.Connection) -> int:
    """Return the schema version; 0 for an empty file."""
    row = db.execute("SELECT max(version) FROM migration").fetchone()
    return int(row[0] or 0)


def vacuum_pages(db: sqlite3.Connection, pages: int) -> None:
    """Return up to `pages` free pages to the file system. `execute` would stop after the first page."""
    db.executescript(f"PRAGMA incremental_vacuum({int(pages)})")
