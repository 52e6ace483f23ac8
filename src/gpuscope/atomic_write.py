"""Replaces a file as a whole: a reader sees the old content or the new one, never half of it, also after a
crash.

The temporary file lies in the same folder under a name that starts with a dot and ends in `.tmp`, so that no
reader of `*.prom` or `*.json` takes it for a finished one. On any error the old file stays and the temporary
one is removed.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

PRIVATE = 0o600
WORLD_READABLE = 0o644


def write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """`mode` holds under any umask."""
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
    """Makes the new name last: without it, a power cut may bring the old file back."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
