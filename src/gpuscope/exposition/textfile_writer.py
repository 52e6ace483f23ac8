"""Writes an exposition for node_exporter's textfile collector atomically.

The name of the temporary file does not end in `.prom`, because the collector reads every `*.prom` in the
folder. The mode is 0644 under any umask, because node_exporter runs as another user.
"""

from __future__ import annotations

from pathlib import Path

from gpuscope.atomic_write import WORLD_READABLE, write_atomically
from gpuscope.errors import UsageError


class TextfileWriter:
    def __init__(self, target: Path) -> None:
        if not target.parent.is_dir():
            raise UsageError(f"--output: folder {target.parent} does not exist; create it first")
        self.target = target

    def write(self, exposition: bytes) -> None:
        """Replaces the file atomically; after an error the old file stays."""
        write_atomically(self.target, exposition, mode=WORLD_READABLE)

    def remove(self) -> None:
        """Removes the file on a clean stop, so that old numbers are not scraped for ever."""
        self.target.unlink(missing_ok=True)
