"""What SQLite did not read of its write-ahead log: it ends at the first damaged frame, without an error.

Count the transactions in the file's frame headers before it is opened, and compare with the frames that SQLite
has read. A write that a crash interrupted is no damage: it has no commit.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from pathlib import Path
from typing import Final

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
            found: list[int] = []
            whole_frames = (os.fstat(wal.fileno()).st_size - _HEADER_BYTES) // (
                _FRAME_HEADER_BYTES + page_bytes
            )
            for number in range(1, whole_frames + 1):
                head = wal.read(_FRAME_HEADER_BYTES)
                if number == 1:
                    salts.add(head[_SALTS_OF_FRAME])
                if any(head[_COMMIT_OF_FRAME]) and head[_SALTS_OF_FRAME] in salts:
                    found.append(number)
                wal.seek(page_bytes, os.SEEK_CUR)
            return found
    except (OSError, struct.error):  # no such file, or a damaged one, of which SQLite tells
        return []


def lost_commits(db: sqlite3.Connection, committed: list[int]) -> int:
    """How many of these transactions SQLite has not read; call it before the first write."""
    if not committed:
        return 0
    _, read_frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    return sum(number > max(0, read_frames) for number in committed)
