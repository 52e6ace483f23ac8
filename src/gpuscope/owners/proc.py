"""What the kernel tells of a process: when it started, its name, its user, its cgroup.

`start_ticks` is what makes a PID unique. A process may end between any two reads: that is `ProcessGone`, never
an error. `environ` and `cmdline` may hang on a process that is stuck in the kernel, the others do not.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscope.errors import SourceError

_PIECE: Final = 1 << 14  # a larger buffer costs more to make than these files are worth
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # the kernel's own number for it


class ProcessGone(Exception):
    """There is no such process, or we may not know of it (hidepid)."""


@dataclass(frozen=True, slots=True)
class Stat:
    comm: str
    start_ticks: int


class Proc:
    """A procfs; in a container it may be the machine's, mounted somewhere else."""

    def __init__(self, root: str = "/proc") -> None:
        self.root = root.rstrip("/") or "/"
        self._boot_time: float | None = None

    def stat(self, pid: int) -> Stat:
        return parse_stat(self._read(pid, "stat", 4096))

    def ids(self, pid: int) -> tuple[int, int]:
        """User and group the process runs as."""
        return parse_ids(self._read(pid, "status", 4096))

    def cgroup(self, pid: int) -> str:
        return self._read(pid, "cgroup", 1 << 16, to_the_end=True).decode("utf-8", "replace")

    def environ(self, pid: int, most: int = 1 << 20) -> bytes:
        return self._read(pid, "environ", most)

    def cmdline(self, pid: int, most: int = 4096) -> bytes:
        return self._read(pid, "cmdline", most)

    def started_at(self, start_ticks: int) -> float:
        """Seconds since the epoch. The boot time is asked once: a corrected clock must not move the past."""
        if self._boot_time is None:
            self._boot_time = parse_boot_time(self._read_file(f"{self.root}/stat", 1 << 20, True))
        return self._boot_time + start_ticks / _TICKS_PER_SECOND

    def sees_the_machine(self) -> bool:
        """Whether these PIDs are the machine's: not those of a container's own PID namespace."""
        # A procfs mounted elsewhere was brought in on purpose, and shows the namespace it comes from.
        if self.root != "/proc":
            return True
        try:
            return str(Path(self.root, "self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE
        except OSError:
            return True

    def _read(self, pid: int, name: str, most: int, to_the_end: bool = False) -> bytes:
        try:
            return self._read_file(f"{self.root}/{pid}/{name}", most, to_the_end)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise ProcessGone from None

    @staticmethod
    def _read_file(path: str, most: int, to_the_end: bool) -> bytes:
        # os.open and os.read: a Python file object costs three times as much, hundreds of times a second. The
        # kernel hands out most of these files in one piece; those made of many lines may come a page at a time.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = piece = os.read(handle, min(most, _PIECE))
            while piece and len(text) < most and (to_the_end or len(piece) == _PIECE):
                piece = os.read(handle, min(most - len(text), _PIECE))
                text += piece
            return text
        finally:
            os.close(handle)


def parse_stat(text: bytes) -> Stat:
    """The name may hold spaces, brackets and line ends: it stops at the last `)`."""
    opened, closed = text.find(b"("), text.rfind(b")")
    rest = text[closed + 1 :].split(None, 20)
    try:
        if opened < 0 or closed < opened:
            raise ValueError
        return Stat(text[opened + 1 : closed].decode("utf-8", "replace"), int(rest[19]))
    except (ValueError, IndexError):
        if not text:  # it ended while we read
            raise ProcessGone from None
        raise SourceError("/proc/PID/stat is not in its usual form") from None


def parse_ids(text: bytes) -> tuple[int, int]:
    try:
        # The name of the process stands first and cannot hold a line end: the kernel escapes it.
        _, _, rest = text.partition(b"\nUid:")
        uid = int(rest.split(None, 1)[0])
        _, _, rest = rest.partition(b"\nGid:")
        return uid, int(rest.split(None, 1)[0])
    except (ValueError, IndexError):
        if not text:
            raise ProcessGone from None
        raise SourceError("/proc/PID/status is not in its usual form") from None


def parse_boot_time(text: bytes) -> float:
    for line in text.split(b"\n"):
        if line.startswith(b"btime "):
            try:
                return float(int(line[6:]))
            except ValueError:
                break
    raise SourceError("/proc/stat has no boot time")
