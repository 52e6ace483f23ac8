"""Alertmanager's API v2 in JSON: alerts and silences as its clients send them, and as they read them.

Reading has Alertmanager's three steps: types (`RefusedRequest`, 400), schema (`RefusedRequest`, 422), then what
its handlers check (ValueError with the text of the 400 answer). Times are RFC 3339, answers have milliseconds.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuscope.base.go_quote import quote
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.time_text import to_rfc3339
from gpuscope.judge.notify.alert_matchers import AlertMatcher
from gpuscope.judge.notify.notifier import AlertStatus, GroupStatus
from gpuscope.judge.notify.silences import Silence
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.model.series import MatchOp
from gpuscope.serve.api.alertmanager_requests import (
    INVALID_TYPE,
    TOO_FEW_ITEMS,
    RefusedRequest,
    is_request_uri,
    malformed,
    required,
)

_OPS = {
    (False, True): MatchOp.EQUAL,
    (False, False): MatchOp.NOT_EQUAL,
    (True, True): MatchOp.REGEX,
    (True, False): MatchOp.NOT_REGEX,
}
_TIME = re.compile(
    r"(?!.{11}24)\d{4}-\d\d-\d\d"  # Python takes an hour 24 from 3.14 on
    r"(T\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)?|T\d\d:\d\d:\d\d[.,](\d{3}){1,2}[+-]\d{4}|T\d\d:\d\dZ?"
    r"| \d\d:\d\d:\d\d([.,]\d+)?)?",
    re.ASCII,
)
"""The formats of go-openapi's `date-time`; a time without a zone is UTC."""
_ZERO_TIME = datetime(1, 1, 1, tzinfo=UTC)
"""Go's time that is not set."""
MAX_TIME_SECONDS = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
"""Later fractions of a second would be rounded to the year 10000, which no answer can be written with."""
_SURROGATE = re.compile("[\ud800-\udfff]")
MAX_MISTAKES = 20
"""Of one request, in the answer."""
_JSON_NAMES = {dict: "object", list: "array", str: "string", bool: "bool", int: "number", float: "number"}


def time_text(seconds: float) -> str:
    return to_rfc3339(seconds, "milliseconds")


@dataclass(frozen=True, slots=True)
class _Fields:
    """An object of a posted body, read by name; null counts as absent."""

    values: Mapping[str, Any]
    what: str
    """`alerts` or `silence`."""

    def _get(self, key: str, wanted: type) -> Any:
        value = self.values.get(key)
        if value is not None and type(value) is not wanted:
            raise self._wrong(key, value, wanted)
        return value

    def _wrong(self, key: str, value: object, wanted: type) -> RefusedRequest:
        kind = _JSON_NAMES[type(value)]
        return malformed(self.what, f"{key} is a JSON {kind} and not a {_JSON_NAMES[wanted]}")

    def text(self, key: str) -> str | None:
        value = self._get(key, str)
        return None if value is None else _utf8(value)

    def flag(self, key: str) -> bool | None:
        value: bool | None = self._get(key, bool)
        return value

    def texts(self, key: str) -> dict[str, str] | None:
        value = self._get(key, dict)
        if value is None:
            return None
        for item in value.values():
            if item is not None and not isinstance(item, str):
                raise self._wrong(key, item, str)
        return {_utf8(name): _utf8(item or "") for name, item in value.items()}

    def time(self, key: str) -> float | None:
        text = self.text(key)
        if text is None:
            return None
        if text == "":
            return 0.0  # go-openapi reads it as the epoch
        try:
            if not _TIME.fullmatch(text):
                raise ValueError
            moment = datetime.fromisoformat(text.replace(",", "."))
            moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        except (ValueError, OverflowError):
            why = f"{key}: {text[:60]!r} is not a time such as 2026-11-16T12:00:00Z"
            raise malformed(self.what, why) from None
        return None if moment == _ZERO_TIME else min(moment.timestamp(), MAX_TIME_SECONDS)

    def objects(self, key: str) -> list[_Fields] | None:
        value = self._get(key, list)
        return None if value is None else [_object(item, self.what) for item in value]


def _object(document: object, what: str) -> _Fields:
    if not isinstance(document, dict):
        kind = _JSON_NAMES.get(type(document), "null")
        raise malformed(what, f"there is a JSON {kind} and not an object")
    return _Fields(document, what)


def _utf8(text: str) -> str:
    """Half of a surrogate pair is replaced: UTF-8 cannot hold it."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


@dataclass(slots=True)
class PostedAlerts:
    valid: list[Alert]
    mistakes: list[str]
    """The first ones."""
    invalid_count: int = 0


@dataclass(frozen=True, slots=True)
class _PostedAlert:
    labels: dict[str, str] | None
    annotations: dict[str, str]
    starts_at: float | None
    ends_at: float | None
    generator_url: str


def read_alerts(document: object, now: float, limits: Limits, resolve_timeout: float) -> PostedAlerts:
    """Valid alerts are taken even if others are not; a wrong type or a missing field refuses all."""
    if not isinstance(document, list | None):
        kind = _JSON_NAMES[type(document)]
        raise malformed("alerts", f"the body is a JSON {kind} and not a list of alerts")
    posted = [_posted_alert(_object(item, "alerts")) for item in document or ()]
    for position, alert in enumerate(posted):
        if alert.generator_url and not is_request_uri(alert.generator_url):
            url = quote(alert.generator_url)
            why = f"{position}.generatorURL in body must be of type uri: {url}"
            raise RefusedRequest(422, INVALID_TYPE, why)
        if alert.labels is None:
            raise required(f"{position}.labels")
    result = PostedAlerts([], [])
    for alert in posted:
        try:
            result.valid.append(_to_alert(alert, now, limits, resolve_timeout))
        except ValueError as error:
            result.invalid_count += 1
            if len(result.mistakes) < MAX_MISTAKES:
                result.mistakes.append(str(error))
    return result


def _posted_alert(fields: _Fields) -> _PostedAlert:
    return _PostedAlert(
        fields.texts("labels"),
        fields.texts("annotations") or {},
        fields.time("startsAt"),
        fields.time("endsAt"),
        fields.text("generatorURL") or "",
    )


def _to_alert(posted: _PostedAlert, now: float, limits: Limits, resolve_timeout: float) -> Alert:
    labels = {name: value for name, value in (posted.labels or {}).items() if value}
    annotations = posted.annotations
    texts = [text for many in (labels, annotations) for pair in many.items() for text in pair]
    size = sum(len(text.encode()) for text in (*texts, posted.generator_url))
    if size > limits.max_alert_bytes:
        LIMITS_REACHED.count("max_alert_bytes")
        raise ValueError(f"labels and annotations of {size} bytes; max_alert_bytes is {limits.max_alert_bytes}")
    starts_at, ends_at = posted.starts_at, posted.ends_at
    if starts_at is None:
        starts_at = now if ends_at is None else ends_at
    if (now + resolve_timeout if ends_at is None else ends_at) < starts_at:
        raise ValueError("start time must be before end time")
    if not labels:
        raise ValueError("at least one label pair required")
    if "" in labels:
        raise ValueError('invalid label set: invalid name ""')
    if "" in annotations:
        raise ValueError('invalid annotations: invalid name ""')
    # An end in the future means: it fires, and is resolved then unless it is sent again.
    return Alert(
        tuple(sorted(labels.items())),
        tuple(sorted(annotations.items())),
        starts_at,
        None if ends_at is None or ends_at > now else ends_at,
        posted.generator_url,
        ends_at if ends_at is not None and ends_at > now else 0.0,
    )


def read_silence(document: object, now: float) -> Silence:
    fields = _object({} if document is None else document, "silence")
    comment, created_by = fields.text("comment"), fields.text("createdBy")
    starts_at, ends_at = fields.time("startsAt"), fields.time("endsAt")
    matchers = [_posted_matcher(entry) for entry in fields.objects("matchers") or ()]
    annotations, silence_id = fields.texts("annotations"), fields.text("id")
    for name in ("comment", "createdBy", "endsAt", "matchers", "startsAt"):
        if fields.values.get(name) is None:
            raise required(name)
    if not matchers:
        raise RefusedRequest(422, TOO_FEW_ITEMS, "matchers in body should have at least 1 items")
    for position, matcher in enumerate(matchers):
        matcher.check(position)
    return Silence(
        matchers=tuple(matcher.to_matcher(position) for position, matcher in enumerate(matchers)),
        starts_at=now if starts_at is None else starts_at,
        ends_at=0.0 if ends_at is None else ends_at,
        created_by=created_by or "",
        comment=comment or "",
        annotations=tuple(sorted((annotations or {}).items())),
        id=silence_id or "",
    )


@dataclass(frozen=True, slots=True)
class _PostedMatcher:
    name: str | None
    value: str | None
    is_regex: bool | None
    is_equal: bool | None

    def check(self, position: int) -> None:
        for key, value in (("isRegex", self.is_regex), ("name", self.name), ("value", self.value)):
            if value is None:
                raise required(f"matchers.{position}.{key}")

    def to_matcher(self, position: int) -> AlertMatcher:
        """ValueError for a name or a regular expression that is not valid."""
        where = f"invalid silence: invalid label matcher {position} in set 0"
        if not self.name:
            raise ValueError(f'{where}: invalid label name ""')
        op = _OPS[self.is_regex is True, self.is_equal is not False]
        try:
            return AlertMatcher(self.name, op, self.value or "")
        except ValueError as error:
            raise ValueError(f"{where}: invalid regular expression {self.value!r}: {error}") from None


def _posted_matcher(fields: _Fields) -> _PostedMatcher:
    return _PostedMatcher(
        fields.text("name"), fields.text("value"), fields.flag("isRegex"), fields.flag("isEqual")
    )


def alert_json(status: AlertStatus, muted_by: tuple[str, ...] = ()) -> dict[str, object]:
    alert = status.alert
    return {
        "annotations": dict(sorted(alert.annotations.items())),
        "endsAt": time_text(alert.ends_at),
        "fingerprint": alert.fingerprint,
        "receivers": [{"name": name} for name in status.receivers],
        "startsAt": time_text(alert.starts_at),
        "status": {
            "inhibitedBy": list(status.inhibited_by),
            "mutedBy": list(muted_by),
            "silencedBy": list(status.silenced_by),
            "state": "suppressed" if muted_by else status.state,
        },
        "updatedAt": time_text(alert.updated_at),
        **({"generatorURL": alert.generator_url} if alert.generator_url else {}),
        "labels": dict(sorted(alert.labels.items())),
    }


def group_json(group: GroupStatus, alerts: list[AlertStatus]) -> dict[str, object]:
    return {
        "alerts": [alert_json(alert, group.muted_by) for alert in alerts],
        "labels": dict(sorted(group.labels.items())),
        "receiver": {"name": group.receiver},
        "routeLabels": dict(sorted(group.route_labels.items())),
    }


def silence_json(silence: Silence, now: float) -> dict[str, object]:
    return {
        "id": silence.id,
        "status": {"state": silence.state(now)},
        "updatedAt": time_text(silence.updated_at),
        "comment": silence.comment,
        "createdBy": silence.created_by,
        "endsAt": time_text(silence.ends_at),
        "matchers": [
            {
                "isEqual": matcher.is_equal,
                "isRegex": matcher.is_regex,
                "name": matcher.name,
                "value": matcher.value,
            }
            for matcher in silence.matchers
        ],
        "startsAt": time_text(silence.starts_at),
        **({"annotations": dict(silence.annotations)} if silence.annotations else {}),
    }
