"""Replaces a file atomically: a reader sees the old or the new content, also after a crash.

The temporary file is in the same folder; its name starts with a dot and ends in `.tmp`, so that readers of
`*.prom` or `*.json` ignore it. On an error the old file stays and the temporary file is removed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
WORLD_READABLE = 0o644


def write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """The umask does not change `mode`."""
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    """Makes the rename durable: without it, the old file may return after a power failure."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
