"""The kernel log through `journalctl` or `dmesg`, for where /dev/kmsg is not for us.

Neither gives the record's number, only its time since boot. They are run now and then and not left running:
a follower would cost the agent more memory than it has itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from gpuscope.errors import SourceError
from gpuscope.readings import ABSENT, Maybe
from gpuscope.sources.kernel_log.record import MARK, Batch, Record

POLL_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 20.0
LONGEST_LINE_BYTES: Final = 65536

_DMESG_LINE = re.compile(r"\[ *(\d{1,12})\.(\d{6})\](?:\[[^\]]*\])? (.*)", re.ASCII | re.DOTALL)

Monotonic = Callable[[], float]


def each_line(command: Sequence[str], take: Callable[[bytes], None]) -> None:
    """Gives `take` every line the command prints; it is killed after TIMEOUT_SECONDS."""
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
        with process:  # which waits for its end
            while process.stdout is not None and (line := process.stdout.readline(LONGEST_LINE_BYTES)):
                take(line)
    finally:
        timer.cancel()
    if process.returncode < 0:
        raise SourceError(f"{command[0]}: no answer within {TIMEOUT_SECONDS:.0f} s")
    if process.returncode > 0:
        raise SourceError(f"{command[0]}: failed with status {process.returncode}")


def _batch(records: Iterable[Record]) -> Batch:
    """In the order of time: without numbers it tells how far the log was read, and CPUs write out of order."""
    return Batch(tuple(sorted(records, key=lambda record: record.microseconds)))


class JournalReader:
    """journald's copy of the kernel log. Its cursor says where we were; should the journal be rotated away
    under it, the run fails, the source is opened anew and begins with the oldest message of this boot."""

    name = "journalctl"

    def __init__(self, program: str = "journalctl", monotonic: Monotonic = time.monotonic) -> None:
        self._command = (
            program,
            "--dmesg",
            "--boot",
            "--output=json",
            "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP",
            "--no-pager",
            "--quiet",
        )
        self._monotonic = monotonic
        self._next_read = float("-inf")
        self._cursor = ""

    def check(self) -> None:
        """journalctl shows nothing, and no error, to a user who may not read the kernel's messages."""
        lines: list[bytes] = []
        each_line((*self._command, "--lines=1"), lines.append)
        if not any(_json_object(line) for line in lines):
            raise SourceError(f"{self.name}: shows this user no kernel messages")

    def read(self) -> Batch | None:
        if self._monotonic() < self._next_read:
            return None
        self._next_read = self._monotonic() + POLL_SECONDS
        records: list[Record] = []
        last = b""

        def take(line: bytes) -> None:
            nonlocal last
            last = line
            record = parse_journal_line(line) if MARK in line else None
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


def parse_journal_line(line: bytes) -> Record | None:
    entry = _json_object(line) or {}
    message = entry.get("MESSAGE")
    if isinstance(message, list):  # journald's way to write what is not UTF-8
        message = bytes(n for n in message if isinstance(n, int) and 0 <= n < 256).decode("utf-8", "replace")
    microseconds = _whole(entry.get("_SOURCE_MONOTONIC_TIMESTAMP", entry.get("__MONOTONIC_TIMESTAMP")))
    if not isinstance(message, str) or microseconds is None:
        return None
    received = _whole(entry.get("__REALTIME_TIMESTAMP"))
    at: Maybe[float] = ABSENT if received is None else received / 1e6
    return Record(microseconds, message, at=at)


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
    """The kernel's buffer, whole at each run; new is what stands behind the last line we have seen."""

    name = "dmesg"

    def __init__(self, program: str = "dmesg", monotonic: Monotonic = time.monotonic) -> None:
        self._command = (program,)
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
        last = self._last_line

        def take(line: bytes) -> None:
            if line == last:
                lines.clear()
            elif MARK in line:
                lines.append(line)
            self._last_line = line

        each_line(self._command, take)
        records = (parse_dmesg_line(line.decode("utf-8", "replace")) for line in lines)
        return _batch(record for record in records if record is not None)

    def close(self) -> None:
        pass


def parse_dmesg_line(line: str) -> Record | None:
    """Without a time stamp (printk.time=0) a line cannot be told from its repetition, and is not taken."""
    found = _DMESG_LINE.match(line)
    if found is None:
        return None
    seconds, fraction, text = found.groups()
    return Record(int(seconds) * 1_000_000 + int(fraction), text.rstrip("\n"))
