"""Writes an exposition for node_exporter's textfile collector, so that a reader never sees half of it.

The temporary file lies beside the target, with a name that does not end in `.prom`: the collector reads every
`*.prom` in the folder. Mode 0644 under any umask, because node_exporter runs as another user.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from gpuscope.errors import UsageError


class TextfileWriter:
    def __init__(self, target: Path) -> None:
        if not target.parent.is_dir():
            raise UsageError(f"--output: folder {target.parent} does not exist; create it first")
        self._target = target

    def write(self, exposition: bytes) -> None:
        """Replaces the file as a whole; on any error the old one stays."""
        handle, temporary = tempfile.mkstemp(
            prefix=f".{self._target.name}.", suffix=".tmp", dir=self._target.parent
        )
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(exposition)
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            Path(temporary).replace(self._target)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
        self._sync_folder()

    def _sync_folder(self) -> None:
        folder = os.open(self._target.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def remove(self) -> None:
        """On a clean stop: yesterday's numbers must not be scraped for ever."""
        self._target.unlink(missing_ok=True)
