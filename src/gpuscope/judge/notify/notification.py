"""One message to one channel about one group: what templates and senders see.

`alerts` are in message order; one whose end has passed when the message is made is resolved, the others fire.
Names in JSON are Alertmanager's, version 4.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal

from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.notify.alert_store import StoredAlert, label_set_text

NEVER = "0001-01-01T00:00:00Z"
MessageStatus = Literal["firing", "resolved"]
FIRING: Final = "firing"
RESOLVED: Final = "resolved"


def go_time(seconds: float | None) -> str:
    """RFC 3339 in UTC with as many digits as needed, as Go writes times in JSON."""
    if seconds is None:
        return NEVER
    text = to_rfc3339(round(seconds, 6)).removesuffix("Z")
    return (text.rstrip("0").rstrip(".") if "." in text else text) + "Z"


class Reason(StrEnum):
    """Why a message is sent: Alertmanager's words, part of a webhook's body."""

    UNKNOWN = "unknown"
    """While the labels of a route are expanded."""
    NONE = "none"
    FIRST = "first notification"
    NEW_ALERTS = "new alerts added"
    SOME_RESOLVED = "some alerts resolved"
    ALL_RESOLVED = "all alerts resolved"
    REPEAT = "repeat interval elapsed"


@dataclass(frozen=True)
class Notification:
    receiver: str
    group_key: str
    group_labels: Mapping[str, str]
    alerts: Sequence[StoredAlert]
    reason: Reason
    external_url: str
    sent_at: float
    route_labels: Mapping[str, str]

    @property
    def status(self) -> MessageStatus:
        return FIRING if self.firing else RESOLVED

    def status_of(self, alert: StoredAlert) -> MessageStatus:
        return RESOLVED if alert.is_resolved(self.sent_at) else FIRING

    @cached_property
    def firing(self) -> list[StoredAlert]:
        return [alert for alert in self.alerts if not alert.is_resolved(self.sent_at)]

    @cached_property
    def resolved(self) -> list[StoredAlert]:
        return [alert for alert in self.alerts if alert.is_resolved(self.sent_at)]

    @cached_property
    def common_labels(self) -> dict[str, str]:
        return _common([alert.labels for alert in self.alerts])

    @cached_property
    def common_annotations(self) -> dict[str, str]:
        return _common([alert.annotations for alert in self.alerts])

    @cached_property
    def template_data(self) -> dict[Any, Any]:
        """By style, for `message_texts`: 10,000 alerts are not escaped anew for each text of a message."""
        return {}

    @property
    def fingerprints(self) -> frozenset[str]:
        return frozenset(alert.fingerprint for alert in self.alerts)

    def first(self, count: int) -> Notification:
        """With its first alerts only."""
        return replace(self, alerts=self.alerts[:count])

    def without(self, characters: re.Pattern[str]) -> Notification:
        """With `_` for these characters in all values of labels and annotations."""

        def plain(values: Mapping[str, str]) -> dict[str, str]:
            return {name: characters.sub("_", value) for name, value in values.items()}

        alerts = [
            replace(alert, labels=plain(alert.labels), annotations=plain(alert.annotations))
            for alert in self.alerts
        ]
        groups, routes = plain(self.group_labels), plain(self.route_labels)
        return replace(self, alerts=alerts, group_labels=groups, route_labels=routes)

    @property
    def group_hash(self) -> str:
        """The same for every message about a group, so that a resolution finds its incident."""
        return hashlib.sha256(self.group_key.encode("utf-8", "replace")).hexdigest()

    @property
    def receiver_pattern(self) -> str:
        """Escaped for a regular expression, as Alertmanager writes it for its own links."""
        return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", self.receiver)

    def to_json(self) -> dict[str, object]:
        """The part of a webhook's body that templates see too."""
        return {
            "receiver": self.receiver_pattern,
            "status": self.status,
            "alerts": [self._alert_json(alert) for alert in self.alerts],
            "notification_reason": self.reason.value,
            "groupLabels": dict(sorted(self.group_labels.items())),
            "commonLabels": dict(sorted(self.common_labels.items())),
            "commonAnnotations": dict(sorted(self.common_annotations.items())),
            "routeLabels": dict(sorted(self.route_labels.items())),
            "externalURL": self.external_url,
        }

    def _alert_json(self, alert: StoredAlert) -> dict[str, object]:
        return {
            "status": self.status_of(alert),
            "labels": dict(sorted(alert.labels.items())),
            "annotations": dict(sorted(alert.annotations.items())),
            "startsAt": go_time(alert.starts_at),
            "endsAt": go_time(alert.ends_at if alert.is_resolved(self.sent_at) else None),
            "generatorURL": alert.generator_url,
            "fingerprint": alert.fingerprint,
        }


def _common(maps: Sequence[Mapping[str, str]]) -> dict[str, str]:
    if not maps:
        return {}
    shared = dict(maps[0])
    for other in maps[1:]:
        if not shared:
            break
        shared = {name: value for name, value in shared.items() if other.get(name) == value}
    return shared


def sample_notification(receiver: str, external_url: str, now: float, *, is_resolved: bool) -> Notification:
    """To try a channel with: an alert about a GPU, marked as a test."""
    labels = {
        "alertname": "GpuscopeTest",
        "severity": "info",
        "node": "node-1",
        "gpu": "0",
        "model": "NVIDIA H100 80GB HBM3",
        "user": "alice",
        "job_id": "4711",
    }
    annotations = {
        "summary": "This is a test message of gpuscope.",
        "description": "Sent by `gpuscope notify test`. No GPU has a problem.",
        "next_step": "Nothing to do: this channel works.",
    }
    ends_at = now if is_resolved else now + 60
    alert = StoredAlert(labels, annotations, now - 60, ends_at, f"{external_url}/")
    group = {"alertname": labels["alertname"]}
    return Notification(
        receiver=receiver,
        group_key=f"{{}}:{label_set_text(group)}",
        group_labels=group,
        alerts=[alert],
        reason=Reason.ALL_RESOLVED if is_resolved else Reason.FIRST,
        external_url=external_url,
        sent_at=now,
        route_labels={},
    )
