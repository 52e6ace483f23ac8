"""Writes an exposition for node_exporter's textfile collector atomically.

The name of the temporary file does not end in `.prom`, because the collector reads every `*.prom` in the
folder. The mode is 0644 under any umask, because node_exporter runs as another user. One process writes a file
at a time, also across containers that mount the same folder: two would replace each other's numbers in turn.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

from gpuscope.base.errors import UsageError
from gpuscope.base.files import WORLD_READABLE, write_atomically


class TextfileWriter:
    """From `claim` to `release` no other process can claim the file."""

    def __init__(self, target: Path) -> None:
        if not target.parent.is_dir():
            raise UsageError(f"--output: folder {target.parent} does not exist; create it first")
        self.target = target
        self._lock_path = target.parent / f".{target.name}.lock"
        self._lock: int | None = None

    def claim(self) -> None:
        """A folder that cannot hold the lock cannot hold the file either, which `write` reports."""
        with suppress(OSError):
            self._lock = self._open_lock()

    def _open_lock(self) -> int:
        while True:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # The last writer may have removed the file between these two lines.
                if self._lock_path.exists() and os.path.samestat(os.fstat(lock), self._lock_path.lstat()):
                    return lock
            except BlockingIOError:
                os.close(lock)
                raise UsageError(
                    f"--output {self.target}: another gpuscope writes this file; stop it or choose another file"
                ) from None
            os.close(lock)

    def release(self) -> None:
        if self._lock is not None:
            self._lock_path.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def write(self, exposition: bytes) -> None:
        """Replaces the file atomically; after an error the old file stays."""
        write_atomically(self.target, exposition, mode=WORLD_READABLE)

    def remove(self) -> None:
        """Removes the file on a clean stop, so that old numbers are not scraped for ever."""
        self.target.unlink(missing_ok=True)
