"""Alertmanager's template data (`.Alerts`, `.CommonLabels`, `.ExternalURL`, …) and functions (0.34).

`now` and `since` take the time from the caller's clock. `routeLabels` expands a label of the route, which may
itself be a template; the caller passes the function that does it, because only the route knows its labels.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from urllib.parse import unquote_to_bytes

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.rules.templates.go_format import DEFAULT_MAX_LENGTH
from gpuscope.judge.rules.templates.go_time import ZERO_TIME_SECONDS, GoDuration, GoTime, parse_time, parse_zone
from gpuscope.judge.rules.templates.template_values import (
    FunctionFailed,
    GoFunction,
    GoStruct,
    GoValue,
    SafeHtml,
    SafeUrl,
    Stringer,
    StringList,
    StringMap,
)
from gpuscope.judge.rules.templates.template_values import go_type as type_name
from gpuscope.judge.rules.templates.text_functions import (
    humanize_duration,
    matches,
    replace_all,
    title_case,
    to_json,
    to_lower,
    to_upper,
)

_ZERO_TIME = GoTime(ZERO_TIME_SECONDS * 1_000_000_000)


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


def _to_date(layout: str, text: str) -> GoTime:
    try:
        return parse_time(layout, text)
    except FunctionFailed:
        return _ZERO_TIME


def _url_unescape(text: str) -> str:
    position = text.find("%")
    while position >= 0:
        digits = text[position + 1 : position + 3]
        if len(digits) < 2 or not all(digit in "0123456789abcdefABCDEF" for digit in digits):
            raise FunctionFailed(f'invalid URL escape "{text[position : position + 3]}"')
        position = text.find("%", position + 3)
    return unquote_to_bytes(text.replace("+", " ")).decode("utf-8", "replace")


def _base64decode(text: str) -> str:
    plain = text.replace("\r", "").replace("\n", "")
    try:
        if "+" in plain or "/" in plain or len(plain) % 4:
            raise binascii.Error
        return base64.b64decode(plain, altchars=b"-_", validate=True).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        raise FunctionFailed("illegal base64 data at input byte 0") from None


def _join(separator: str, items: list[str], max_length: int) -> str:
    if sum(map(len, items)) + len(separator) * len(items) > max_length:
        LIMITS_REACHED.count("template_max_output_bytes")
        raise FunctionFailed(f"the text is longer than {max_length} characters")
    return separator.join(items)


def _dict(*values: GoValue) -> dict[str, GoValue]:
    if len(values) % 2:
        raise FunctionFailed("dict requires an even number of arguments")
    keys = values[::2]
    if any(type_name(key) != "string" for key in keys):
        raise FunctionFailed("dict keys must be strings")
    return dict(zip(keys, values[1::2], strict=True))


def alertmanager_functions(
    now: Callable[[], GoTime] = lambda: _ZERO_TIME,
    route_label: Callable[[str], str] = lambda name: "",
    max_length: int = DEFAULT_MAX_LENGTH,
) -> dict[str, GoFunction]:
    text, time = ("string",), ("time.Time",)
    return {
        "toUpper": GoFunction(text, to_upper),
        "toLower": GoFunction(text, to_lower),
        "title": GoFunction(text, lambda value: title_case(value, lower_rest=True)),
        "trimSpace": GoFunction(text, str.strip),
        "join": GoFunction((*text, "[]string"), lambda separator, items: _join(separator, items, max_length)),
        "match": GoFunction(text * 2, matches),
        "safeHtml": GoFunction(text, SafeHtml),
        "safeUrl": GoFunction(text, SafeUrl),
        "urlUnescape": GoFunction(text, _url_unescape),
        "reReplaceAll": GoFunction(text * 3, lambda a, b, c: replace_all(a, b, c, max_length)),
        "stringSlice": GoFunction(text, lambda *items: StringList(items), is_variadic=True),
        "routeLabels": GoFunction(text, route_label),
        "date": GoFunction((*text, *time), lambda layout, moment: moment.format(layout)),
        "tz": GoFunction((*text, *time), lambda name, moment: moment.in_zone(parse_zone(name))),
        "now": GoFunction((), now),
        "since": GoFunction(time, lambda moment: GoDuration(now().nanoseconds - moment.nanoseconds)),
        "humanizeDuration": GoFunction(("any",), humanize_duration),
        "toDate": GoFunction(text * 2, _to_date),
        "mustToDate": GoFunction(text * 2, parse_time),
        "toJson": GoFunction(("any",), lambda value: to_json(value, max_length)),
        "base64encode": GoFunction(
            text, lambda value: base64.urlsafe_b64encode(value.encode("utf-8", "replace")).decode()
        ),
        "base64decode": GoFunction(text, _base64decode),
        "list": GoFunction(("any",), lambda *items: list(items), is_variadic=True),
        "append": GoFunction(("[]interface {}", "any"), lambda items, *more: [*items, *more], is_variadic=True),
        "dict": GoFunction(("any",), _dict, is_variadic=True),
    }
