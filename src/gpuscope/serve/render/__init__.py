"""Ready files for other programs: Prometheus, Alertmanager, compose, systemd, firewalls, dcgm-exporter's CSV.

Each module turns a frozen plan into `RenderedFile`s; `write_files` writes them. Texts that do not depend on a
plan are package data: `files` is a link to the checkout's `deploy/`, and a folder in an installed package.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuscope.base.errors import UsageError
from gpuscope.base.files import WORLD_READABLE, write_atomically

FILES = Path(__file__).parent / "files"


@dataclass(frozen=True, slots=True)
class RenderedFile:
    path: str
    """Relative to the output folder."""
    content: str
    mode: int = WORLD_READABLE
    keep: bool = False
    """A file that the user edits, or a secret: an existing one stays as it is."""


def read_shipped(path: str) -> str:
    return (FILES / path).read_text("utf-8")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    path: Path
    is_kept: bool = False
    """It existed, and stays as it was."""


def write_files(folder: Path, files: Iterable[RenderedFile], *, force: bool = False) -> list[WrittenFile]:
    """A file with other content is replaced only with `force`."""
    planned = [(folder / file.path, file) for file in files]
    written = []
    try:
        changed = [path for path, file in planned if not file.keep and _has_other_content(path, file.content)]
        if changed and not force:
            names = ", ".join(map(str, changed))
            raise UsageError(f"--out {folder}: there is other content in {names}; pass --force to replace it")
        for path, file in planned:
            path.parent.mkdir(parents=True, exist_ok=True)
            is_kept = file.keep and path.exists()
            if not is_kept:
                write_atomically(path, file.content.encode(), mode=file.mode)
            written.append(WrittenFile(path, is_kept))
    except OSError as error:
        raise unwritable(folder, error) from None
    return written


def unwritable(folder: Path, error: OSError) -> UsageError:
    if folder.exists() and not folder.is_dir():
        return UsageError(f"--out {folder} is not a folder; choose another one")
    way = "run it with sudo, or choose" if isinstance(error, PermissionError) and os.geteuid() else "choose"
    return UsageError(f"--out {folder}: {error.strerror} ({error.filename}); {way} another folder")


def _has_other_content(path: Path, content: str) -> bool:
    return path.exists() and path.read_bytes() != content.encode()
