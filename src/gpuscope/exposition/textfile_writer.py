"""Writes an exposition for node_exporter's textfile collector, so that a reader never sees half of it.

The temporary file lies beside the target, with a name that does not end in `.prom`: the collector reads every
`*.prom` in the folder. Mode 0644 under any umask, because node_exporter runs as another user.
"""

from __future__ import annotations

from pathlib import Path

from gpuscope.atomic_write import WORLD_READABLE, write_atomically
from gpuscope.errors import UsageError


class TextfileWriter:
    def __init__(self, target: Path) -> None:
        if not target.parent.is_dir():
            raise UsageError(f"--output: folder {target.parent} does not exist; create it first")
        self._target = target

    def write(self, exposition: bytes) -> None:
        """Replaces the file as a whole; on any error the old one stays."""
        write_atomically(self._target, exposition, mode=WORLD_READABLE)

    def remove(self) -> None:
        """On a clean stop: yesterday's numbers must not be scraped for ever."""
        self._target.unlink(missing_ok=True)
