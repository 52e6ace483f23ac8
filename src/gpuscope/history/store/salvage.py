"""Rebuilds a damaged file: copies the readable rows into a new file and moves the damaged one aside.

If a scan fails, rows are read one by one by id, so that a damaged page loses only the rows on it. A damaged
first page, without which SQLite cannot read the file, is replaced by an empty store's. Lost targets, labels
and series get generated names, so that their samples stay readable.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np

from gpuscope.history.store.chunk_codec import unpack_integers
from gpuscope.history.store.schema import (
    BLOCK_BITS,
    FILE_NAME,
    TICK_BITS,
    connect,
    migrate,
    unpack_mixed,
    unpack_series,
)
from gpuscope.history.store.tick import Int64s

log = logging.getLogger(__name__)

# What SQLite did not read of its write-ahead log: it ends at the first damaged frame, without an error.
#
# Count the transactions in the file's frame headers before it is opened, and compare with the frames that
# SQLite has read. A write that a crash interrupted is no damage: it has no commit.

_HEADER_BYTES: Final = 32
_SALTS_OF_HEADER: Final = slice(16, 24)
_FRAME_HEADER_BYTES: Final = 24
_COMMIT_OF_FRAME: Final = slice(4, 8)
"""Pages of the file after the commit; 0 if the frame does not end a transaction."""
_SALTS_OF_FRAME: Final = slice(8, 16)
_PAGE_BYTES: Final = slice(16, 18)


def committed_frames(database: Path) -> list[int]:
    """The numbers, from 1, of the frames that end a transaction. Those with other salts than the first frame or
    the header, one of which may be damaged, are left over from before the last checkpoint."""
    try:
        with database.open("rb") as file:
            page_bytes = struct.unpack(">H", file.read(100)[_PAGE_BYTES])[0]
            page_bytes = 65536 if page_bytes == 1 else page_bytes
        with database.with_name(database.name + "-wal").open("rb") as wal:
            salts = {wal.read(_HEADER_BYTES)[_SALTS_OF_HEADER]}
            frames: list[int] = []
            whole_frames = (os.fstat(wal.fileno()).st_size - _HEADER_BYTES) // (
                _FRAME_HEADER_BYTES + page_bytes
            )
            for number in range(1, whole_frames + 1):
                head = wal.read(_FRAME_HEADER_BYTES)
                if number == 1:
                    salts.add(head[_SALTS_OF_FRAME])
                if any(head[_COMMIT_OF_FRAME]) and head[_SALTS_OF_FRAME] in salts:
                    frames.append(number)
                wal.seek(page_bytes, os.SEEK_CUR)
            return frames
    except (OSError, struct.error):  # no such file, or a damaged one, of which SQLite tells
        return []


def lost_commits(db: sqlite3.Connection, committed: list[int]) -> int:
    """How many of these transactions SQLite has not read; call it before the first write."""
    if not committed:
        return 0
    _, read_frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return sum(number > max(0, read_frames) for number in committed)


# Replaces the first page of a damaged file.
#
# It holds the file header and the list of tables; without it SQLite cannot read the file. All store files
# have the same first page except for some counters, because the tables are always created in the same order
# in an empty file, and with `auto_vacuum` SQLite keeps their root pages at the start. So the page is taken
# from a new, empty store. Root pages cannot be recreated: a table is lost if its root page is damaged.

_PAGE = 4096
_CHANGES, _PAGES, _FREE_LIST, _VALID_FOR = 24, 28, 32, 92


def replace_first_page(path: Path) -> bool:
    """Replace the page and keep the damaged one in a file `.page1`; return False if the file is too short."""
    size = path.stat().st_size
    if size < 2 * _PAGE:
        return False
    page = bytearray(_empty_store_page())
    struct.pack_into(">II", page, _CHANGES, 1, size // _PAGE)
    struct.pack_into(">II", page, _FREE_LIST, 0, 0)
    struct.pack_into(">I", page, _VALID_FOR, 1)
    with path.open("r+b") as file:
        old = file.read(_PAGE)
        path.with_name(f"{path.name}.page1").write_bytes(old)
        path.with_name(f"{path.name}.page1").chmod(0o600)
        file.seek(0)
        file.write(page)
    return True


def _empty_store_page() -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE_NAME
        db = connect(path)
        try:
            migrate(db, 0)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        finally:
            db.close()
        return path.read_bytes()[:_PAGE]


_SUFFIXES = ("", "-wal", "-shm")
_TABLES = ("target", "pair", "series", "shared", "layout", "tick", "late", "block", "bundle")
_MAX_IDS = 5_000_000


def salvage(path: Path, now_ms: int, reason: str) -> str:
    """Move the file aside and rebuild it from its readable rows; log and return a summary."""
    aside = _move_aside(path, now_ms)
    fresh = connect(path)
    try:
        migrate(fresh, now_ms)
        kept = _copy_readable(aside, fresh)
    finally:
        fresh.close()
    summary = ", ".join(f"{count} {table} rows" for table, count in kept.items() if count) or "nothing"
    message = f"the store's file was damaged ({reason}); recovered {summary}; the damaged file is {aside}"
    log.error("store: %s", message)
    return message


def _move_aside(path: Path, now_ms: int) -> Path:
    stamp = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    number = 1
    while aside.exists():
        number += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{number}")
    for suffix in _SUFFIXES:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def _copy_readable(aside: Path, fresh: sqlite3.Connection) -> dict[str, int]:
    kept = dict.fromkeys(_TABLES, 0)
    damaged = _open_damaged(aside)
    if damaged is None and replace_first_page(aside):
        damaged = _open_damaged(aside)
    if damaged is None:
        return kept
    try:
        for table in _TABLES:
            fresh.execute("BEGIN")
            kept[table] = _copy_table(damaged, fresh, table)
            fresh.execute("COMMIT")
        _repair_references(fresh)
    finally:
        with suppress(sqlite3.Error):
            damaged.close()
    return kept


def _open_damaged(aside: Path) -> sqlite3.Connection | None:
    """Return None if SQLite cannot read the list of tables."""
    damaged = sqlite3.connect(aside, isolation_level=None)
    damaged.text_factory = lambda raw: raw.decode("utf-8", "replace")
    try:
        # Without this, SQLite refuses to read a file that is shorter than its header says.
        damaged.execute("PRAGMA writable_schema = ON")
        names = {name for (name,) in damaged.execute("SELECT name FROM sqlite_schema")}
    except sqlite3.Error:
        names = set()
    if "series" in names:
        return damaged
    damaged.close()
    return None


def _copy_table(damaged: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> int:
    columns = [row[1] for row in fresh.execute(f"PRAGMA table_info({table})")]
    names, marks = ", ".join(columns), ", ".join("?" * len(columns))
    insert = f"INSERT OR IGNORE INTO {table} ({names}) VALUES ({marks})"  # noqa: S608
    count = 0
    for row in _rows(damaged, fresh, table, names):
        with suppress(sqlite3.Error):
            count += fresh.execute(insert, row).rowcount
    return count


def _rows(
    damaged: sqlite3.Connection, fresh: sqlite3.Connection, table: str, names: str
) -> Iterator[tuple[object, ...]]:
    try:
        yield from damaged.execute(f"SELECT {names} FROM {table}")  # noqa: S608
        return
    except sqlite3.DatabaseError:
        if table == "shared":
            return
    for row_id in _candidate_ids(damaged, fresh, table):
        with suppress(sqlite3.DatabaseError):
            yield from damaged.execute(f"SELECT {names} FROM {table} WHERE id = ?", (row_id,))  # noqa: S608


def _candidate_ids(damaged: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> Iterator[int]:
    """Yield ids that may exist although no scan can list them."""
    if table == "bundle":
        for block, members in fresh.execute("SELECT id, members FROM block").fetchall():
            with suppress(Exception):
                yield from (block << BLOCK_BITS | sid for sid in unpack_integers(members).tolist())
        return
    for low, high in _id_ranges(damaged, fresh, table):
        yield from range(low, min(high, low + _MAX_IDS) + 1)


def _id_ranges(damaged: sqlite3.Connection, fresh: sqlite3.Connection, table: str) -> list[tuple[int, int]]:
    if table not in ("tick", "late"):
        return [(1, _highest(damaged, table, 1, 2**40))]
    ranges = []
    for (target,) in fresh.execute("SELECT id FROM target").fetchall():
        low, high = target << TICK_BITS, ((target + 1) << TICK_BITS) - 1
        ranges.append((_lowest(damaged, table, low, high), _highest(damaged, table, low, high)))
    return ranges


def _highest(db: sqlite3.Connection, table: str, low: int, high: int) -> int:
    try:
        row = db.execute(f"SELECT max(id) FROM {table} WHERE id BETWEEN ? AND ?", (low, high)).fetchone()  # noqa: S608
        return low - 1 if row[0] is None else int(row[0])
    except sqlite3.DatabaseError:
        return low + 100_000


def _lowest(db: sqlite3.Connection, table: str, low: int, high: int) -> int:
    try:
        row = db.execute(f"SELECT min(id) FROM {table} WHERE id BETWEEN ? AND ?", (low, high)).fetchone()  # noqa: S608
        return low if row[0] is None else int(row[0])
    except sqlite3.DatabaseError:
        return low


def _repair_references(fresh: sqlite3.Connection) -> None:
    """Delete rows that are useless without lost ones, and create missing rows that only provide a name."""
    fresh.execute("BEGIN")
    fresh.execute("UPDATE target SET floor = NULL WHERE typeof(floor) NOT IN ('integer', 'null')")
    _restore_series(fresh)
    _repair_labels(fresh)
    fresh.execute("DELETE FROM tick WHERE layout IS NOT NULL AND layout NOT IN (SELECT id FROM layout)")
    # A target is only a name: if other rows refer to a lost one, it gets a generated name.
    fresh.execute(
        """INSERT OR IGNORE INTO target (id, name)
           SELECT target, 'salvaged-' || target FROM series
           UNION SELECT target, 'salvaged-' || target FROM block
           UNION SELECT id >> ?1, 'salvaged-' || (id >> ?1) FROM tick
           UNION SELECT id >> ?1, 'salvaged-' || (id >> ?1) FROM late""",
        (TICK_BITS,),
    )
    fresh.execute("COMMIT")


def _restore_series(fresh: sqlite3.Connection) -> None:
    """Create rows without labels for lost series that have samples; `_repair_labels` names them."""
    known = {sid for (sid,) in fresh.execute("SELECT id FROM series")}
    lost: dict[int, int] = {}
    sources = (
        ("SELECT target, members FROM block", unpack_integers),
        ("SELECT target, series FROM layout", unpack_series),
        (f"SELECT id >> {TICK_BITS}, data FROM tick WHERE layout IS NULL", _series_of_mixed),  # noqa: S608
        (f"SELECT id >> {TICK_BITS}, data FROM late", _series_of_mixed),  # noqa: S608
    )
    for query, unpack in sources:
        for target, data in fresh.execute(query).fetchall():
            with suppress(Exception):  # damaged ids: the samples cannot be read anyway
                lost.update(dict.fromkeys(set(unpack(data).tolist()) - known, target))
    fresh.executemany("INSERT INTO series (id, target, pairs) VALUES (?, ?, x'')", sorted(lost.items()))


def _series_of_mixed(data: bytes) -> Int64s:
    return unpack_mixed(data)[0]


def _repair_labels(fresh: sqlite3.Connection) -> None:
    """Replace lost labels, so that the series keep their samples and stay distinct."""
    fresh.execute("DELETE FROM pair WHERE typeof(name) <> 'text' OR typeof(value) <> 'text'")
    known = {number for (number,) in fresh.execute("SELECT id FROM pair")}
    new_id = max(known, default=0) + 1
    replacements: dict[str, int] = {}
    seen: set[bytes] = set()

    def replacement(name: str) -> int:
        return replacements.setdefault(name, new_id + len(replacements))

    rows = fresh.execute("SELECT id, pairs FROM series").fetchall()
    for sid, packed in rows:
        raw = packed if isinstance(packed, bytes) else b""
        numbers = np.frombuffer(raw[: len(raw) & ~3], "<i4").tolist()
        # Named after the lost label: series that shared the label still share its replacement.
        repaired = [
            number if number in known else replacement(f"salvaged_{number & 0xFFFF_FFFF}") for number in numbers
        ]
        if not repaired or np.array(repaired, "<i4").tobytes() in seen:
            repaired.append(replacement(f"salvaged_series_{sid}"))
        seen.add(np.array(repaired, "<i4").tobytes())
        if repaired != numbers or raw != packed or len(raw) % 4:
            fresh.execute(
                "UPDATE series SET pairs = ? WHERE id = ?", (np.array(repaired, "<i4").tobytes(), sid)
            )
    lost = [(number, name, "lost") for name, number in replacements.items()]
    fresh.executemany("INSERT INTO pair (id, name, value) VALUES (?, ?, ?)", lost)
