"""Reads /dev/kmsg: the kernel log by record, each with a sequence number that is unique within one boot.

Every read() returns one record, starting with the oldest after opening. EPIPE means that records were
overwritten before they were read; the next read continues after the gap. Records that programs wrote are
skipped.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from typing import Final

from gpuscope.agent.sources.kernel_log.record import Batch, KernelLogRecord, is_of_driver
from gpuscope.base.errors import SourceError

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
