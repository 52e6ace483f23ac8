"""The store's file: tables, migrations, connections, and ticks as rows that are replayed into heads.

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

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import Layout
from gpuscope.history.store.store_errors import StoreTooNewError, from_sqlite
from gpuscope.history.store.tick import Float64s, Int64s

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


# Stores ticks as rows, and replays them into heads when the store is opened.
#
# The table `tick` holds the same samples as the heads. If all samples of a tick share one time, its row holds
# the values and a reference to its layout; otherwise it holds series ids, times and values, one array after
# another.

TickRow = tuple[int, int, int, int | None, bytes]
Mixed = tuple[Int64s, Int64s, Float64s]

INSERT_TICK = "INSERT INTO tick (id, first, last, layout, data) VALUES (?, ?, ?, ?, ?)"
_MAX_TICKS_IN_RUN = 128

INSERT_LAYOUT = "INSERT INTO layout (id, target, series) VALUES (?, ?, ?)"


def pack_series(series: Int64s | NDArray[np.uint32]) -> bytes:
    return series.astype("<u4").tobytes()


def unpack_series(data: bytes) -> Int64s:
    return np.frombuffer(data, "<u4").astype(np.int64)


def pack_mixed(series: Int64s, times: Int64s, values: Float64s) -> bytes:
    return pack_series(series) + times.astype("<i8").tobytes() + values.astype("<f8").tobytes()


def unpack_mixed(data: bytes) -> Mixed:
    count = len(data) // 20
    return (
        unpack_series(data[: 4 * count]),
        np.frombuffer(data, "<i8", count, 4 * count).astype(np.int64),
        np.frombuffer(data, "<f8", count, 12 * count).astype(np.float64),
    )


def tick_range(target: int) -> tuple[int, int]:
    """Return the first and last possible id of a target's ticks."""
    return target << TICK_BITS, ((target + 1) << TICK_BITS) - 1


class _Run:
    """Consecutive ticks of one layout, in time order, which are added to a head together."""

    __slots__ = ("_data", "_head", "_layout", "_times")

    def __init__(self, head: Head, layout: Layout) -> None:
        self._head = head
        self._layout = layout
        self._times: list[int] = []
        self._data: list[bytes] = []

    def takes(self, head: Head, layout: Layout | None, time: int) -> bool:
        fits = head is self._head and layout is self._layout and len(self._times) < _MAX_TICKS_IN_RUN
        return fits and time > self._times[-1]

    def add(self, time: int, data: bytes) -> None:
        self._times.append(time)
        self._data.append(data)

    def finish(self) -> None:
        # A bytearray, because the rows must be writable: late samples may be inserted into them.
        values = np.frombuffer(bytearray().join(self._data), "<f8").reshape(len(self._times), -1)
        self._head.append_rows(np.array(self._times, np.int64), self._layout, values)


def replay(db: sqlite3.Connection, heads: dict[int, Head], epoch: int) -> int:
    """Fill empty heads with all ticks of the file; return the highest tick sequence number."""
    series_of: dict[int, Int64s] = {
        number: unpack_series(series) for number, series in db.execute("SELECT id, series FROM layout")
    }
    highest = 0
    known: dict[int, Layout] = {}
    run: _Run | None = None
    for row_id, first, number, data in db.execute("SELECT id, first, layout, data FROM tick ORDER BY id"):
        highest = max(highest, row_id & ((1 << TICK_BITS) - 1))
        head = heads.get(row_id >> TICK_BITS)
        series = series_of.get(number) if number is not None else None
        if head is None or (number is not None and (series is None or len(series) * 8 != len(data))):
            continue
        if run is not None and not run.takes(head, known.get(number), first):
            run.finish()
            run = None
        if series is None:
            head.insert(*unpack_mixed(data))
        elif run is None and head.last is not None and first <= head.last:
            head.insert(series, np.full(len(series), first, np.int64), np.frombuffer(data, "<f8"))
        else:
            if run is None:
                run = _Run(head, _layout(known, number, head, series, epoch))
            run.add(first, data)
    if run is not None:
        run.finish()
    return highest


def _layout(known: dict[int, Layout], number: int, head: Head, series: Int64s, epoch: int) -> Layout:
    layout = known.get(number)
    if layout is None:
        layout = known[number] = head.add_layout(series, epoch)
        layout.row_id = number
    return layout


def drop_before(db: sqlite3.Connection, target: int, boundary: int) -> None:
    """Delete the sealed samples: ticks before a time, and the older part of ticks that span it."""
    low, high = tick_range(target)
    db.execute("DELETE FROM tick WHERE id BETWEEN ? AND ? AND last < ?", (low, high, boundary))
    straddling = db.execute(
        "SELECT id, last, data FROM tick WHERE id BETWEEN ? AND ? AND first < ?", (low, high, boundary)
    ).fetchall()
    for row_id, last, data in straddling:
        series, times, values = unpack_mixed(data)
        late = times >= boundary
        rest = pack_mixed(series[late], times[late], values[late])
        db.execute(
            "UPDATE tick SET first = ?, last = ?, data = ? WHERE id = ?",
            (int(times[late].min()), last, rest, row_id),
        )
    db.execute(
        """DELETE FROM layout WHERE target = ? AND id NOT IN
           (SELECT layout FROM tick WHERE id BETWEEN ? AND ? AND layout IS NOT NULL)""",
        (target, low, high),
    )
