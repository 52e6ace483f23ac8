"""The first page of a damaged file, made anew.

It holds the file's header and the list of tables, and without it SQLite reads nothing. Every file of ours has
the same first pages: the tables are made in one order in an empty file, and with `auto_vacuum` SQLite keeps
their roots together at the start. So the first page of a new, empty store fits, but for the counts in it.
"""

from __future__ import annotations

import struct
import tempfile
from pathlib import Path

from gpuscope.store.schema import FILE_NAME, connect, migrate

_PAGE = 4096
_CHANGES, _PAGES, _FREE_LIST, _VALID_FOR = 24, 28, 32, 92


def replace_first_page(path: Path) -> bool:
    """Keeps the damaged page beside the file; False if the file is too short to have tables."""
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
