"""The data of Alertmanager's notification templates: `.Alerts`, `.CommonLabels`, `.ExternalURL` and so on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from gpuscope.judge.rules.templates.go_time import GoTime
from gpuscope.judge.rules.templates.template_values import GoFunction, GoStruct, Stringer, StringList, StringMap


class Strings(StringList):
    GO_TYPE = "template.Strings"

    def go_methods(self) -> Mapping[str, GoFunction]:
        return {"Join": GoFunction(("string",), lambda separator: separator.join(self))}


@dataclass(frozen=True, slots=True)
class Pair(GoStruct):
    name: str
    value: str
    GO_TYPE: ClassVar[str] = "template.Pair"
    FIELDS: ClassVar[Mapping[str, str]] = {"Name": "name", "Value": "value"}


class Pairs(list[Pair], Stringer):
    GO_TYPE = "template.Pairs"

    def go_string(self) -> str:
        return ", ".join(f"{pair.name}={pair.value}" for pair in self)

    def go_methods(self) -> Mapping[str, GoFunction]:
        return {
            "Names": GoFunction((), lambda: Strings(pair.name for pair in self)),
            "Values": GoFunction((), lambda: Strings(pair.value for pair in self)),
            "String": GoFunction((), self.go_string),
        }


class KeyValues(StringMap, Stringer):
    """Labels or annotations, Alertmanager's `KV`."""

    GO_TYPE = "template.KV"

    def sorted_pairs(self) -> Pairs:
        """By name, `alertname` first."""
        names = sorted(self, key=lambda name: (name != "alertname", name))
        return Pairs(Pair(name, self[name]) for name in names)

    def remove(self, names: Iterable[str]) -> KeyValues:
        removed = set(names)
        return KeyValues({name: value for name, value in self.items() if name not in removed})

    def go_string(self) -> str:
        return self.sorted_pairs().go_string()

    def go_methods(self) -> Mapping[str, GoFunction]:
        return {
            "SortedPairs": GoFunction((), self.sorted_pairs),
            "Remove": GoFunction(("[]string",), self.remove),
            "Names": GoFunction((), lambda: Strings(pair.name for pair in self.sorted_pairs())),
            "Values": GoFunction((), lambda: Strings(pair.value for pair in self.sorted_pairs())),
            "String": GoFunction((), self.go_string),
        }


@dataclass(frozen=True, slots=True)
class TemplateAlert(GoStruct):
    status: str
    """`firing` or `resolved`."""
    labels: KeyValues
    annotations: KeyValues
    starts_at: GoTime
    ends_at: GoTime
    generator_url: str
    fingerprint: str
    GO_TYPE: ClassVar[str] = "template.Alert"
    FIELDS: ClassVar[Mapping[str, str]] = {
        "Status": "status",
        "Labels": "labels",
        "Annotations": "annotations",
        "StartsAt": "starts_at",
        "EndsAt": "ends_at",
        "GeneratorURL": "generator_url",
        "Fingerprint": "fingerprint",
    }
    JSON_NAMES: ClassVar[tuple[str, ...]] = (
        "status", "labels", "annotations", "startsAt", "endsAt", "generatorURL", "fingerprint",
    )  # fmt: skip


class AlertSlice(list[TemplateAlert]):
    """Its methods are those that only gpuscope has: see `judge/notify/default.tmpl`."""

    GO_TYPE = "[]template.Alert"
    max_listed = 0
    """How many alerts a default message lists."""

    def go_methods(self) -> Mapping[str, GoFunction]:
        return {
            "Listed": GoFunction((), lambda: self[: self.max_listed]),
            "More": GoFunction((), lambda: len(self[self.max_listed :])),
        }


class AlertList(AlertSlice):
    GO_TYPE = "template.Alerts"

    def with_status(self, status: str) -> AlertSlice:
        alerts = AlertSlice(alert for alert in self if alert.status == status)
        alerts.max_listed = self.max_listed
        return alerts

    def go_methods(self) -> Mapping[str, GoFunction]:
        return {
            **AlertSlice.go_methods(self),
            "Firing": GoFunction((), lambda: self.with_status("firing")),
            "Resolved": GoFunction((), lambda: self.with_status("resolved")),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationData(GoStruct):
    receiver: str
    status: str
    alerts: AlertList
    notification_reason: str = ""
    group_labels: KeyValues = field(default_factory=KeyValues)
    common_labels: KeyValues = field(default_factory=KeyValues)
    common_annotations: KeyValues = field(default_factory=KeyValues)
    route_labels: KeyValues = field(default_factory=KeyValues)
    external_url: str = ""
    GO_TYPE: ClassVar[str] = "*template.Data"
    FIELDS: ClassVar[Mapping[str, str]] = {
        "Receiver": "receiver",
        "Status": "status",
        "Alerts": "alerts",
        "NotificationReason": "notification_reason",
        "GroupLabels": "group_labels",
        "CommonLabels": "common_labels",
        "CommonAnnotations": "common_annotations",
        "RouteLabels": "route_labels",
        "ExternalURL": "external_url",
    }
    JSON_NAMES: ClassVar[tuple[str, ...]] = (
        "receiver", "status", "alerts", "notification_reason", "groupLabels", "commonLabels",
        "commonAnnotations", "routeLabels", "externalURL",
    )  # fmt: skip
