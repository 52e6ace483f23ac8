"""The notifier's own metrics, with Alertmanager's names, and the state of each channel for status pages.

`gpuscope_notify_channel_up` is absent until the channel was used for the first time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpuscope.judge.notify.channel import ChannelKey, SendError
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample

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
