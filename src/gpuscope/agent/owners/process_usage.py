"""CPU time, memory, parent and command line of processes on this machine, from /proc; and signals to them.

A CPU ratio needs two readings: it is the share of one core between them, as in top. A process that has ended,
or that this user may not see, is left out. A PID may be reused, so a signal is sent only to the process that
was read: PID and start time must both agree.
"""

from __future__ import annotations

import os
import pwd
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.owners.proc import Proc, ProcessGone

_TICKS_PER_SECOND: Final = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
MAX_ANCESTORS: Final = 32
UNINTERRUPTIBLE: Final = "D"


@dataclass(frozen=True, slots=True)
class ProcessUsage:
    pid: int
    parent_pid: int
    uid: int
    start_ticks: int
    cpu_ratio: float | None
    """Share of one core; None at the first reading."""
    memory_bytes: int
    command_line: str

    @property
    def user(self) -> str:
        try:
            return pwd.getpwuid(self.uid).pw_name
        except KeyError:
            return str(self.uid)


@dataclass(frozen=True, slots=True)
class UsageStat:
    """What /proc/PID/stat says of the use of CPU and memory."""

    state: str
    parent_pid: int
    cpu_ticks: int
    start_ticks: int
    memory_bytes: int
    name: str
    io_ticks: int = 0
    """Waits for block I/O of the main thread; 0 where the kernel does not count them."""


class ProcessUsageReader:
    """`read` reads the given processes and all their ancestors."""

    def __init__(self, proc_root: str = "/proc", clock: Callable[[], float] = time.monotonic) -> None:
        self._root = proc_root
        self._proc = Proc(proc_root)
        self._clock = clock
        self._before: dict[tuple[int, int], tuple[float, int]] = {}
        self._commands: dict[tuple[int, int], str] = {}

    def sees_the_machine(self) -> bool:
        return self._proc.sees_the_machine()

    def read(self, pids: Iterable[int]) -> dict[int, ProcessUsage]:
        found: dict[int, ProcessUsage] = {}
        at, times = self._clock(), {}
        for start in pids:
            pid = start
            for _ in range(MAX_ANCESTORS):
                if pid <= 1 or pid in found:
                    break
                stat = self._stat(pid)
                uid = self._uid(pid)
                if stat is None or uid is None:
                    break
                key = (pid, stat.start_ticks)
                times[key] = (at, stat.cpu_ticks)
                found[pid] = self._usage(pid, uid, stat, at)
                pid = stat.parent_pid
        self._before = times
        self._commands = {key: text for key, text in self._commands.items() if key in times}
        return found

    def _usage(self, pid: int, uid: int, stat: UsageStat, at: float) -> ProcessUsage:
        before = self._before.get((pid, stat.start_ticks))
        ratio = None
        if before is not None and at > before[0]:
            ratio = max(0.0, (stat.cpu_ticks - before[1]) / _TICKS_PER_SECOND / (at - before[0]))
        return ProcessUsage(
            pid, stat.parent_pid, uid, stat.start_ticks, ratio, stat.memory_bytes, self._command(pid, stat)
        )

    def _command(self, pid: int, stat: UsageStat) -> str:
        key = (pid, stat.start_ticks)
        known = self._commands.get(key)
        if known is None:
            known = stat.name
            if stat.state != UNINTERRUPTIBLE:  # reading the command line of a stuck process may hang
                try:
                    words = self._proc.cmdline(pid).split(b"\0")
                    known = " ".join(word.decode("utf-8", "replace") for word in words if word) or stat.name
                except (ProcessGone, OSError):
                    pass
            self._commands[key] = known
        return known

    def _stat(self, pid: int) -> UsageStat | None:
        try:
            with open(f"{self._root}/{pid}/stat", "rb") as file:  # noqa: PTH123 - each second for each process
                return parse_usage(file.read(4096))
        except (OSError, ValueError):
            return None

    def _uid(self, pid: int) -> int | None:
        try:
            return os.stat(f"{self._root}/{pid}").st_uid  # noqa: PTH116
        except OSError:
            return None


def parse_usage(text: bytes) -> UsageStat:
    """ValueError if the text is not that of /proc/PID/stat. The name may contain spaces and brackets."""
    opened, closed = text.find(b"("), text.rfind(b")")
    rest = text[closed + 1 :].split()
    if opened < 0 or closed < opened or len(rest) < 22:
        raise ValueError("/proc/PID/stat is not in the expected format")
    return UsageStat(
        state=rest[0].decode("ascii", "replace"),
        parent_pid=int(rest[1]),
        cpu_ticks=int(rest[11]) + int(rest[12]),
        start_ticks=int(rest[19]),
        memory_bytes=int(rest[21]) * _PAGE_BYTES,
        name=text[opened + 1 : closed].decode("utf-8", "replace"),
        io_ticks=int(rest[39]) if len(rest) > 39 else 0,
    )


def send_signal(pid: int, start_ticks: int, number: int) -> str:
    """Sends a signal to the process that started at `start_ticks`; returns why not, or an empty string."""
    try:
        handle = os.pidfd_open(pid)
    except OSError:
        return f"process {pid} has ended"
    try:
        # The handle is of this process from now on, also if the PID is given to another one.
        if Proc().stat(pid).start_ticks != start_ticks:
            return f"process {pid} has ended; another one has its PID now"
        signal.pidfd_send_signal(handle, number)
    except (ProcessGone, ProcessLookupError):
        return f"process {pid} has ended"
    except PermissionError:
        return f"process {pid} belongs to another user"
    finally:
        os.close(handle)
    return ""
