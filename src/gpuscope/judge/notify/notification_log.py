"""What was last sent about a group through a channel, and whether that calls for another message.

An entry has the alerts that fired and those that were resolved in the last message. It is stored after a
successful send and before the group may be flushed again: after a crash at most that one message is repeated.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from gpuscope.judge.notify.channel import NOBODY_TOLD, Told
from gpuscope.judge.notify.notification import Reason

MAX_ENTRY_SECONDS = 120 * 3600.0
"""Alertmanager's --data.retention."""


class LogKey(NamedTuple):
    group_key: str
    receiver: str
    integration: str
    """`webhook`, `email`, …"""
    position: int
    """Among the receiver's channels of this kind."""


@dataclass(frozen=True, slots=True)
class LogEntry:
    sent_at: float
    expires_at: float
    firing: frozenset[str]
    """Fingerprints."""
    resolved: frozenset[str]
    told_at: Mapping[str, float] = field(default_factory=dict)
    """By alert that fires: when a message last had it in full. Of a long message a channel may take a part."""


class LogKeeper(Protocol):
    def save_entry(self, key: LogKey, entry: LogEntry) -> None: ...

    def forget_entries(self, keys: Iterable[LogKey]) -> None: ...


def reason_to_notify(
    entry: LogEntry | None,
    firing: frozenset[str],
    resolved: frozenset[str],
    *,
    sends_resolved: bool,
    repeat_interval: float,
    now: float,
) -> Reason:
    if entry is None:
        return Reason.FIRST if firing else Reason.NONE
    if not firing <= entry.firing:
        return Reason.NEW_ALERTS if entry.firing else Reason.FIRST
    if not firing:
        # Also without send_resolved: the log must forget that these alerts fired.
        return Reason.ALL_RESOLVED if entry.firing else Reason.NONE
    if sends_resolved and not resolved <= entry.resolved:
        return Reason.SOME_RESOLVED
    return Reason.REPEAT if entry.sent_at < now - repeat_interval else Reason.NONE


class NotificationLog:
    """Not for several threads at once."""

    def __init__(self, keeper: LogKeeper, kept: Iterable[tuple[LogKey, LogEntry]] = ()) -> None:
        self._keeper = keeper
        self._entries = dict(kept)

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, key: LogKey) -> LogEntry | None:
        """Also an expired entry, until it is forgotten: Alertmanager does not look at the time here either."""
        return self._entries.get(key)

    def last_told(self, fingerprints: Collection[str]) -> dict[str, float]:
        """When the last message was accepted that had each of these alerts in full."""
        wanted, last = frozenset(fingerprints), dict[str, float]()
        for entry in self._entries.values():
            for fingerprint in entry.told_at.keys() & wanted:
                last[fingerprint] = max(entry.told_at[fingerprint], last.get(fingerprint, 0.0))
        return last

    def set(
        self,
        key: LogKey,
        firing: frozenset[str],
        resolved: frozenset[str],
        repeat_interval: float,
        now: float,
        told: Told = NOBODY_TOLD,
    ) -> None:
        expires_at = now + min(2 * repeat_interval, MAX_ENTRY_SECONDS)
        before = self._entries.get(key)
        # An alert that fires since an earlier message which had it in full was told.
        told_at = (
            {} if before is None else {alert: at for alert, at in before.told_at.items() if alert in firing}
        )
        told_at |= dict.fromkeys(told & firing, now)
        entry = LogEntry(now, expires_at, firing, resolved, told_at)
        self._entries[key] = entry  # first: if the disk is full, this process still knows
        self._keeper.save_entry(key, entry)

    def forget_expired(self, now: float) -> None:
        old = [key for key, entry in self._entries.items() if entry.expires_at <= now]
        for key in old:
            del self._entries[key]
        if old:
            self._keeper.forget_entries(old)
