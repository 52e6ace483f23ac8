"""A small JSON document with mode 0600, shared by the server and the `user` command.

A write replaces the whole file under a lock: readers see the old or the new document, and concurrent writers do
not lose changes. A reader checks inode, time and size on each read and parses the file only if they changed. If
the file becomes unreadable while the server runs, the last valid document stays in use.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import orjson

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import UsageError

log = logging.getLogger("gpuscope")

T = TypeVar("T")
Document = dict[str, Any]
Check = Callable[[Document], Document]
"""Validates and completes a document, or raises ValueError."""

MAX_BYTES = 16 << 20


class PrivateFile:
    def __init__(self, path: Path, check: Check) -> None:
        self.path = path
        self._check = check
        self._identity: tuple[int, ...] | None = None
        self._document: Document = check({})
        self._episode = EpisodeLog(log, str(path), level=logging.ERROR, recovered="readable again")
        self._changing = threading.Lock()

    def open(self) -> None:
        """Reads the file for the first time. A damaged file is an error and is never overwritten."""
        try:
            self._document, self._identity = self._load()
        except OSError as error:
            advice = "it has the users and tokens, so keep it; check its permissions and the file system"
            raise UsageError(f"{self.path}: {_reason(error)}; {advice}") from None
        except ValueError as error:
            raise UsageError(f"{self.path}: {_reason(error)}; repair the file or move it away") from None
        with contextlib.suppress(OSError):
            self._restrict_mode()

    def _restrict_mode(self) -> None:
        """Sets mode 0600; a restored backup may have another mode."""
        if not self.path.stat().st_mode & 0o077:
            return
        try:
            self.path.chmod(0o600)
            log.warning("%s was readable by other users of this machine; changed its mode to 0600", self.path)
        except PermissionError:
            log.warning("%s is readable by other users of this machine; run chmod 600 on it", self.path)

    def read(self) -> Document:
        """The current document. Callers must not modify it."""
        try:
            if self._stat() != self._identity:
                self._document, self._identity = self._load()
            self._episode.succeeded()
        except (OSError, ValueError) as error:
            self._episode.failed(f"{_reason(error)}; the last valid content stays in use")
        return self._document

    def update(self, change: Callable[[Document], T]) -> T:
        """Applies `change` to a fresh copy and writes it; if `change` raises, the file stays unchanged."""
        with self._changing, self._locked():
            document, _ = self._load()
            result = change(document)
            self._write(document)
            return result

    def _stat(self) -> tuple[int, ...]:
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return ()
        return status.st_ino, status.st_mtime_ns, status.st_size

    def _load(self) -> tuple[Document, tuple[int, ...]]:
        identity = self._stat()
        if not identity:
            return self._check({}), identity
        if identity[2] > MAX_BYTES:
            raise ValueError(f"larger than {MAX_BYTES} bytes")
        return self._check(orjson.loads(self.path.read_bytes())), identity

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = self.path.with_name(self.path.name + ".lock")
        try:
            handle = self._create(lock)
        except FileExistsError:
            handle = os.open(lock, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)

    def _write(self, document: Document) -> None:
        temporary = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        handle = self._create(temporary)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
                file.flush()
                os.fsync(handle)
            temporary.replace(self.path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

    def _create(self, path: Path) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # `sudo gpuscope user add` must not leave a file that the server's user cannot read. Only a file that
        # was just created changes its owner: the folder's owner could place a link to another user's file.
        if os.geteuid() == 0:
            folder = self.path.parent.stat()
            os.fchown(handle, folder.st_uid, folder.st_gid)
        return handle


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"invalid content: {error}"
