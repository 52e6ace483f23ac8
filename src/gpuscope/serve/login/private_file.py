"""A small JSON document with mode 0600, shared by the server and the `user` command; and hashes of secrets.

A write replaces the whole file under a lock: readers see the old or the new document, and concurrent writers do
not lose changes. A reader checks inode, time and size on each read and parses the file only if they changed. If
the file becomes unreadable while the server runs, the last valid document stays in use.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import hashlib
import hmac
import logging
import os
import secrets
import threading
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import orjson

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import UsageError

log = logging.getLogger("gpuscope")

# Hashes credentials: passwords with bcrypt, random secrets with SHA-256.
#
# Session ids, API tokens and the setup token are 256 random bits, so a fast digest is enough. Passwords can
# be guessed, so they need bcrypt. A check takes the same time whether the user exists or not.

ROUNDS = 12
MIN_PASSWORD_LENGTH = 10
MAX_PASSWORD_LENGTH = 1024
TOKEN_PREFIX = "gpuscope_"  # noqa: S105 - lets secret scanners find a leaked token

_UNKNOWN_USER_TAIL = b"XGuZIVrvGF5GIZVL/P2aYO9RhqdFH23dIyILOf//2CHFOCmMdQWye"


def new_secret() -> str:
    return secrets.token_urlsafe(32)


def new_token() -> str:
    return TOKEN_PREFIX + new_secret()


def digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()


def password_error(user: str, password: str) -> str:
    """The reason why this password is not acceptable, or ""."""
    if len(password) < MIN_PASSWORD_LENGTH:
        return f"the password is shorter than {MIN_PASSWORD_LENGTH} characters"
    if len(password) > MAX_PASSWORD_LENGTH:
        return f"the password is longer than {MAX_PASSWORD_LENGTH} characters"
    if password.casefold() == user.casefold() or len(set(password)) < 4:
        return "the password is too easy to guess: it equals the user name or repeats a few characters"
    return ""


def hash_password(password: str, rounds: int = ROUNDS) -> str:
    import bcrypt

    return bcrypt.hashpw(_to_bcrypt_input(password), bcrypt.gensalt(rounds)).decode("ascii")


def check_password(password: str, stored: str | None, rounds: int = ROUNDS) -> bool:
    """False if `stored` is None, after the same time as for a wrong password."""
    import bcrypt

    unknown_user = b"$2b$%02d$" % rounds + _UNKNOWN_USER_TAIL
    try:
        matches = bcrypt.checkpw(_to_bcrypt_input(password), stored.encode("ascii") if stored else unknown_user)
    except ValueError:  # the stored hash is malformed
        return False
    return matches and stored is not None


def _to_bcrypt_input(password: str) -> bytes:
    """A digest of the password: bcrypt reads at most 72 bytes, which is only 24 Korean syllables.

    NFC first, because keyboards differ in whether they send composed or decomposed characters.
    """
    composed = unicodedata.normalize("NFC", password).encode("utf-8", "surrogatepass")
    return base64.b64encode(hmac.digest(b"gpuscope password 1", composed, "sha256"))


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
