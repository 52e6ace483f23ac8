"""The data folder: its permissions, its size, and whether it still exists.

The history shows who ran what on which machine, so files are 0600. The folder is 0700, unless it existed before
and contains other files. Wider permissions from older versions are corrected when the store is opened.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

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
        found = os.stat(path)  # noqa: PTH116 - called at every commit; Path.stat takes four times as long
    except OSError:
        return None
    return found.st_dev, found.st_ino
