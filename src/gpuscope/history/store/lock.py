"""Allows one writer per data folder, by an advisory lock on a file in it.

The kernel releases the lock when the process ends, so kill -9 leaves nothing to clean up. The PID in the file
is used only in the error message.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from gpuscope.history.store.store_errors import StoreLockedError

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
