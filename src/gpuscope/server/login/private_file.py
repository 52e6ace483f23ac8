"""A small JSON document that only its owner may read, shared by the server and the `user` command.

Writes replace the file whole under a lock, so that a reader sees the old or the new one and two writers do not
lose each other's change. A reader looks at the file's identity each time and parses it again only when it is
another file. A file that became unreadable while we run leaves the last good document in force.
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

from gpuscope.errors import UsageError

log = logging.getLogger("gpuscope")

T = TypeVar("T")
Document = dict[str, Any]
Check = Callable[[Document], Document]
"""Makes a known shape of whatever the file held, or raises ValueError."""

MAX_BYTES = 16 << 20


class PrivateFile:
    def __init__(self, path: Path, check: Check) -> None:
        self.path = path
        self._check = check
        self._identity: tuple[int, ...] | None = None
        self._document: Document = check({})
        self._trouble = ""
        self._changing = threading.Lock()

    def open(self) -> None:
        """Reads it for the first time: here a damaged file is the user's to mend, not ours to overwrite."""
        try:
            self._document, self._identity = self._load()
        except (OSError, ValueError) as error:
            raise UsageError(f"{self.path}: {_why(error)}; mend it or move it away") from None
        with contextlib.suppress(OSError):
            self._close_to_others()

    def _close_to_others(self) -> None:
        """Mode 0600, however it came to be otherwise: restored from a copy, say."""
        if not self.path.stat().st_mode & 0o077:
            return
        try:
            self.path.chmod(0o600)
            log.warning("%s could be read by others on this machine; its mode is 0600 now", self.path)
        except PermissionError:
            log.warning("%s can be read by others on this machine: chmod 600 it", self.path)

    def read(self) -> Document:
        """The current document; not to be changed."""
        try:
            if self._stat() != self._identity:
                self._document, self._identity = self._load()
            self._trouble = ""
        except (OSError, ValueError) as error:
            if str(error) != self._trouble:
                log.error("%s: %s; what it said before stays in force", self.path, _why(error))
            self._trouble = str(error)
        return self._document

    def update(self, change: Callable[[Document], T]) -> T:
        """Applies `change` to a fresh copy and writes that; an exception in it leaves the file as it was."""
        with self._changing, self._locked():
            document, _ = self._load()
            result = change(document)
            self._write(document)
            return result

    def _stat(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return ()
        return found.st_ino, found.st_mtime_ns, found.st_size

    def _load(self) -> tuple[Document, tuple[int, ...]]:
        identity = self._stat()
        if not identity:
            return self._check({}), identity
        if identity[2] > MAX_BYTES:
            raise ValueError("it is too large to be ours")
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
        beside = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        handle = self._create(beside)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n")
                file.flush()
                os.fsync(handle)
            beside.replace(self.path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise

    def _create(self, path: Path) -> int:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        # `sudo gpuscope user add` must not leave a file that the server's own user cannot read. Only what was
        # just made is given away: the folder's owner could have put a link to somebody else's file there.
        if os.geteuid() == 0:
            folder = self.path.parent.stat()
            os.fchown(handle, folder.st_uid, folder.st_gid)
        return handle


def _why(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else f"not a file of ours: {error}"
