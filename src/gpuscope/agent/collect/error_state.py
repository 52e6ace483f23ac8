"""The file that keeps the counts of errors over a restart, together with the position in the kernel log.

Counts and position are written together, atomically: after a crash the log is read again from exactly that
position. A file that is damaged or of another program is renamed with a warning and never stops the agent.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.files import WORLD_READABLE, write_atomically
from gpuscope.model.readings import ABSENT, ErrorEvent, Maybe
from gpuscope.model.vendor import UNLABELLED

log = logging.getLogger("gpuscope.xids")

FORMAT = "gpuscope-errors-1"
XID_FORMAT = "gpuscope-xids-1"  # of earlier versions: an entry has `xid`, a number
MAX_FILE_BYTES = 16 * 2**20
MAX_RECORDS_AT_ONE_TIME = 64


@dataclass(slots=True)
class LogPosition:
    """Up to where the kernel log has been counted.

    /dev/kmsg numbers its records; journald and dmesg give only their time stamps, and several records may have
    the same one. The number decides if both sides have it.
    """

    sequence: int | None = None
    microseconds: int = -1
    latest: set[str] = field(default_factory=set)  # what was counted at `microseconds`

    def has_passed(self, event: ErrorEvent) -> bool:
        if event.log_sequence is not ABSENT and self.sequence is not None:
            return event.log_sequence <= self.sequence
        if event.log_microseconds is ABSENT:
            return False
        if event.log_microseconds == self.microseconds:
            return _identity(event) in self.latest
        return event.log_microseconds < self.microseconds

    def advance(self, event: ErrorEvent) -> None:
        if event.log_microseconds is ABSENT:
            return  # not from the kernel log
        if event.log_microseconds > self.microseconds:
            self.microseconds = event.log_microseconds
            self.latest.clear()
        if event.log_microseconds == self.microseconds and len(self.latest) < MAX_RECORDS_AT_ONE_TIME:
            self.latest.add(_identity(event))
        self.sequence = None if event.log_sequence is ABSENT else event.log_sequence


def _identity(event: ErrorEvent) -> str:
    address = "" if event.pci_bus_id is ABSENT else event.pci_bus_id
    return f"{address} {event.code} {event.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedErrorCount:
    gpu: str  # UUID, or PCI address of a GPU whose UUID was not known
    vendor: str
    code: str
    count: int
    last_at: float
    last_monotonic: Maybe[float] = ABSENT  # of this boot's monotonic clock
    unmatched: Mapping[str, tuple[float, ...]]  # by reporter


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorState:
    boot_id: str
    position: LogPosition
    uuid_at: Mapping[str, str]  # by PCI address
    shown: tuple[str, ...]  # the GPUs of this boot, among those with an entry
    counts: tuple[SavedErrorCount, ...]


class ErrorStateFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._log = EpisodeLog(log, f"error counts in {path}", recovered="kept again")

    def load(self) -> ErrorState | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("the file of error counts cannot be read, counting starts from 0: %s", error)
            return None
        try:
            return _decode(content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
            self._set_aside(error)
            return None

    def _set_aside(self, error: Exception) -> None:
        aside = self._path.with_name(self._path.name + ".damaged")
        try:
            self._path.replace(aside)
        except OSError:
            aside = self._path
        log.warning(
            "%s is not a file of error counts (%s); renamed to %s, counting starts from 0",
            self._path,
            error,
            aside,
        )

    def save(self, state: ErrorState) -> None:
        """A failure to write is logged once per episode and stops nothing."""
        try:
            self._write(_encode(state))
        except OSError as error:
            self._log.failed(f"not kept over a restart: {error}")
            return
        self._log.succeeded()

    def _write(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, content, mode=WORLD_READABLE)


def _encode(state: ErrorState) -> bytes:
    position = state.position
    document = {
        "format": FORMAT,
        "boot_id": state.boot_id,
        "log_sequence": position.sequence,
        "log_microseconds": position.microseconds,
        "log_latest": sorted(position.latest),
        "gpus": dict(state.uuid_at),
        "shown": list(state.shown),
        "counts": [
            {
                "gpu": entry.gpu,
                "vendor": entry.vendor,
                "code": entry.code,
                "count": entry.count,
                "last_at": entry.last_at,
                "last_monotonic": None if entry.last_monotonic is ABSENT else entry.last_monotonic,
                "unmatched": {reporter: list(times) for reporter, times in entry.unmatched.items() if times},
            }
            for entry in state.counts
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _decode(content: bytes) -> ErrorState:
    """Raises an exception for anything that `_encode` does not write."""
    if len(content) > MAX_FILE_BYTES:
        raise ValueError("too large")
    document = json.loads(content)
    if not isinstance(document, dict) or document.get("format") not in (FORMAT, XID_FORMAT):
        raise ValueError("another format")
    sequence = document["log_sequence"]
    return ErrorState(
        boot_id=_text(document["boot_id"]),
        position=LogPosition(
            sequence=None if sequence is None else _whole(sequence),
            microseconds=_whole(document["log_microseconds"]),
            latest={_text(identity) for identity in document["log_latest"]},
        ),
        uuid_at={address: _text(uuid) for address, uuid in document["gpus"].items()},
        shown=tuple(_text(gpu) for gpu in document["shown"]),
        counts=tuple(_decode_entry(entry) for entry in document["counts"]),
    )


def _decode_entry(entry: Mapping[str, Any]) -> SavedErrorCount:
    monotonic = entry.get("last_monotonic")  # older files have none
    of_earlier_version = "xid" in entry
    return SavedErrorCount(
        gpu=_text(entry["gpu"]),
        vendor=UNLABELLED if of_earlier_version else _text(entry["vendor"]),
        code=str(_whole(entry["xid"])) if of_earlier_version else _text(entry["code"]),
        count=_whole(entry["count"]),
        last_at=_number(entry["last_at"]),
        last_monotonic=ABSENT if monotonic is None else _number(monotonic),
        unmatched={
            reporter: tuple(_number(at) for at in times) for reporter, times in entry["unmatched"].items()
        },
    )


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.40} is not text")
    return value


def _whole(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not -1 <= value < 2**63:
        raise TypeError(f"{value!r:.40} is not a count")
    return value


def _number(value: object) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise TypeError(f"{value!r:.40} is not a time")
    return float(value)
