"""Replaces the first page of a damaged file.

It holds the file header and the list of tables; without it SQLite cannot read the file. All store files have
the same first page except for some counters, because the tables are always created in the same order in an
empty file, and with `auto_vacuum` SQLite keeps their root pages at the start. So the page is taken from a new,
empty store. Root pages cannot be recreated: a table is lost if its root page is damaged.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from gpuscope.history.store.schema import FILE_NAME, connect, migrate

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
