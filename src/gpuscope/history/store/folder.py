"""The data folder: its lock, permissions, size and kind, and whether it still exists.

The history shows who ran what on which machine, so files are 0600. The folder is 0700, unless it existed before
and contains other files. Wider permissions from older versions are corrected when the store is opened.
"""

from __future__ import annotations

import fcntl
import logging
import os
import sqlite3
import tempfile
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.files import PRIVATE, write_atomically
from gpuscope.history.store.options import OwnStats
from gpuscope.history.store.schema import FILE_NAME, connect, migrate
from gpuscope.history.store.store_errors import StoreError, StoreLockedError, from_sqlite
from gpuscope.model.series import Matcher, MatchOp

if TYPE_CHECKING:
    from gpuscope.history.store.store import Store

log = logging.getLogger(__name__)
FILE_MODE, FOLDER_MODE = 0o600, 0o700
_STORE_FILES = ("store.sqlite*", "lock", "damaged", "*.part")


def make_private(folder: Path, file_name: str) -> None:
    """Create the folder and its file if missing, and remove group and other access from existing ones."""
    if not folder.exists():
        folder.mkdir(parents=True, mode=FOLDER_MODE)
    if (folder / file_name).exists() or not any(folder.iterdir()):
        _restrict(folder, FOLDER_MODE)  # not an existing folder that contains other files
    # SQLite creates its WAL with the mode of the database file, so the file is created before SQLite does it.
    os.close(os.open(folder / file_name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    for pattern in _STORE_FILES:
        for path in folder.glob(pattern):
            _restrict(path, FILE_MODE)


def _restrict(path: Path, mode: int) -> None:
    """Remove group and other access only: a read-only mode may be the owner's choice."""
    with suppress(OSError):  # a file of another user cannot be changed
        now = path.stat().st_mode & 0o7777
        if now & ~mode & 0o077:
            path.chmod(now & mode)


def folder_bytes(folder: Path) -> int:
    """Return the disk space of the folder, as `du` counts it."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in ("", *files):
            with suppress(OSError):  # SQLite may delete its WAL at any time
                total += Path(root, name).lstat().st_blocks * 512
    return total


PROBE_BYTES = 256 << 10
"""More than a large tick takes: a full disk often has room for a page."""


def has_room(folder: Path) -> bool:
    """Whether PROBE_BYTES can be written to the folder now."""
    try:
        with tempfile.TemporaryFile(dir=folder, prefix="probe", suffix=".part") as probe:
            os.posix_fallocate(probe.fileno(), 0, PROBE_BYTES)
    except OSError:
        return False
    return True


def file_identity(path: str) -> tuple[int, int] | None:
    """Return a value that identifies a file independent of its name; None if there is no file."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called at every commit; Path.stat takes four times as long
    except OSError:
        return None
    return status.st_dev, status.st_ino


# Allows one writer per data folder, by an advisory lock on a file in it.
#
# The kernel releases the lock when the process ends, so kill -9 leaves nothing to clean up. The PID in the
# file is used only in the error message.

LOCK_NAME = "lock"


class FolderLock:
    """Held from construction until `release`."""

    def __init__(self, folder: Path) -> None:
        self._file = os.open(folder / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = os.pread(self._file, 32, 0).decode("ascii", "replace").strip()
            os.close(self._file)
            by = f"process {owner}" if owner.isdigit() else "another process"
            raise StoreLockedError(
                f"{folder} is in use by {by}: stop it or choose another data folder"
            ) from error
        os.ftruncate(self._file, 0)
        os.pwrite(self._file, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


# Recreates a data folder that was deleted while the store runs; detected at the next commit.
#
# SQLite continues to write to a deleted file without an error. Unsealed samples are still readable through
# the open connection and are copied to the new file; sealed blocks are lost with the folder. If the file was
# replaced by another one (a restored backup), the new file is not touched.

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


# Records in a file whether a data folder holds demo or real history; a folder never changes its kind.
#
# Simulated samples must not mix with measured ones. A folder written before this file existed is a demo
# folder if every agent in it reported that it was simulated.

KIND_FILE = "kind"
DEMO, REAL = "demo", "real"


class DataKindError(StoreError):
    """The folder holds the other kind of history."""


def claim_folder(store: Store, *, simulated: bool) -> None:
    """Write the kind into a new folder; raise DataKindError if the folder is of the other kind."""
    wanted = DEMO if simulated else REAL
    known = _read(store.folder / KIND_FILE) or _recognise(store)
    if known not in ("", wanted):
        raise DataKindError(_wrong_kind_message(known))
    _write(store.folder / KIND_FILE, wanted)


def _wrong_kind_message(known: str) -> str:
    if known == DEMO:
        return "the folder holds the simulated history of a demo: choose another folder"
    return "the folder holds real history, to which a demo must not write: choose another folder"


def _read(path: Path) -> str:
    try:
        text = path.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error.strerror}") from error
    if text not in (DEMO, REAL):
        raise StoreError(f"{path} contains {text[:40]!r}: write `{REAL}` or `{DEMO}` into it, as appropriate")
    return text


def _recognise(store: Store) -> str:
    """Return the kind of a folder that has no kind file; "" if the folder is empty."""
    agents = store.series([Matcher("__name__", MatchOp.EQUAL, "gpuscope_agent_info")])
    if not agents:
        return "" if store.stats().newest_ms is None else REAL
    return DEMO if all(("simulated", "true") in labels for labels in agents) else REAL


def _write(path: Path, kind: str) -> None:
    if _read(path) == kind:
        return
    try:
        write_atomically(path, f"{kind}\n".encode(), mode=PRIVATE)
    except OSError as error:
        raise StoreError(f"{path} cannot be written: {error.strerror}") from error
