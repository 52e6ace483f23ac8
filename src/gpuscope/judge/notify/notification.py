"""One message to one channel about one group: what templates and senders see, and say of each alert.

`alerts` are in message order; one whose end has passed when the message is made is resolved, the others fire.
Names in JSON are Alertmanager's, version 4.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Final, Literal
from urllib.parse import quote, urlsplit

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


# What is said of an alert in a default message: which GPU, whose, since when, what it means, what to do.
#
# Output: titles with their texts (`rows_of`) and with their URLs (`links_of`); a row whose label is absent is
# left out. The layout is in `default.tmpl` and in the channels' templates.

MAX_LISTED = 20
"""Alerts of each status in a default message: most channels would refuse one with 10,000."""
MAX_VALUE_CHARACTERS = 1000
MAX_NAME_CHARACTERS = 253
"""Of a node: the longest host name."""

ROWS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("Node", ("node", "hostname", "Hostname", "instance")),
    ("GPU", ("gpu", "minor_number")),
    ("Model", ("model", "modelName", "gpu_model")),
    ("UUID", ("uuid", "UUID")),
    ("Owner", ("owner", "user", "account")),
    ("Job", ("job_id", "slurm_job", "slurm_job_id", "jobid")),
    ("Namespace", ("namespace", "exported_namespace")),
    ("Pod", ("pod", "exported_pod")),
    ("Container", ("container", "exported_container")),
    ("XID", ("xid",)),
    ("Severity", ("severity",)),
)
"""A row's title, and the labels it is taken from: the first one that the alert has."""
ANNOTATED_ROWS = {"Node": "node", "GPU": "gpu", "Model": "model", "Owner": "owner", "Job": "job"}
"""Rows for which an annotation says more than the label: shipped rules look up node, model and owner."""
MEANING = ("description", "message")
NEXT_STEP = ("next", "next_step", "action", "remedy")
_LOOKED_UP_GPU = re.compile(r"(?P<Node>.+?) GPU (?P<GPU>\d+)(?: \((?P<Model>.+)\))?")
"""The annotation `gpu` of shipped rules: `node-3 GPU 0 (NVIDIA H100)`."""


def alert_name(alert: StoredAlert) -> str:
    return one_line(alert.labels.get("alertname", "alert"))


def rows_of(alert: StoredAlert, *, is_resolved: bool) -> Iterator[tuple[str, str]]:
    """Title and text: what it is about, since when, what it means, the next step."""
    labels, annotations = alert.labels, alert.annotations
    if annotations.get("summary"):
        yield "Summary", one_line(annotations["summary"])
    annotated = _annotated_rows(annotations)
    for title, names in ROWS:
        value = annotated.get(title) or next((labels[name] for name in names if labels.get(name)), "")
        if value:
            yield title, one_line(value)
    yield "Since", to_rfc3339(alert.starts_at, "seconds")
    if is_resolved:
        yield "Resolved", to_rfc3339(alert.ends_at, "seconds")
    meaning = [annotations[name] for name in MEANING if annotations.get(name)]
    next_step = [annotations[name] for name in NEXT_STEP if annotations.get(name)]
    runbook = [annotations.get("runbook", ""), web_link(annotations.get("runbook_url", ""))]
    for title, texts in (("Meaning", meaning), ("Next step", next_step), ("Runbook", runbook)):
        value = next(filter(None, texts), "")
        if value:
            yield title, one_line(value)


def _annotated_rows(annotations: Mapping[str, str]) -> dict[str, str]:
    """Texts of rows that annotations give, by title."""
    texts = {title: annotations.get(name, "") for title, name in ANNOTATED_ROWS.items()}
    parts = _LOOKED_UP_GPU.fullmatch(texts["GPU"][:MAX_VALUE_CHARACTERS])
    if parts is not None:
        texts |= {title: text for title, text in parts.groupdict().items() if text}
    return texts


def links_of(alert: StoredAlert, external_url: str) -> Iterator[tuple[str, str]]:
    """Title and URL: the page of the GPU or node that the alert is about, and its expression."""
    uuid = alert.labels.get("uuid", "")
    is_gpu = uuid.startswith(("GPU-", "MIG-"))  # alerts may come from anywhere: it may be that of a disk
    node = _annotated_rows(alert.annotations)["Node"] or alert.labels.get("node", "")
    title, view, name = ("GPU page", "gpu", uuid) if is_gpu else ("Node page", "node", node)
    if 0 < len(name) <= MAX_NAME_CHARACTERS and web_link(external_url):
        yield title, f"{external_url}/#/{view}/{quote(name, safe='')}"
    if link := web_link(alert.generator_url):
        yield "Expression", link


def page_link(notification: Notification) -> str:
    return f"{notification.external_url}/#/alerts?receiver={quote(notification.receiver, safe='')}"


def web_link(url: str) -> str:
    """The URL if a browser may be sent there; a rule's expression could be `javascript:…`."""
    try:
        return url if urlsplit(url).scheme in ("http", "https") else ""
    except ValueError:
        return ""


def one_line(value: str) -> str:
    """Without control characters, and not too long."""
    printable = value if value.isprintable() else "".join(c if c.isprintable() else " " for c in value)
    text = " ".join(printable.split())
    return text if len(text) <= MAX_VALUE_CHARACTERS else text[: MAX_VALUE_CHARACTERS - 1] + "…"


def listed_alerts(notification: Notification, most: int = MAX_LISTED) -> frozenset[str]:
    """Those that a default message has in full: a long text of an alert is cut in every message."""
    listed = [*notification.firing[:most], *notification.resolved[:most]]
    return frozenset(alert.fingerprint for alert in listed if not _is_cut(alert))


def _is_cut(alert: StoredAlert) -> bool:
    values = (*alert.labels.values(), *alert.annotations.values())
    return any(len(value) > MAX_VALUE_CHARACTERS for value in values)
