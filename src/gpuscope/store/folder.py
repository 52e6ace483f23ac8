"""The data folder: who may read it, how large it is, and whether it is still there.

History says who ran what on which machine: files are 0600, and the folder 0700 unless it was there before with
other things in it. What an older version wrote with wider permissions is corrected when it is opened.
"""

from __future__ import annotations

import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)
FILE_MODE, FOLDER_MODE = 0o600, 0o700
_OURS = ("store.sqlite*", "lock", "damaged", "*.part")


def make_private(folder: Path, file_name: str) -> None:
    """Create what is missing of the folder and its file, private; take others' access to what is there away."""
    if not folder.exists():
        folder.mkdir(parents=True, mode=FOLDER_MODE)
    if (folder / file_name).exists() or not any(folder.iterdir()):
        _restrict(folder, FOLDER_MODE)  # not one that was there before us, with other things in it
    # SQLite gives its journal the mode of the file, so the file is made before SQLite makes it.
    os.close(os.open(folder / file_name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, FILE_MODE))
    for pattern in _OURS:
        for path in folder.glob(pattern):
            _restrict(path, FILE_MODE)


def _restrict(path: Path, mode: int) -> None:
    """Others' access only: an owner who made it read-only meant it."""
    with suppress(OSError):  # another user's: what the file system allows is all there is
        now = path.stat().st_mode & 0o7777
        if now & ~mode & 0o077:
            path.chmod(now & mode)


def folder_bytes(folder: Path) -> int:
    """What the folder takes on the disk, as `du` counts it."""
    total = 0
    for root, _, files in os.walk(folder):
        for name in ("", *files):
            with suppress(OSError):  # SQLite's journal may go at any time
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
    """Tells a file from another one of the same name; None if there is none."""
    try:
        found = os.stat(path)  # noqa: PTH116 - asked at every commit; a Path takes four times as long
    except OSError:
        return None
    return found.st_dev, found.st_ino
