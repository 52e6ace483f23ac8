"""The file that keeps counted XIDs over a restart, and how far the kernel log was read when it was written.

Counts and position are written together, atomically: after a crash the log is read again from exactly where
the counts stand. A damaged or foreign file is set aside with one warning and never stops the agent.
"""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpuscope.atomic_write import WORLD_READABLE, write_atomically
from gpuscope.readings import ABSENT, XidEvent

log = logging.getLogger("gpuscope.xids")

FORMAT = "gpuscope-xids-1"
LARGEST_FILE_BYTES = 16 * 2**20
MAX_AT_ONE_TIME = 64


@dataclass(slots=True)
class LogPosition:
    """How far the kernel log has been counted.

    /dev/kmsg numbers its records; journald and dmesg only repeat their time stamps, of which several records
    may share one. The number decides while it is known on both sides.
    """

    sequence: int | None = None
    microseconds: int = -1
    latest: set[str] = field(default_factory=set)  # what was counted at `microseconds`

    def has_passed(self, event: XidEvent) -> bool:
        if event.log_sequence is not ABSENT and self.sequence is not None:
            return event.log_sequence <= self.sequence
        if event.log_microseconds is ABSENT:
            return False
        if event.log_microseconds == self.microseconds:
            return _identity(event) in self.latest
        return event.log_microseconds < self.microseconds

    def advance(self, event: XidEvent) -> None:
        if event.log_microseconds is ABSENT:
            return  # not from the kernel log
        if event.log_microseconds > self.microseconds:
            self.microseconds = event.log_microseconds
            self.latest.clear()
        if event.log_microseconds == self.microseconds and len(self.latest) < MAX_AT_ONE_TIME:
            self.latest.add(_identity(event))
        self.sequence = None if event.log_sequence is ABSENT else event.log_sequence


def _identity(event: XidEvent) -> str:
    address = "" if event.pci_bus_id is ABSENT else event.pci_bus_id
    return f"{address} {event.xid} {event.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedAccount:
    gpu: str  # UUID, or PCI address of a GPU whose UUID was not known
    xid: int
    count: int
    last_at: float
    unmatched: Mapping[str, tuple[float, ...]]  # by channel


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    boot_id: str
    position: LogPosition
    uuid_at: Mapping[str, str]  # by PCI address
    shown: tuple[str, ...]  # the GPUs of this boot, among those with an account
    accounts: tuple[SavedAccount, ...]


class StateFile:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._trouble = ""

    def load(self) -> State | None:
        try:
            with self._path.open("rb") as file:
                content = file.read(LARGEST_FILE_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("XIDs counted before cannot be read, counting anew: %s", error)
            return None
        try:
            return _decode(content)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            self._set_aside(error)
            return None

    def _set_aside(self, error: Exception) -> None:
        aside = self._path.with_name(self._path.name + ".damaged")
        try:
            self._path.replace(aside)
        except OSError:
            aside = self._path
        log.warning(
            "%s is not a file of counted XIDs (%s); kept as %s, counting anew", self._path, error, aside
        )

    def save(self, state: State) -> None:
        """Failing to write is logged once per episode and stops nothing."""
        try:
            self._write(_encode(state))
        except OSError as error:
            if str(error) != self._trouble:
                log.warning("counted XIDs cannot be kept over a restart: %s", error)
            self._trouble = str(error)
            return
        if self._trouble:
            log.info("counted XIDs are kept again in %s", self._path)
        self._trouble = ""

    def _write(self, content: bytes) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(self._path, content, mode=WORLD_READABLE)


def _encode(state: State) -> bytes:
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
                "gpu": account.gpu,
                "xid": account.xid,
                "count": account.count,
                "last_at": account.last_at,
                "unmatched": {channel: list(times) for channel, times in account.unmatched.items() if times},
            }
            for account in state.accounts
        ],
    }
    return json.dumps(document, separators=(",", ":")).encode() + b"\n"


def _decode(content: bytes) -> State:
    """Raises on anything that `_encode` does not write."""
    if len(content) > LARGEST_FILE_BYTES:
        raise ValueError("too large")
    document = json.loads(content)
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise ValueError("another format")
    sequence = document["log_sequence"]
    return State(
        boot_id=_text(document["boot_id"]),
        position=LogPosition(
            sequence=None if sequence is None else _whole(sequence),
            microseconds=_whole(document["log_microseconds"]),
            latest={_text(identity) for identity in document["log_latest"]},
        ),
        uuid_at={address: _text(uuid) for address, uuid in document["gpus"].items()},
        shown=tuple(_text(gpu) for gpu in document["shown"]),
        accounts=tuple(_decode_account(account) for account in document["counts"]),
    )


def _decode_account(account: Mapping[str, Any]) -> SavedAccount:
    return SavedAccount(
        gpu=_text(account["gpu"]),
        xid=_whole(account["xid"]),
        count=_whole(account["count"]),
        last_at=_number(account["last_at"]),
        unmatched={
            channel: tuple(_number(at) for at in times) for channel, times in account["unmatched"].items()
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
