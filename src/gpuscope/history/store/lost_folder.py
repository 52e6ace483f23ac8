"""Recreates a data folder that was deleted while the store runs; detected at the next commit.

SQLite continues to write to a deleted file without an error. Unsealed samples are still readable through the
open connection and are copied to the new file; sealed blocks are lost with the folder. If the file was replaced
by another one (a restored backup), the new file is not touched.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.history.store.folder import file_identity, make_private
from gpuscope.history.store.own_stats import OwnStats
from gpuscope.history.store.schema import FILE_NAME, connect, migrate
from gpuscope.history.store.store_errors import StoreError, from_sqlite

log = logging.getLogger(__name__)
_KEPT_TABLES = ("target", "pair", "series", "shared", "layout", "tick", "late")


class FolderWatch:
    """Checks whether the open file is still the one in the folder; sets `wake` when it is not."""

    def __init__(self, path: Path, own_stats: OwnStats) -> None:
        self._path = path
        self._own_stats = own_stats
        self._name = str(path)
        self._identity = file_identity(self._name)
        self._episode = EpisodeLog(log, "store", level=logging.ERROR, recovered="the data folder is back")
        self._real_folder = path.parent.resolve()
        self.wake = threading.Event()

    def is_lost(self) -> bool:
        """Return whether the file is gone; costs one system call. Logs once per episode."""
        if file_identity(self._name) == self._identity:
            self._own_stats.lost = None  # a folder that was moved away may come back
            self._episode.succeeded()
            return False
        if self._own_stats.lost is None:
            self._own_stats.lost = f"the data folder {self._path.parent} was deleted while it was in use"
            self._episode.failed(f"{self._own_stats.lost}; samples are not stored until it is recreated")
            self.wake.set()
        return True

    def check_place(self) -> None:
        """Raise StoreError if the folder's path now leads elsewhere: with a symbolic link in place of a deleted
        folder the store could write anywhere. A link that was there at the start is the user's own."""
        now = self._path.parent.resolve()
        if now != self._real_folder:
            raise StoreError(
                f"{self._path.parent} was replaced by a symbolic link to {now}; restart gpuscope to use it"
            )

    def reopened(self) -> None:
        """Record that the store uses a new file."""
        self._identity = file_identity(self._name)
        self._own_stats.lost = None
        self._own_stats.restarts += 1
        log.warning("store: recreated %s; it contains the unsealed samples", self._path.parent)
        self._episode.succeeded()


def copy_unsealed(old: sqlite3.Connection, path: Path, now_ms: int) -> sqlite3.Connection:
    """Create a new file in place of the deleted one, with everything except blocks. Raises StoreError."""
    if path.exists():
        raise StoreError(f"{path} was replaced while it was in use; restart gpuscope to use the new one")
    try:
        make_private(path.parent, FILE_NAME)
        fresh = connect(path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"{path.parent} cannot be recreated: {error}") from error
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
