"""Names of users and groups by number.

A process in a container may run as a number that the machine does not know. Its name is then the owner of the
subordinate range that contains it (rootless containers), else the container's own name for it unless a user of
the machine has that name, else the number itself.
"""

from __future__ import annotations

import grp
import os
import pwd
import re
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

KEPT_SECONDS: Final = 300.0
MAX_KEPT: Final = 1000
_MAX_BYTES: Final = 1 << 20
_NUMBER = re.compile(r"\d{1,10}\Z", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.@-]{0,63}\$?\Z", re.ASCII)


class UserNames:
    """`rootfs`: the machine's root, if it is mounted at another path. Its files are read then, not NSS."""

    def __init__(self, rootfs: str = "/", clock: Callable[[], float] = time.monotonic) -> None:
        self._root = Path(rootfs)
        self._uses_nss = rootfs in ("", "/")
        self._clock = clock
        self._names: dict[tuple[str, int], str | None] = {}
        self._tables: dict[str, dict[int, str]] = {}
        self._ranges: list[tuple[int, int, str]] | None = None
        self._fresh_until = 0.0

    def user(self, uid: int, container_passwd: Callable[[], str] | None = None) -> str:
        known = self._lookup("passwd", uid)
        if known is not None:
            return known
        owner = self._owner_of_range(uid)
        if owner is not None:
            return owner
        if container_passwd is not None:
            name = parse_names(container_passwd()).get(uid)
            if name is not None and not self._is_a_user(name):
                return name
        return str(uid)

    def group(self, gid: int) -> str:
        return self._lookup("group", gid) or str(gid)

    def _lookup(self, table: str, number: int) -> str | None:
        if self._clock() >= self._fresh_until or len(self._names) > MAX_KEPT:
            self._fresh_until = self._clock() + KEPT_SECONDS
            self._names.clear()
            self._tables.clear()
            self._ranges = None
        if (table, number) not in self._names:
            self._names[table, number] = self._find_name(table, number)
        return self._names[table, number]

    def _find_name(self, table: str, number: int) -> str | None:
        if not self._uses_nss:
            return self._table(table).get(number)
        try:
            if table == "passwd":
                return pwd.getpwuid(number).pw_name
            return grp.getgrgid(number).gr_name
        except (KeyError, OverflowError, OSError):
            return None

    def _table(self, table: str) -> dict[int, str]:
        if table not in self._tables:
            self._tables[table] = parse_names(read_text(self._root / "etc" / table))
        return self._tables[table]

    def _is_a_user(self, name: str) -> bool:
        if not self._uses_nss:
            return name in self._table("passwd").values()
        try:
            pwd.getpwnam(name)
        except (KeyError, ValueError, OSError):
            return False
        return True

    def _owner_of_range(self, uid: int) -> str | None:
        if self._ranges is None:
            self._ranges = parse_ranges(read_text(self._root / "etc/subuid"))
        return next((name for first, count, name in self._ranges if first <= uid < first + count), None)


def read_text(path: Path) -> str:
    """The beginning of a file of the machine; empty if it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(_MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def read_hostile_text(path: Path) -> str:
    """A file inside a container, whose users decide what is at that path.

    A link could lead out of the container, opening a device could have an effect, and a named pipe could block:
    only a regular file is opened.
    """
    try:
        handle = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return ""
        return read_text(Path(f"/proc/self/fd/{handle}"))
    except OSError:
        return ""
    finally:
        os.close(handle)


def parse_names(text: str) -> dict[int, str]:
    """Number to name from `/etc/passwd` or `/etc/group`; the first line with a number is used, as in libc."""
    names: dict[int, str] = {}
    for line in text.split("\n"):
        cells = line.split(":")
        if len(cells) >= 3 and _NUMBER.match(cells[2]) and _NAME.match(cells[0]):
            names.setdefault(int(cells[2]), cells[0])
    return names


def parse_ranges(text: str) -> list[tuple[int, int, str]]:
    """`alice:100000:65536` of `/etc/subuid`."""
    ranges = []
    for line in text.split("\n"):
        cells = line.strip().split(":")
        if len(cells) == 3 and all(map(_NUMBER.match, cells[1:])):
            ranges.append((int(cells[1]), int(cells[2]), cells[0]))
    return ranges
