"""Errors of GPUs from the kernel log, which also has those before the agent's start and of a failed driver.

Reads /dev/kmsg without blocking, else runs journalctl, else dmesg. After opening it starts with the oldest
record of this boot: events contain their position in the log, by which the ledger recognises events it has
counted. Times are converted from the kernel's clock, which stops in suspend and drifts against the wall clock;
a new record cannot be older than the last read.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from gpuscope.agent.sources.kernel_log.log_readers import (
    DmesgReader,
    JournalReader,
    KernelLogRecord,
    KmsgReader,
    LogReader,
)
from gpuscope.base.errors import SourceError, SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, ErrorEvent, Maybe, Reading, Uuid
from gpuscope.model.source import SourceSpec, Tier
from gpuscope.model.vendor import KernelLogLine, vendors

CHANNEL = "kernel_log"
KMSG = "/dev/kmsg"
MAX_GPUS = 256
# The next reading may replace a reading before a snapshot uses it. A reading therefore repeats the events of
# the previous ones; the ledger counts each position in the log once.
READINGS_REPEATED = 2

FIX = (
    "grant the agent CAP_SYSLOG and access to /dev/kmsg, or add its user to the group systemd-journal; "
    "until then errors come from the driver's events only"
)


class KernelLog:
    def __init__(
        self,
        reader: LogReader,
        now: Callable[[], float] = time.time,
        since_boot: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader = reader
        self._now = now
        self._since_boot = since_boot
        self._read_up_to: Maybe[tuple[float, float]] = ABSENT
        """New records were written after this time, in seconds since the epoch and since boot."""
        self._uuid_at: dict[str, Uuid] = {}
        self._events: deque[tuple[ErrorEvent, ...]] = deque(maxlen=1 + READINGS_REPEATED)

    def read(self, due: frozenset[Tier]) -> Reading:
        began = self._now(), self._since_boot()
        batch = self._reader.read()
        overruns = 0
        if batch is None:
            self._events.append(())
        else:
            events = (self._to_event(record) for record in batch.records)
            self._events.append(tuple(event for event in events if event is not None))
            self._read_up_to = began if batch.caught_up else ABSENT
            overruns = batch.overruns
        return Reading(
            errors=tuple(event for events in self._events for event in events),
            failures={f"{self._reader.name} overrun": overruns} if overruns else {},
        )

    def close(self) -> None:
        self._reader.close()

    def _to_event(self, record: KernelLogRecord) -> ErrorEvent | None:
        for vendor in vendors().values():
            line = vendor.parse_kernel_line(record.text)
            if line is not None:
                return self._event_of(vendor.name, line, record)
        return None

    def _event_of(self, vendor: str, line: KernelLogLine, record: KernelLogRecord) -> ErrorEvent | None:
        if line.uuid is not ABSENT:
            if len(self._uuid_at) >= MAX_GPUS:
                self._uuid_at.clear()
            self._uuid_at[line.pci_bus_id] = line.uuid
        if line.code is ABSENT:
            return None
        at, monotonic = self._times_of(record)
        return ErrorEvent(
            vendor=vendor,
            code=line.code,
            at=at,
            monotonic=monotonic,
            reporter=CHANNEL,
            gpu_uuid=self._uuid_at.get(line.pci_bus_id, ABSENT),
            pci_bus_id=line.pci_bus_id,
            message=line.message,
            log_sequence=record.sequence,
            log_microseconds=record.microseconds,
        )

    def _times_of(self, record: KernelLogRecord) -> tuple[float, float]:
        """Seconds since the epoch and since boot."""
        now, since_boot, written = self._now(), self._since_boot(), record.microseconds / 1e6
        at = now - since_boot + written if record.at is ABSENT else record.at
        if self._read_up_to is not ABSENT:
            at, written = max(at, self._read_up_to[0]), max(written, self._read_up_to[1])
        return min(at, now), min(written, since_boot)


def open_reader(kmsg_paths: tuple[str, ...], fallbacks: tuple[JournalReader | DmesgReader, ...]) -> LogReader:
    """The first reader that can read the log."""
    errors = []
    for path in kmsg_paths:
        try:
            return KmsgReader.open(path)
        except OSError as error:
            errors.append(f"{path}: {error.strerror}")
    for reader in fallbacks:
        try:
            reader.check()
        except SourceError as error:
            errors.append(str(error))
        else:
            return reader
    raise SourceMissing(f"the kernel log cannot be read ({'; '.join(errors)}): {FIX}")


def open_kernel_log(settings: Settings) -> KernelLog:
    root = settings.path_rootfs.rstrip("/")
    paths = (KMSG, root + KMSG) if root else (KMSG,)
    return KernelLog(open_reader(paths, (JournalReader(), DmesgReader())))


SOURCE = SourceSpec(name="kernel-log", summary="XIDs from the kernel log", open=open_kernel_log)
