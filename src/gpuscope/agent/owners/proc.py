"""What the kernel says about a process: start time, name, user, cgroup, environment, command line.

PID and `start_ticks` together identify a process. It may end between any two reads: that is `ProcessGone`, not
an error. `environ` and `cmdline` may hang if the process is stuck in the kernel; the other files do not.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuscope.base.errors import SourceError

_BUFFER_BYTES: Final = 1 << 14  # most of these files are smaller, and a larger buffer costs more
_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
INITIAL_PID_NAMESPACE: Final = "pid:[4026531836]"  # a constant of the kernel


class ProcessGone(Exception):
    """There is no such process, or this user may not see it (hidepid)."""


@dataclass(frozen=True, slots=True)
class ProcessStat:
    comm: str
    start_ticks: int


def _since_boot() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class ProcessRelations:
    parent: int
    group: int
    """The PID of its process group's leader."""
    session: int
    """The PID of its session's leader."""


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    uid: int
    gid: int
    relations: ProcessRelations | None
    """None before Linux 4.1 and behind a long list of groups: then `Proc.relations` has them."""


class Proc:
    """A procfs; in a container, the machine's may be mounted at another path."""

    def __init__(self, root: str = "/proc", since_boot: Callable[[], float] = _since_boot) -> None:
        """`since_boot` is the kernel's clock of start times: seconds since boot, those of suspend included."""
        self.root = root.rstrip("/") or "/"
        self._since_boot = since_boot
        self._boot_time: float | None = None

    def stat(self, pid: int) -> ProcessStat:
        return parse_stat(self._read(pid, "stat", 4096))

    def relations(self, pid: int) -> tuple[str, ProcessRelations]:
        """With its name."""
        return parse_relations(self._read(pid, "stat", 4096))

    def status(self, pid: int) -> ProcessStatus:
        return parse_status(self._read(pid, "status", 4096))

    def cgroup(self, pid: int) -> str:
        return self._read(pid, "cgroup", 1 << 16, until_eof=True).decode("utf-8", "replace")

    def environ(self, pid: int, max_bytes: int = 1 << 20) -> bytes:
        return self._read(pid, "environ", max_bytes)

    def cmdline(self, pid: int, max_bytes: int = 4096) -> bytes:
        return self._read(pid, "cmdline", max_bytes)

    def read(self, pid: int, name: str) -> bytes:
        """A small file of a process that does not hang: `stat`, `wchan`, `task/TID/schedstat`."""
        return self._read(pid, name, 4096)

    def threads(self, pid: int) -> list[int]:
        try:
            return [int(name) for name in os.listdir(f"{self.root}/{pid}/task")]  # noqa: PTH208 - see _read_file
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise ProcessGone from None

    def read_file(self, name: str) -> bytes:
        return self._read_file(f"{self.root}/{name}", 4096, False)

    def started_at(self, start_ticks: int) -> float:
        """Seconds since the epoch. The boot time is read once: setting the clock must not move start times."""
        if self._boot_time is None:
            self._boot_time = parse_boot_time(self._read_file(f"{self.root}/stat", 1 << 20, True))
        return self._boot_time + start_ticks / _TICKS_PER_SECOND

    def age_seconds(self, start_ticks: int) -> float:
        """Whole seconds since the start of a process; setting the machine's clock does not change it."""
        return float(max(0, int(self._since_boot() - start_ticks / _TICKS_PER_SECOND)))

    def sees_the_machine(self) -> bool:
        """Whether these PIDs are those of the machine, not of a container's PID namespace."""
        # A procfs at another path was mounted on purpose, and shows the namespace it comes from.
        if self.root != "/proc":
            return True
        try:
            return str(Path(self.root, "self/ns/pid").readlink()) == INITIAL_PID_NAMESPACE
        except OSError:
            return True

    def _read(self, pid: int, name: str, max_bytes: int, until_eof: bool = False) -> bytes:
        try:
            return self._read_file(f"{self.root}/{pid}/{name}", max_bytes, until_eof)
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            raise ProcessGone from None

    @staticmethod
    def _read_file(path: str, max_bytes: int, until_eof: bool) -> bytes:
        # os.open and os.read: a Python file object costs three times as much, hundreds of times a second. One
        # read returns most of these files whole; of a file with many lines it may return a page.
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = piece = os.read(handle, min(max_bytes, _BUFFER_BYTES))
            while piece and len(text) < max_bytes and (until_eof or len(piece) == _BUFFER_BYTES):
                piece = os.read(handle, min(max_bytes - len(text), _BUFFER_BYTES))
                text += piece
            return text
        finally:
            os.close(handle)


def parse_stat(text: bytes) -> ProcessStat:
    try:
        comm, rest = _split_stat(text, 20)
        return ProcessStat(comm, int(rest[19]))
    except (ValueError, IndexError):
        raise _not_as_expected(text) from None


def parse_relations(text: bytes) -> tuple[str, ProcessRelations]:
    try:
        comm, rest = _split_stat(text, 4)
        return comm, ProcessRelations(int(rest[1]), int(rest[2]), int(rest[3]))
    except (ValueError, IndexError):
        raise _not_as_expected(text) from None


def _split_stat(text: bytes, fields: int) -> tuple[str, list[bytes]]:
    """The name may contain spaces, brackets and line ends: it ends at the last `)`."""
    opened, closed = text.find(b"("), text.rfind(b")")
    if opened < 0 or closed < opened:
        raise ValueError
    return text[opened + 1 : closed].decode("utf-8", "replace"), text[closed + 1 :].split(None, fields)


def _not_as_expected(text: bytes) -> Exception:
    if not text:  # the process ended during the read
        return ProcessGone()
    return SourceError("/proc/PID/stat is not in the expected format")


def parse_status(text: bytes) -> ProcessStatus:
    # The name of the process comes first and cannot contain a line end: the kernel escapes it.
    try:
        uid, at = _number_after(text, b"\nUid:", 0)
        gid, at = _number_after(text, b"\nGid:", at)
    except ValueError:
        if not text:
            raise ProcessGone from None
        raise SourceError("/proc/PID/status is not in the expected format") from None
    try:
        parent, _ = _number_after(text, b"\nPPid:", 0)
        # The first number is that in the PID namespace of this procfs, as in `stat`.
        group, at = _number_after(text, b"\nNSpgid:", at)
        session, _ = _number_after(text, b"\nNSsid:", at)
    except ValueError:
        return ProcessStatus(uid, gid, None)
    return ProcessStatus(uid, gid, ProcessRelations(parent, group, session))


def _number_after(text: bytes, name: bytes, start: int) -> tuple[int, int]:
    """The first number of a line, and where it begins. Searching from there is faster than splitting."""
    begin = text.index(name, start) + len(name)
    end = text.index(b"\n", begin)  # a line that was cut off is none
    return int(text[begin:end].split(None, 1)[0]), begin


def parse_boot_time(text: bytes) -> float:
    for line in text.split(b"\n"):
        if line.startswith(b"btime "):
            try:
                return float(int(line[6:]))
            except ValueError:
                break
    raise SourceError("/proc/stat has no boot time")
