"""Reads the kernel's files of one card: the only place that opens them.

A file that does not exist, or that the kernel refuses for this card (EINVAL, `N/A`), is ABSENT and is not
opened again until `retry_refused`. A file that fails otherwise (EBUSY, EIO, EPERM during a reset, a text that
is no number) is ABSENT now, is named in `failures`, and is read again next time.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Mapping
from typing import Any, Final, Protocol

from gpuscope.model.readings import ABSENT, Maybe

log = logging.getLogger("gpuscope.source")

MAX_TEXT_BYTES: Final = 4096
"""A page: the kernel gives no more of a text file."""
NOT_THERE: Final = ("N/A", "n/a", "Unknown", "unknown", "Not supported")
INACCESSIBLE: Final = "Query currently inaccessible"
"""What RAS files contain while the card is reset."""

_MISSING: Final = frozenset({errno.ENOENT, errno.ENOTDIR})
_REFUSED: Final = frozenset(
    {errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.ENODATA, errno.ENOTTY, errno.EACCES}
)


Fields = dict[str, Any]
"""Readings by the names of `Device`'s attributes."""


class CallGuard(Protocol):
    """Watches for reads that do not return."""

    def is_skipped(self, name: str) -> bool:
        """Whether an earlier read of this file has not returned."""
        ...

    def enter(self, name: str) -> Any:
        """Called before a read. What it returns is given to `leave`."""

    def leave(self, entered: Any) -> None: ...


class NoGuard:
    def is_skipped(self, name: str) -> bool:
        return False

    def enter(self, name: str) -> None: ...

    def leave(self, entered: None) -> None: ...


class CardFiles:
    """`name` is that of the source and the card in log lines: `amdgpu: GPU 0`. Names of files are relative to
    `folder`."""

    def __init__(self, folder: str, name: str, guard: CallGuard | None = None) -> None:
        self.folder = folder
        self._name = name
        self._guard = guard or NoGuard()
        self._not_there: set[str] = set()
        self._named: set[str] = set()
        """Refused files that were logged."""
        self.failures: dict[str, str] = {}
        """File -> reason, since `begin`."""
        self.answered = 0
        """Files that were read since `begin`."""

    def begin(self) -> None:
        self.failures = {}
        self.answered = 0

    def retry_refused(self) -> None:
        """Opens all files again: a driver or a mode may have changed."""
        self._not_there.clear()

    def raw(self, name: str, max_bytes: int = MAX_TEXT_BYTES, *, until_eof: bool = False) -> Maybe[bytes]:
        """One read returns at most a page; a list may be longer."""
        if name in self._not_there or self._guard.is_skipped(name):
            return ABSENT
        try:
            entered = self._guard.enter(name)
            try:
                data = read_whole(f"{self.folder}/{name}", max_bytes, until_eof=until_eof)
            finally:
                self._guard.leave(entered)
        except OSError as error:
            self._failed(name, error)
            return ABSENT
        self.answered += 1
        return data

    def text(self, name: str) -> Maybe[str]:
        """Without white space at the ends; an empty file is ABSENT."""
        data = self.raw(name)
        if data is ABSENT:
            return ABSENT
        text = data.decode("utf-8", "replace").strip()
        if text in NOT_THERE:
            self._refuse(name, f"its content is {text}")
            return ABSENT
        if text == INACCESSIBLE:
            self.failures[name] = "inaccessible"
            return ABSENT
        return text or ABSENT

    def number(self, name: str, base: int = 10) -> Maybe[int]:
        text = self.text(name)
        if text is ABSENT:
            return ABSENT
        try:
            return int(text, base)
        except ValueError:
            self.failures[name] = "not a number"
            return ABSENT

    def scaled(self, name: str, factor: float) -> Maybe[float]:
        """The number in base units: `scaled("power1_cap", 1e-6)` is watts."""
        number = self.number(name)
        return ABSENT if number is ABSENT else number * factor

    def properties(self, name: str) -> Mapping[str, int]:
        """A file with a name and a number on each line; other lines are skipped."""
        text = self.text(name)
        return {} if text is ABSENT else parse_properties(text)

    def names(self, folder: str = "") -> list[str]:
        """What is in a folder, sorted; empty if it is not there."""
        try:
            entered = self._guard.enter(f"{folder}/")
            try:
                return sorted(os.listdir(f"{self.folder}/{folder}"))  # noqa: PTH208 - a Path for each costs more
            finally:
                self._guard.leave(entered)
        except OSError as error:
            self._failed(f"{folder}/", error)
            return []

    def fail(self, name: str, reason: str) -> None:
        self.failures[name] = reason

    def _failed(self, name: str, error: OSError) -> None:
        code = error.errno or 0
        if code in _MISSING:
            self._not_there.add(name)
        elif code in _REFUSED:
            self._refuse(name, errno.errorcode[code])
        else:
            self.failures[name] = errno.errorcode.get(code, str(error))

    def _refuse(self, name: str, reason: str) -> None:
        self._not_there.add(name)
        if name not in self._named:
            self._named.add(name)
            log.info("source %s does not give %s (%s); its number is absent", self._name, name, reason)


def read_whole(path: str, max_bytes: int, *, until_eof: bool = False) -> bytes:
    """One read is enough for most: the kernel makes a file's content when it is read from its start."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        data = piece = os.read(handle, max_bytes)
        while until_eof and piece and len(data) < max_bytes:
            piece = os.read(handle, max_bytes - len(data))
            data += piece
        return data
    finally:
        os.close(handle)


def parse_properties(text: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        try:
            found[name] = int(value)
        except ValueError:
            continue
    return found
