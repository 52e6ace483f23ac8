"""Readers of the kernel log: /dev/kmsg without blocking, else journalctl, else dmesg.

Each returns batches of records that a GPU driver may have written. kmsg numbers its records; the commands give
time stamps only, and are run at intervals with a time limit.
"""

from __future__ import annotations

import errno
import json
import os
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, NamedTuple, Protocol

from gpuscope.base.errors import SourceError
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.vendor import vendors

# Reads the kernel log through `journalctl` or `dmesg` if /dev/kmsg cannot be read.
#
# Neither prints a record's sequence number, only its time since boot. They run at intervals: a process that
# follows the log would use more memory than the agent.

POLL_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 20.0
MAX_LINE_BYTES: Final = 65536
KERNEL_FACILITY: Final = "0"

_DMESG_LINE = re.compile(r"\[ *(\d{1,12})\.(\d{6})\](?:\[[^\]]*\])? (.*)", re.ASCII | re.DOTALL)

Monotonic = Callable[[], float]


def each_line(command: Sequence[str], take: Callable[[bytes], None]) -> None:
    """Calls `take` for every line of the command's output; kills the command after TIMEOUT_SECONDS."""
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except OSError as error:
        raise SourceError(f"{command[0]}: {error.strerror}") from error
    timer = threading.Timer(TIMEOUT_SECONDS, process.kill)
    timer.daemon = True
    timer.start()
    try:
        with process:  # waits for its end
            is_begun = False
            while process.stdout is not None and (line := process.stdout.readline(MAX_LINE_BYTES)):
                if not is_begun:  # the rest of a line that is too long must not pass for another one
                    take(line)
                is_begun = not line.endswith(b"\n")
    finally:
        timer.cancel()
    if process.returncode < 0:
        raise SourceError(f"{command[0]}: no answer within {TIMEOUT_SECONDS:.0f} s")
    if process.returncode > 0:
        raise SourceError(f"{command[0]}: failed with status {process.returncode}")


def _batch(records: Iterable[KernelLogRecord]) -> Batch:
    """Sorted by time, because CPUs write out of order and time is the position without sequence numbers."""
    return Batch(tuple(sorted(records, key=lambda record: record.microseconds)))


class JournalReader:
    """journald's copy of the kernel log, read from the last cursor. If the journal was rotated past the cursor,
    the run fails, and the source is opened again and starts with the oldest message of this boot."""

    name = "journalctl"

    def __init__(self, program: str = "journalctl", monotonic: Monotonic = time.monotonic) -> None:
        self._command = (
            program,
            "--dmesg",
            "--boot",
            "--output=json",
            "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP,SYSLOG_FACILITY",
            "--no-pager",
            "--quiet",
        )
        self._monotonic = monotonic
        self._next_read = float("-inf")
        self._cursor = ""

    def check(self) -> None:
        """Raises SourceError without access: journalctl then prints nothing and reports no error."""
        lines: list[bytes] = []
        each_line((*self._command, "--lines=1"), lines.append)
        if not any(_json_object(line) for line in lines):
            raise SourceError(f"{self.name}: this user cannot see kernel messages")

    def read(self) -> Batch | None:
        if self._monotonic() < self._next_read:
            return None
        self._next_read = self._monotonic() + POLL_SECONDS
        records: list[KernelLogRecord] = []
        last = b""

        def take(line: bytes) -> None:
            nonlocal last
            last = line
            record = parse_journal_line(line) if is_of_driver(line) else None
            if record is not None:
                records.append(record)

        after = (f"--after-cursor={self._cursor}",) if self._cursor else ()
        each_line((*self._command, *after), take)
        cursor = (_json_object(last) or {}).get("__CURSOR")
        if isinstance(cursor, str):
            self._cursor = cursor
        return _batch(records)

    def close(self) -> None:
        pass


def parse_journal_line(line: bytes) -> KernelLogRecord | None:
    entry = _json_object(line) or {}
    if entry.get("SYSLOG_FACILITY", KERNEL_FACILITY) != KERNEL_FACILITY:
        return None  # a program wrote it to /dev/kmsg
    message = entry.get("MESSAGE")
    if isinstance(message, list):  # journald writes a message that is not UTF-8 as a list of bytes
        message = bytes(n for n in message if isinstance(n, int) and 0 <= n < 256).decode("utf-8", "replace")
    microseconds = _whole(entry.get("_SOURCE_MONOTONIC_TIMESTAMP", entry.get("__MONOTONIC_TIMESTAMP")))
    if not isinstance(message, str) or microseconds is None:
        return None
    received = _whole(entry.get("__REALTIME_TIMESTAMP"))
    at: Maybe[float] = ABSENT if received is None else received / 1e6
    return KernelLogRecord(microseconds, message, at=at)


def _json_object(line: bytes) -> dict[str, object] | None:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        return int(value)
    return None


class DmesgReader:
    """The kernel's buffer, printed as a whole by each run; lines after the last seen line are new.

    A record with a line break is printed as several lines with the same time: only the first of them is known
    to begin a record. `--kernel` leaves out what programs wrote.
    """

    name = "dmesg"

    def __init__(self, program: str = "dmesg", monotonic: Monotonic = time.monotonic) -> None:
        self._command = (program, "--kernel")
        self._monotonic = monotonic
        self._next_read = float("-inf")
        self._last_line = b""

    def check(self) -> None:
        each_line(self._command, lambda line: None)

    def read(self) -> Batch | None:
        if self._monotonic() < self._next_read:
            return None
        self._next_read = self._monotonic() + POLL_SECONDS
        lines: list[bytes] = []
        last, time_before = self._last_line, b""

        def take(line: bytes) -> None:
            nonlocal time_before
            time = line.partition(b"]")[0]
            is_continued, time_before = time == time_before, time
            if line == last:
                lines.clear()
            elif is_of_driver(line) and not is_continued:
                lines.append(line)
            self._last_line = line

        each_line(self._command, take)
        records = (parse_dmesg_line(line.decode("utf-8", "replace")) for line in lines)
        return _batch(record for record in records if record is not None)

    def close(self) -> None:
        pass


def parse_dmesg_line(line: str) -> KernelLogRecord | None:
    """None without a timestamp (printk.time=0), because a repeated line could not be recognised."""
    found = _DMESG_LINE.match(line)
    if found is None:
        return None
    seconds, fraction, text = found.groups()
    return KernelLogRecord(int(seconds) * 1_000_000 + int(fraction), text.rstrip("\n"))


# Reads /dev/kmsg: the kernel log by record, each with a sequence number that is unique within one boot.
#
# Every read() returns one record, starting with the oldest after opening. EPIPE means that records were
# overwritten before they were read; the next read continues after the gap. Records that programs wrote are
# skipped.

MAX_RECORD_BYTES: Final = 16384
MAX_RECORDS_A_READ: Final = 50_000

_KERNEL_PRIORITIES: Final = frozenset(b"%d" % priority for priority in range(8))
"""Of facility 0. A program that writes to /dev/kmsg gets another one: anybody could report an XID."""
_ESCAPE = re.compile(rb"\\x([0-9a-fA-F]{2})")


def parse_kmsg_record(raw: bytes) -> KernelLogRecord | None:
    r"""`3,1234,5678901,-;NVRM: Xid …`: priority and facility, number, microseconds, flags; text with `\x..`."""
    head, _, rest = raw.partition(b";")
    fields = head.split(b",")
    if len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return None
    if len(fields[1]) > 20 or len(fields[2]) > 20:  # neither is longer than 64 bits
        return None
    if fields[0] not in _KERNEL_PRIORITIES:
        return None
    line = rest.partition(b"\n")[0]  # followed by the record's device and subsystem
    text = _ESCAPE.sub(lambda found: bytes([int(found[1], 16)]), line)
    return KernelLogRecord(int(fields[2]), text.decode("utf-8", "replace"), int(fields[1]))


class KmsgReader:
    name = "/dev/kmsg"

    def __init__(self, descriptor: int, read: Callable[[int, int], bytes] = os.read) -> None:
        self._descriptor = descriptor
        self._read = read

    @classmethod
    def open(cls, path: str) -> KmsgReader:
        return cls(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC))

    def read(self) -> Batch:
        records: list[KernelLogRecord] = []
        overruns = 0
        for _ in range(MAX_RECORDS_A_READ):
            try:
                raw = self._read(self._descriptor, MAX_RECORD_BYTES)
            except BlockingIOError:
                return Batch(tuple(records), True, overruns)
            except OSError as error:
                if error.errno not in (
                    errno.EPIPE,
                    errno.EINVAL,
                ):  # overwritten; larger than any record should be
                    raise SourceError(f"{self.name}: {error.strerror}") from error
                overruns += 1
                continue
            if not raw:
                return Batch(tuple(records), True, overruns)
            if is_of_driver(raw):
                record = parse_kmsg_record(raw)
                if record is not None:
                    records.append(record)
        return Batch(tuple(records), False, overruns)

    def close(self) -> None:
        os.close(self._descriptor)


class KernelLogRecord(NamedTuple):
    microseconds: int  # since boot, by the kernel's clock
    text: str
    sequence: Maybe[int] = ABSENT
    at: Maybe[float] = ABSENT  # seconds since the epoch, if the log has it


@dataclass(frozen=True, slots=True)
class Batch:
    """New records since the last batch. `caught_up`: all records were read."""

    records: tuple[KernelLogRecord, ...] = ()
    caught_up: bool = True
    overruns: int = 0  # how many times the log was overwritten before it was read


@cache
def _prefixes() -> tuple[bytes, ...]:
    return tuple(vendor.kernel_prefix for vendor in vendors().values() if vendor.kernel_prefix)


def is_of_driver(line: bytes) -> bool:
    """Whether a GPU driver may have written it; other records are skipped."""
    return any(prefix in line for prefix in _prefixes())


class LogReader(Protocol):
    """Raises SourceError if it cannot read the log any more."""

    name: str

    def read(self) -> Batch | None:
        """None if the next read is not due yet."""
        ...

    def close(self) -> None: ...
