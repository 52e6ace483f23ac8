"""A data folder that is deleted while the store runs: noticed at the next commit, then begun anew in place.

SQLite goes on writing to a file that has no name any more, and says nothing. What is not sealed yet is still
readable through the open connection and goes into the new file; sealed history went with the folder, as whoever
deleted it may have meant. A file that another one has replaced is not touched: somebody is restoring a backup.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

from gpuscope.store.folder import file_identity, make_private
from gpuscope.store.own_stats import Health
from gpuscope.store.schema import FILE_NAME, connect, migrate
from gpuscope.store.store_errors import StoreError, from_sqlite

log = logging.getLogger(__name__)
_KEPT_TABLES = ("target", "pair", "series", "shared", "layout", "tick", "late")


class FolderWatch:
    """Whether the open file is still the one in the folder; `wake` is set when it no longer is."""

    def __init__(self, path: Path, health: Health) -> None:
        self._path = path
        self._health = health
        self._name = str(path)
        self._identity = file_identity(self._name)
        self._real_folder = path.parent.resolve()
        self.wake = threading.Event()

    def is_lost(self) -> bool:
        """Costs one system call; tells the log once."""
        if file_identity(self._name) == self._identity:
            self._health.lost = None  # a folder that was moved away has come back
            return False
        if self._health.lost is None:
            self._health.lost = f"the data folder {self._path.parent} was deleted while it was in use"
            log.error("store: %s; nothing is kept until it can be made again", self._health.lost)
            self.wake.set()
        return True

    def check_place(self) -> None:
        """StoreError if the folder's path now leads elsewhere: a symbolic link in place of a deleted folder
        could make us write anywhere. A link that was there at the start is the user's own."""
        now = self._path.parent.resolve()
        if now != self._real_folder:
            raise StoreError(
                f"{self._path.parent} was replaced by a symbolic link to {now}; restart gpuscope to use it"
            )

    def found_again(self) -> None:
        """The store has a new file."""
        self._identity = file_identity(self._name)
        self._health.lost = None
        self._health.restarts += 1
        log.warning("store: %s was made again; samples not sealed yet were kept", self._path.parent)


def copy_unsealed(old: sqlite3.Connection, path: Path, now_ms: int) -> sqlite3.Connection:
    """A new file in the place of the lost one, with everything but blocks; or a StoreError."""
    if path.exists():
        raise StoreError(f"{path} was replaced while it was in use; restart gpuscope to use the new one")
    try:
        make_private(path.parent, FILE_NAME)
        fresh = connect(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path.parent} cannot be made again: {error}") from error
    try:
        migrate(fresh, now_ms)
        fresh.execute("BEGIN IMMEDIATE")
        for table in _KEPT_TABLES:
            columns = [row[1] for row in fresh.execute(f"PRAGMA table_info({table})")]
            names, marks = ", ".join(columns), ", ".join("?" * len(columns))
            rows = old.execute(f"SELECT {names} FROM {table}")  # noqa: S608
            fresh.executemany(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)  # noqa: S608
        fresh.execute("COMMIT")
    except BaseException as error:
        fresh.close()
        for suffix in ("", "-wal", "-shm"):
            with suppress(OSError):
                path.with_name(path.name + suffix).unlink()
        raise from_sqlite(error) if isinstance(error, sqlite3.Error) else error from error
    return fresh
