"""Which messages were sent, to whom, when, and which failed: for people, not for deduplication.

Input: each message when its group is flushed, and the outcome of each attempt. Output: the newest records
first. The number of records and the size of each are bounded. Repetitions of a message are one record, so that
a heartbeat each minute does not push everything else out. A record is stored when its message is finished;
after kill -9 the messages that were being sent are absent.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Protocol

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.notify.channel import Channel, ChannelKey, SendError
from gpuscope.judge.notify.notification import MessageStatus, Notification, Reason

MAX_LISTED_ALERTS = 20
MAX_VALUE_CHARACTERS = 200
MAX_ERROR_CHARACTERS = 500
MAX_RECORD_CHARACTERS = 4096
"""Of all labels in a record; further alerts are counted, not listed."""


class Outcome(StrEnum):
    SENDING = "sending"
    """Waits for its turn, is being sent, or waits for the next attempt."""
    SENT = "sent"
    FAILED = "failed"
    """Given up; the group's next flush sends what is current then."""


@dataclass(frozen=True, slots=True)
class NotifiedAlert:
    fingerprint: str
    status: MessageStatus
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NotificationRecord:
    id: int
    channel: ChannelKey
    sent_to: str
    """For people: mail addresses, a host name; never a secret."""
    group_key: str
    group_labels: Mapping[str, str]
    reason: str
    started_at: float
    finished_at: float | None
    outcome: Outcome
    attempts: int
    error: str
    firing_count: int
    resolved_count: int
    alerts: tuple[NotifiedAlert, ...]
    """The first ones."""
    repeats: int
    """Times the same message was sent again; `finished_at` is the last one."""


class HistoryKeeper(Protocol):
    def save_records(self, changed: Sequence[NotificationRecord], forgotten: Sequence[int]) -> None: ...


class NotificationHistory:
    """Not for several threads at once."""

    def __init__(
        self, keeper: HistoryKeeper, kept: Iterable[NotificationRecord] = (), *, max_records: int
    ) -> None:
        self._keeper = keeper
        self._max_records = max_records
        self._records = {record.id: record for record in sorted(kept, key=lambda record: record.id)}
        self._last_repeat = {
            (record.group_key, record.channel): record.id
            for record in self._records.values()
            if record.reason == Reason.REPEAT and record.outcome is Outcome.SENT
        }
        self._ids = itertools.count(max(self._records, default=0) + 1)
        self._changed: dict[int, None] = {}
        self._forgotten: list[int] = []

    def __len__(self) -> int:
        return len(self._records)

    def newest_first(self) -> Iterator[NotificationRecord]:
        return reversed(self._records.values())

    def begin(self, channel: Channel, notification: Notification) -> int:
        """The id of the new record."""
        record = NotificationRecord(
            id=next(self._ids),
            channel=channel.key,
            sent_to=channel.sent_to,
            group_key=notification.group_key,
            group_labels=_short(notification.group_labels),
            reason=notification.reason.value,
            started_at=notification.sent_at,
            finished_at=None,
            outcome=Outcome.SENDING,
            attempts=0,
            error="",
            firing_count=len(notification.firing),
            resolved_count=len(notification.resolved),
            alerts=_listed(notification),
            repeats=0,
        )
        self._records[record.id] = record
        while len(self._records) > self._max_records:
            LIMITS_REACHED.count("max_notification_history")
            self._forget(next(iter(self._records)))
        return record.id

    def attempted(self, record_id: int, error: SendError | None) -> None:
        record = self._records.get(record_id)
        if record is not None:
            text = "" if error is None else str(error)[:MAX_ERROR_CHARACTERS]
            self._records[record_id] = replace(record, attempts=record.attempts + 1, error=text)

    def finished(self, record_id: int, error: SendError | None, now: float) -> None:
        record = self._records.get(record_id)
        if record is None:  # more messages than records: it is forgotten already
            return
        text = "" if error is None else str(error)[:MAX_ERROR_CHARACTERS]
        outcome = Outcome.SENT if error is None else Outcome.FAILED
        repeats = self._replace_older_repeat(record) if outcome is Outcome.SENT else 0
        self._records[record_id] = replace(
            record, finished_at=now, outcome=outcome, error=text, repeats=repeats
        )
        self._changed[record_id] = None

    def _replace_older_repeat(self, record: NotificationRecord) -> int:
        """The number of repetitions so far, this one included; 0 if it is none."""
        place = (record.group_key, record.channel)
        if record.reason != Reason.REPEAT:
            self._last_repeat.pop(place, None)
            return 0
        older = self._records.get(self._last_repeat.get(place, 0))
        self._last_repeat[place] = record.id
        if older is None:
            return 1
        self._forget(older.id)
        return older.repeats + 1

    def _forget(self, record_id: int) -> None:
        record = self._records.pop(record_id)
        place = (record.group_key, record.channel)
        if self._last_repeat.get(place) == record_id:
            del self._last_repeat[place]
        self._changed.pop(record_id, None)
        if record.finished_at is not None:
            self._forgotten.append(record_id)

    def store(self) -> None:
        """Write what has changed, in one transaction."""
        if not self._changed and not self._forgotten:
            return
        changed = [self._records[record_id] for record_id in self._changed]
        forgotten, self._changed, self._forgotten = self._forgotten, {}, []
        self._keeper.save_records(changed, forgotten)


def _short(labels: Mapping[str, str]) -> dict[str, str]:
    return {name: value[:MAX_VALUE_CHARACTERS] for name, value in labels.items()}


def _listed(notification: Notification) -> tuple[NotifiedAlert, ...]:
    listed: list[NotifiedAlert] = []
    characters = 0
    for alert in notification.alerts[:MAX_LISTED_ALERTS]:
        labels = _short(alert.labels)
        characters += sum(len(name) + len(value) for name, value in labels.items())
        if characters > MAX_RECORD_CHARACTERS:
            break
        listed.append(NotifiedAlert(alert.fingerprint, notification.status_of(alert), labels))
    return tuple(listed)
