"""What was sent: the last message about a group, the history for people, and the counters of channels.

An entry has the alerts that fired and those that were resolved in the last message. It is stored after a
successful send and before the group may be flushed again: after a crash at most that one message is repeated.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple, Protocol

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.notify.channel import NOBODY_TOLD, Channel, ChannelKey, SendError, Told
from gpuscope.judge.notify.notification import MessageStatus, Notification, Reason
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample

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


# Which messages were sent, to whom, when, and which failed: for people, not for deduplication.
#
# Input: each message when its group is flushed, and the outcome of each attempt. Output: the newest records
# first. The number of records and the size of each are bounded. Repetitions of a message are one record, so
# that a heartbeat each minute does not push everything else out. A record is stored when its message is
# finished; after kill -9 the messages that were being sent are absent.

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


# The notifier's own metrics, with Alertmanager's names, and the state of each channel for status pages.
#
# `gpuscope_notify_channel_up` is absent until the channel was used for the first time.

ALERTMANAGER_VERSION = "0.34.0"
"""The version whose behaviour and API this is. amtool and karma ask for it."""
REASONS = ("clientError", "serverError", "contextCanceled", "contextDeadlineExceeded", "other")


@dataclass(slots=True)
class ChannelStatus:
    is_up: bool | None = None
    """None before the first message."""
    last_error: str = ""
    failing_since: float = 0.0
    last_sent_at: float = 0.0
    sent: int = 0
    failed: int = 0


class NotifyCounters:
    """Changed under the notifier's lock."""

    def __init__(self) -> None:
        self.notifications: Counter[str] = Counter()
        self.failed: Counter[tuple[str, str]] = Counter()
        self.requests: Counter[str] = Counter()
        self.failed_requests: Counter[str] = Counter()
        self.suppressed: Counter[str] = Counter()
        self.received: Counter[str] = Counter()
        self.invalid = 0
        self.refused: Counter[str] = Counter()
        """By sender: `rules` of this server, `clients` of the API."""
        self.latency_seconds: Counter[str] = Counter()
        self.channels: dict[ChannelKey, ChannelStatus] = {}
        self.is_reload_good = True
        self.reloaded_at = 0.0

    def attempted(self, key: ChannelKey, seconds: float, error: SendError | None, now: float) -> None:
        self.requests[key.kind] += 1
        self.latency_seconds[key.kind] += seconds  # type: ignore[assignment]  # a Counter of floats
        status = self.channels.setdefault(key, ChannelStatus())
        if error is None:
            status.is_up, status.last_error, status.failing_since = True, "", 0.0
            status.last_sent_at = now
            status.sent += 1
            return
        self.failed_requests[key.kind] += 1
        status.failed += 1
        status.last_error = str(error)
        if status.is_up is not False:
            status.is_up, status.failing_since = False, now

    def families(self, gauges: Mapping[str, Mapping[str, int]], groups: int) -> Iterator[MetricFamily]:
        yield MetricFamily(
            "alertmanager_build_info",
            "gauge",
            "1, with the version of Alertmanager whose API this is.",
            [Sample(LabelSet((("version", ALERTMANAGER_VERSION),)), 1)],
        )
        yield _by("alertmanager_notifications_total", "The total number of attempted notifications.",
                  "integration", self.notifications)  # fmt: skip
        yield MetricFamily(
            "alertmanager_notifications_failed_total",
            "counter",
            "The total number of failed notifications.",
            [
                Sample(LabelSet((("integration", kind), ("reason", reason))), self.failed[kind, reason])
                for kind in sorted(self.notifications)
                for reason in REASONS
            ],
        )
        yield _by("alertmanager_notification_requests_total", "The total number of attempts to send.",
                  "integration", self.requests)  # fmt: skip
        yield _by("alertmanager_notification_requests_failed_total", "Attempts to send that failed.",
                  "integration", self.failed_requests)  # fmt: skip
        yield _by("alertmanager_notifications_suppressed_total", "Alerts left out of notifications, by reason.",
                  "reason", self.suppressed)  # fmt: skip
        yield _by("alertmanager_alerts_received_total", "The total number of received alerts.",
                  "status", self.received)  # fmt: skip
        yield _one("alertmanager_alerts_invalid_total", "counter", "Received alerts that were invalid.",
                   self.invalid)  # fmt: skip
        yield _by("gpuscope_notify_refused_alerts_total", "New alerts refused by max_alerts, by sender.",
                  "sender", self.refused)  # fmt: skip
        for name, help_text in (
            ("alerts", "How many alerts by state."),
            ("silences", "How many silences by state."),
        ):
            samples = [Sample(LabelSet((("state", key),)), n) for key, n in gauges[name].items()]
            yield MetricFamily(f"alertmanager_{name}", "gauge", help_text, samples)
        yield _one("alertmanager_dispatcher_aggregation_groups", "gauge", "Active aggregation groups.",
                   groups)  # fmt: skip
        yield _one("alertmanager_config_last_reload_successful", "gauge",
                   "Whether the last configuration reload attempt was successful.",
                   int(self.is_reload_good))  # fmt: skip
        yield _one("alertmanager_config_last_reload_success_timestamp_seconds", "gauge",
                   "Timestamp of the last successful configuration reload.", self.reloaded_at)  # fmt: skip
        yield MetricFamily(
            "gpuscope_notify_channel_up",
            "gauge",
            "1 if the channel's last message was accepted, 0 if not.",
            [
                Sample(_channel_labels(key), int(status.is_up))
                for key, status in sorted(self.channels.items())
                if status.is_up is not None
            ],
        )
        yield _by("gpuscope_notify_send_seconds_total", "Seconds spent in attempts to send.",
                  "integration", self.latency_seconds)  # fmt: skip


def _channel_labels(key: ChannelKey) -> LabelSet:
    return LabelSet((("receiver", key.receiver), ("integration", key.kind), ("index", str(key.position))))


def _by(name: str, help_text: str, label: str, counts: Mapping[str, float]) -> MetricFamily:
    samples = [Sample(LabelSet(((label, key),)), count) for key, count in sorted(counts.items())]
    return MetricFamily(name, "counter", help_text, samples)


def _one(name: str, kind: str, help_text: str, value: float) -> MetricFamily:
    return MetricFamily(name, kind, help_text, [Sample(NO_LABELS, value)])
