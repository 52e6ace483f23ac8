"""Takes alerts, groups them, and says which messages are due: the counterpart of Alertmanager.

`take` only queues, so that rule evaluation never waits for it; `flush_due`, called by the timer thread, does
the work; `finished` takes a message's outcome from a channel's thread. One lock guards all state, and nothing
is sent while it is held.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gpuscope.base.clock import Clock, ConfirmedTime
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.judge.notify.alert_routes import AggregationGroup, AlertGroups, Inhibitor
from gpuscope.judge.notify.alert_store import AlertStore, StoredAlert, fingerprint, message_order, store_alert
from gpuscope.judge.notify.alerting_config import AlertingConfig
from gpuscope.judge.notify.channel import NOBODY_TOLD, Channel, ChannelKey, SendError, Told
from gpuscope.judge.notify.notification import Notification, Reason
from gpuscope.judge.notify.notification_log import (
    ChannelStatus,
    HistoryKeeper,
    LogEntry,
    LogKeeper,
    LogKey,
    NotificationHistory,
    NotificationLog,
    NotificationRecord,
    NotifyCounters,
    reason_to_notify,
)
from gpuscope.judge.notify.silences import Silence, SilenceKeeper, Silences
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.series import Labels

log = logging.getLogger("gpuscope.notify")
MAINTENANCE_SECONDS = 900.0
"""How often expired silences, log entries and resolved alerts are forgotten."""
STATUSES_PER_LOCK = 200
"""Alerts whose state is found while the lock is held: with 50,000 alerts and many silences it takes seconds."""
MIN_SEND_SECONDS = 10.0
"""For all attempts of a message, even if the group interval is shorter."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    """One message on its way through one channel."""

    channel: Channel
    notification: Notification
    group: AggregationGroup
    firing: frozenset[str]
    resolved: frozenset[str]
    timeout_seconds: float
    """All attempts together: the time until the next flush of the group."""
    flush_number: int
    record_id: int
    """Of the history."""


class StateKeeper(SilenceKeeper, LogKeeper, HistoryKeeper, Protocol):
    """Where silences, the log and the history are kept."""


@dataclass(frozen=True, slots=True)
class AlertStatus:
    alert: StoredAlert
    receivers: tuple[str, ...]
    silenced_by: tuple[str, ...]
    inhibited_by: tuple[str, ...]

    @property
    def state(self) -> str:
        return "suppressed" if self.silenced_by or self.inhibited_by else "active"


@dataclass(frozen=True, slots=True)
class GroupStatus:
    labels: Mapping[str, str]
    receiver: str
    route_labels: Mapping[str, str]
    muted_by: tuple[str, ...]
    alerts: tuple[AlertStatus, ...]


class Notifier:
    """For several threads at once. An `AlertSink`."""

    def __init__(
        self,
        config: AlertingConfig,
        channels: Mapping[str, Sequence[Channel]],
        clock: Clock,
        keeper: StateKeeper,
        limits: Limits,
        *,
        kept_silences: Sequence[Silence] = (),
        kept_log: Sequence[tuple[LogKey, LogEntry]] = (),
        kept_history: Sequence[NotificationRecord] = (),
        external_url: str = "",
        on_take: Callable[[], None] = lambda: None,
    ) -> None:
        self.lock = threading.RLock()
        self.counters = NotifyCounters()
        self.silences = Silences(keeper, kept_silences, limits=limits)
        self.external_url = external_url
        self.started_at = clock.now()
        self.reload_error = ""
        """Why the last reload was refused."""
        self._clock = clock
        self._limits = limits
        self._log = NotificationLog(keeper, kept_log)
        self._history = NotificationHistory(keeper, kept_history, max_records=limits.max_notification_history)
        self._inbox: deque[Sequence[Alert]] = deque()
        self._inbox_lock = threading.Lock()  # held for moments only, by threads that must not wait
        self._on_take = on_take
        self._alerts = AlertStore(max_alerts=limits.max_alerts)
        self._own_refusals = EpisodeLog(log, "alerts of this server's rules", level=logging.ERROR)
        self._client_refusals = EpisodeLog(log, "alerts of clients")
        self._maintained_at = self.started_at
        self._confirmed = ConfirmedTime()
        self.counters.reloaded_at = self.started_at
        self._use(config, channels)

    def _use(self, config: AlertingConfig, channels: Mapping[str, Sequence[Channel]]) -> None:
        self.config = config
        self._channels = channels
        self._inhibitor = Inhibitor(config.inhibit_rules)
        self._groups = AlertGroups(config.route, max_groups=self._limits.max_alert_groups)
        known = {channel.key for many in channels.values() for channel in many}
        for gone in self.counters.channels.keys() - known:
            del self.counters.channels[gone]
        for key in sorted(known):
            self.counters.channels.setdefault(key, ChannelStatus())
            self.counters.notifications.setdefault(key.kind, 0)

    def use(self, config: AlertingConfig, channels: Mapping[str, Sequence[Channel]]) -> None:
        """A reloaded configuration. Alerts, silences and the log stay; groups are built anew."""
        with self.lock:
            now = self._clock.now()
            self._use(config, channels)
            self._inhibitor.rebuild(self._alerts)
            for alert in self._alerts:
                self._groups.insert(alert, now)
            self.counters.is_reload_good, self.counters.reloaded_at = True, now
            self.reload_error = ""
        self._on_take()

    def reload_failed(self, why: str) -> None:
        """The file is wrong; the configuration in use stays."""
        with self.lock:
            self.counters.is_reload_good = False
            self.reload_error = why

    def count_invalid(self, count: int) -> None:
        with self.lock:
            self.counters.invalid += count

    def take(self, alerts: Sequence[Alert]) -> None:
        """From the evaluation thread: returns at once."""
        if not alerts:
            return
        with self._inbox_lock:
            # A rule engine sends again what was lost here, so the oldest batches may go.
            while self._inbox and sum(map(len, self._inbox)) + len(alerts) > self._limits.max_alerts:
                LIMITS_REACHED.count("max_alerts")
                self._inbox.popleft()
            self._inbox.append(alerts)
        self._on_take()

    def put(self, alerts: Sequence[Alert]) -> int:
        """As `take`, but done on return: for the API. The number of alerts there was no room for."""
        with self.lock:
            self._empty_inbox()
            refused = self._put(alerts, is_own=False)
        self._on_take()
        return refused

    def delivered_at(self, alerts: Iterable[Labels]) -> dict[Labels, float]:
        """When a channel last accepted a message that had each of these alerts in full; nothing for others."""
        labels_of = {fingerprint(dict(labels)): labels for labels in alerts}
        with self.lock:
            told = self._log.last_told(labels_of)
        return {labels_of[alert]: at for alert, at in told.items()}

    def _empty_inbox(self) -> None:
        with self._inbox_lock:
            batches, self._inbox = self._inbox, deque()
        for batch in batches:
            self._put(batch, is_own=True)

    def _put(self, alerts: Sequence[Alert], *, is_own: bool) -> int:
        now, refused = self._clock.now(), 0
        for alert in alerts:
            received = store_alert(alert, now, self.config.resolve_timeout, is_own=is_own)
            stored = self._alerts.put(received, now)
            if stored is None:
                refused += 1
                continue
            self.counters.received["resolved" if stored.is_resolved(now) else "firing"] += 1
            self._inhibitor.update(stored)
            self._groups.insert(stored, now)
        episode = self._own_refusals if is_own else self._client_refusals
        if refused:
            self.counters.refused["rules" if is_own else "clients"] += refused
            episode.failed(
                f"more than {len(self._alerts)} alerts; new ones are refused (max_alerts)", "max_alerts"
            )
        elif alerts:
            episode.succeeded()
        return refused

    def next_flush_at(self) -> float | None:
        """When `flush_due` has something to do; None until an alert comes."""
        with self.lock:
            return self._groups.next_due()

    def flush_due(self) -> list[Delivery]:
        """The messages to send now."""
        with self.lock:
            self._empty_inbox()
            self._history.store()
            now = self._clock.now()
            confirmed = self._confirmed.advance(now, self._clock.monotonic())
            if now - self._maintained_at >= MAINTENANCE_SECONDS:
                self._maintain(now, confirmed)
            due = self._groups.take_due(now)
        deliveries = []
        for group in due:  # the lock is free between two groups: there may be thousands
            with self.lock:
                try:
                    deliveries += self._flush(group, now)
                except Exception:  # a defect of ours must not silence this group or those after it for ever
                    log.exception(
                        "unexpected error while flushing the alert group %s; it is tried again", group.key
                    )
                    group.has_failed = True
                    self._groups.finished(group, now)
        return deliveries

    def _maintain(self, now: float, confirmed: float) -> None:
        self._maintained_at = now
        self.silences.forget_expired(confirmed)
        self._log.forget_expired(confirmed)
        self._alerts.forget_resolved(now)
        self._inhibitor.rebuild(self._alerts)

    def _flush(self, group: AggregationGroup, now: float) -> list[Delivery]:
        alerts = sorted(group.alerts.values(), key=message_order)
        group.resolved_in_flush = [alert for alert in alerts if alert.is_resolved(now)]
        group.has_failed = False
        told = self._unmuted(group, alerts, now)
        channels = self._channels.get(group.route.receiver, ()) if told else ()
        labels = self._route_labels(group, alerts, now) if channels else {}
        deliveries = [
            delivery for channel in channels for delivery in self._deliver(group, channel, told, labels, now)
        ]
        group.waiting_for = len(deliveries)
        if not deliveries:
            self._groups.finished(group, now)
        return deliveries

    def _unmuted(self, group: AggregationGroup, alerts: list[StoredAlert], now: float) -> list[StoredAlert]:
        """The alerts that neither inhibition nor a time interval nor a silence holds back."""
        suppressed = self.counters.suppressed
        told = [alert for alert in alerts if not self._inhibitor.inhibited_by(alert.labels, now)]
        suppressed["inhibition"] += len(alerts) - len(told)
        route = group.route
        group.muted_by = ()
        if told and route.active_time_intervals and not self._inside(route.active_time_intervals, now):
            suppressed["active_time_interval"] += len(told)
            group.muted_by = route.active_time_intervals
            return []
        if told and (muted_by := self._inside(route.mute_time_intervals, now)):
            suppressed["mute_time_interval"] += len(told)
            group.muted_by = muted_by
            return []
        silenced_by = self.silences.silenced_by
        heard = [alert for alert in told if not silenced_by(alert.labels, now, alert.fingerprint)]
        suppressed["silence"] += len(told) - len(heard)
        return heard

    def _inside(self, names: tuple[str, ...], now: float) -> tuple[str, ...]:
        intervals = self.config.time_intervals
        return tuple(name for name in names if any(interval.contains(now) for interval in intervals[name]))

    def _deliver(
        self,
        group: AggregationGroup,
        channel: Channel,
        alerts: list[StoredAlert],
        route_labels: Mapping[str, str],
        now: float,
    ) -> list[Delivery]:
        resolved = frozenset(alert.fingerprint for alert in alerts if alert.is_resolved(now))
        firing = frozenset(alert.fingerprint for alert in alerts) - resolved
        key = LogKey(group.key, *channel.key)
        reason = reason_to_notify(
            self._log.get(key),
            firing,
            resolved,
            sends_resolved=channel.sends_resolved,
            repeat_interval=group.route.repeat_interval,
            now=now,
        )
        if reason is Reason.NONE:
            return []
        self.counters.notifications[channel.key.kind] += 1
        if not channel.sends_resolved and not firing:
            self._log.set(key, firing, resolved, group.route.repeat_interval, now)
            return []
        told = [alert for alert in alerts if channel.sends_resolved or alert.fingerprint in firing]
        notification = self._notification(group, told, reason, route_labels, now)
        timeout = max(group.route.group_interval, MIN_SEND_SECONDS)
        record_id = self._history.begin(channel, notification)
        return [
            Delivery(channel, notification, group, firing, resolved, timeout, group.flush_number, record_id)
        ]

    def _notification(
        self,
        group: AggregationGroup,
        alerts: Sequence[StoredAlert],
        reason: Reason,
        route_labels: Mapping[str, str],
        now: float,
    ) -> Notification:
        return Notification(
            receiver=group.route.receiver,
            group_key=group.key,
            group_labels=group.labels,
            alerts=alerts,
            reason=reason,
            external_url=self.external_url,
            sent_at=now,
            route_labels=route_labels,
        )

    def _route_labels(
        self, group: AggregationGroup, alerts: Sequence[StoredAlert], now: float
    ) -> Mapping[str, str]:
        """The labels of its route; they may be templates over all alerts of the group."""
        labels = dict(group.route.labels)
        if not any("{{" in value for value in labels.values()):
            return labels
        message = self._notification(group, alerts, Reason.UNKNOWN, labels, now)
        return self.config.messages.expand_route_labels(message)

    def attempted(self, delivery: Delivery, seconds: float, error: SendError | None) -> None:
        """One attempt is over; the message may be tried again."""
        with self.lock:
            self._history.attempted(delivery.record_id, error)
            self.counters.attempted(delivery.channel.key, seconds, error, self._clock.now())

    def finished(self, delivery: Delivery, error: SendError | None, told: Told = NOBODY_TOLD) -> None:
        """The message was accepted, and had the alerts `told` in full; or it was given up: then it is tried
        again at the group's next flush."""
        with self.lock:
            now = self._clock.now()
            group, channel = delivery.group, delivery.channel
            try:
                self._history.finished(delivery.record_id, error, now)
                if error is None:
                    key = LogKey(group.key, *channel.key)
                    repeat_interval = group.route.repeat_interval
                    self._log.set(key, delivery.firing, delivery.resolved, repeat_interval, now, told)
                else:
                    group.has_failed = True
                    self.counters.failed[channel.key.kind, error.reason] += 1
            finally:  # a group that waits for a message is not flushed
                group.waiting_for -= 1
                if group.waiting_for == 0:
                    self._groups.finished(group, now)
        self._on_take()

    def alert_statuses(self) -> list[AlertStatus]:
        """Alerts that are not resolved, sorted by fingerprint."""
        with self.lock:
            self._empty_inbox()
            now = self._clock.now()
            firing = [alert for alert in self._alerts if not alert.is_resolved(now)]
        return self._statuses(sorted(firing, key=lambda alert: alert.fingerprint), now)

    def _statuses(self, alerts: Sequence[StoredAlert], now: float) -> list[AlertStatus]:
        statuses: list[AlertStatus] = []
        for start in range(0, len(alerts), STATUSES_PER_LOCK):
            with self.lock:
                statuses += [self._status(alert, now) for alert in alerts[start : start + STATUSES_PER_LOCK]]
        return statuses

    def _status(self, alert: StoredAlert, now: float) -> AlertStatus:
        inhibitor = self._inhibitor.inhibited_by(alert.labels, now)
        return AlertStatus(
            alert,
            tuple(route.receiver for route in self.config.route.match(alert.labels)),
            tuple(self.silences.silenced_by(alert.labels, now, alert.fingerprint)),
            (inhibitor,) if inhibitor else (),
        )

    def group_statuses(self) -> list[GroupStatus]:
        """Groups by labels, then receiver; without resolved alerts."""
        with self.lock:
            self._empty_inbox()
            now = self._clock.now()
            alerts_of = {group: list(group.alerts.values()) for group in self._groups}
        groups = []
        for group in sorted(alerts_of, key=lambda group: (sorted(group.labels.items()), group.route.receiver)):
            alerts = sorted(alerts_of[group], key=message_order)
            statuses = tuple(self._statuses([alert for alert in alerts if not alert.is_resolved(now)], now))
            labels = self._route_labels(group, alerts, now)
            groups.append(GroupStatus(group.labels, group.route.receiver, labels, group.muted_by, statuses))
        return groups

    def history(self) -> list[NotificationRecord]:
        """Newest first."""
        with self.lock:
            return list(self._history.newest_first())

    def store_history(self) -> None:
        """At the end: the last messages have been sent after the last flush."""
        with self.lock:
            self._history.store()

    def channels_of(self, receiver: str) -> Sequence[Channel]:
        return self._channels.get(receiver, ())

    def channel_statuses(self) -> dict[ChannelKey, ChannelStatus]:
        with self.lock:
            return dict(self.counters.channels)

    def families(self) -> Iterator[MetricFamily]:
        states = {"active": 0, "suppressed": 0, "unprocessed": 0}
        for status in self.alert_statuses():
            states[status.state] += 1
        with self.lock:
            now = self._clock.now()
            silences = {"active": 0, "pending": 0, "expired": 0}
            for silence in self.silences.all():
                silences[silence.state(now)] += 1
            gauges = {"alerts": states, "silences": silences}
            yield from list(self.counters.families(gauges, len(self._groups)))
