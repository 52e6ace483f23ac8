"""One message to one channel about one group: what templates and senders see.

`alerts` are in message order; `ends_at` is None while an alert fires. Names in JSON are Alertmanager's,
version 4.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Final, Literal

from gpuscope.base.time_text import to_rfc3339

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


@dataclass(frozen=True, slots=True)
class MessageAlert:
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: float
    ends_at: float | None
    generator_url: str
    fingerprint: str

    @property
    def status(self) -> MessageStatus:
        return FIRING if self.ends_at is None else RESOLVED

    def to_json(self) -> dict[str, object]:
        return {
            "status": self.status,
            "labels": dict(sorted(self.labels.items())),
            "annotations": dict(sorted(self.annotations.items())),
            "startsAt": go_time(self.starts_at),
            "endsAt": go_time(self.ends_at),
            "generatorURL": self.generator_url,
            "fingerprint": self.fingerprint,
        }


@dataclass(frozen=True)
class Notification:
    receiver: str
    group_key: str
    group_labels: Mapping[str, str]
    alerts: Sequence[MessageAlert]
    reason: str
    external_url: str
    sent_at: float
    route_labels: Mapping[str, str]

    @property
    def status(self) -> MessageStatus:
        return FIRING if any(alert.ends_at is None for alert in self.alerts) else RESOLVED

    @cached_property
    def firing(self) -> list[MessageAlert]:
        return [alert for alert in self.alerts if alert.ends_at is None]

    @cached_property
    def resolved(self) -> list[MessageAlert]:
        return [alert for alert in self.alerts if alert.ends_at is not None]

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
            replace(one, labels=plain(one.labels), annotations=plain(one.annotations)) for one in self.alerts
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
            "alerts": [alert.to_json() for alert in self.alerts],
            "notification_reason": self.reason,
            "groupLabels": dict(sorted(self.group_labels.items())),
            "commonLabels": dict(sorted(self.common_labels.items())),
            "commonAnnotations": dict(sorted(self.common_annotations.items())),
            "routeLabels": dict(sorted(self.route_labels.items())),
            "externalURL": self.external_url,
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
