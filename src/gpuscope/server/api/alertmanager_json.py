"""Alertmanager's API v2 in JSON: alerts and silences as its clients send them, and as they read them.

ValueError has the text of the 400 answer. Times are RFC 3339; answers have milliseconds, as Alertmanager's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.notify.alert_matchers import AlertMatcher
from gpuscope.notify.notifier import AlertStatus, GroupStatus
from gpuscope.notify.silences import Silence
from gpuscope.rfc3339 import parse_rfc3339, to_rfc3339
from gpuscope.rules.alert import Alert
from gpuscope.series import MatchOp

_OPS = {
    (False, True): MatchOp.EQUAL,
    (False, False): MatchOp.NOT_EQUAL,
    (True, True): MatchOp.REGEX,
    (True, False): MatchOp.NOT_REGEX,
}
MAX_TIME = 253402300799.0
"""The end of year 9999: what Python's dates can hold."""


def time_text(seconds: float) -> str:
    return to_rfc3339(seconds, "milliseconds")


@dataclass(frozen=True, slots=True)
class PostedAlerts:
    valid: list[Alert]
    mistakes: list[str]


def read_alerts(document: object, now: float, limits: Limits) -> PostedAlerts:
    """Valid alerts are taken even if others are not."""
    if not isinstance(document, list):
        raise ValueError("the body is not a list of alerts")
    found = PostedAlerts([], [])
    for one in document:
        try:
            found.valid.append(_alert(one, now, limits))
        except ValueError as error:
            found.mistakes.append(str(error))
    return found


def _alert(document: object, now: float, limits: Limits) -> Alert:
    fields = _mapping(document, "an alert")
    labels = {name: value for name, value in _texts(fields, "labels").items() if value}
    annotations = _texts(fields, "annotations")
    size = sum(len(name) + len(value) for many in (labels, annotations) for name, value in many.items())
    if size > limits.max_alert_bytes:
        LIMITS_REACHED.count("max_alert_bytes")
        raise ValueError(f"labels and annotations of {size} bytes; max_alert_bytes is {limits.max_alert_bytes}")
    starts_at, ends_at = _time(fields, "startsAt"), _time(fields, "endsAt")
    if starts_at is None:
        starts_at = now if ends_at is None else ends_at
    if ends_at is not None and ends_at < starts_at:
        raise ValueError("start time must be before end time")
    if not labels:
        raise ValueError("at least one label pair required")
    url = fields.get("generatorURL") or ""
    if not isinstance(url, str):
        raise ValueError("generatorURL is not a text")
    # An end in the future means: it fires, and is resolved then unless it is sent again.
    return Alert(
        tuple(sorted(labels.items())),
        tuple(sorted(annotations.items())),
        starts_at,
        None if ends_at is None or ends_at > now else ends_at,
        url,
        ends_at if ends_at is not None and ends_at > now else 0.0,
    )


def read_silence(document: object, now: float) -> Silence:
    fields = _mapping(document, "a silence")
    matchers = fields.get("matchers")
    if not isinstance(matchers, list):
        raise ValueError("matchers in body is required")
    for name in ("createdBy", "comment"):
        if not isinstance(fields.get(name), str):
            raise ValueError(f"{name} in body is required")
    starts_at, ends_at = _time(fields, "startsAt"), _time(fields, "endsAt")
    if ends_at is None:
        raise ValueError("endsAt in body is required")
    silence_id = fields.get("id") or ""
    if not isinstance(silence_id, str):
        raise ValueError("id in body must be a text")
    return Silence(
        matchers=tuple(_matcher(one) for one in matchers),
        starts_at=now if starts_at is None else starts_at,
        ends_at=ends_at,
        created_by=_valid(fields["createdBy"]),
        comment=_valid(fields["comment"]),
        annotations=tuple(sorted(_texts(fields, "annotations").items())),
        id=silence_id,
    )


def _matcher(document: object) -> AlertMatcher:
    fields = _mapping(document, "a matcher")
    name, value = fields.get("name"), fields.get("value")
    if not isinstance(name, str) or not name or not isinstance(value, str):
        raise ValueError("a matcher needs name and value")
    is_regex, is_equal = fields.get("isRegex"), fields.get("isEqual", True)
    if not isinstance(is_regex, bool) or not isinstance(is_equal, bool):
        raise ValueError("isRegex and isEqual of a matcher must be true or false")
    return AlertMatcher(_valid(name), _OPS[is_regex, is_equal], _valid(value))


def _mapping(document: object, what: str) -> Mapping[str, Any]:
    if not isinstance(document, dict):
        raise ValueError(f"{what} must be an object")
    return document


def _texts(fields: Mapping[str, Any], key: str) -> dict[str, str]:
    found = fields.get(key) or {}
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise ValueError(f"{key} must be an object with texts")
    return {_valid(name): _valid(value) for name, value in found.items() if name}


def _valid(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a text is not valid UTF-8") from None
    return text


def _time(fields: Mapping[str, Any], key: str) -> float | None:
    text = fields.get(key)
    if not text:
        return None
    try:
        if not isinstance(text, str) or "T" not in text.upper():
            raise ValueError
        if text.startswith("0001-01-01T00:00:00"):  # Go's zero time
            return None
        seconds = parse_rfc3339(text)
    except (ValueError, OverflowError):
        raise ValueError(f"{key}: {str(text)[:60]!r} is not a time such as 2026-11-16T12:00:00Z") from None
    if not 0 <= seconds <= MAX_TIME:
        raise ValueError(f"{key}: {text[:60]!r} is out of range")
    return seconds


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
        "generatorURL": alert.generator_url,
        "labels": dict(sorted(alert.labels.items())),
    }


def group_json(group: GroupStatus, alerts: list[AlertStatus]) -> dict[str, object]:
    return {
        "alerts": [alert_json(one, group.muted_by) for one in alerts],
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
            {"isEqual": one.is_equal, "isRegex": one.is_regex, "name": one.name, "value": one.value}
            for one in silence.matchers
        ],
        "startsAt": time_text(silence.starts_at),
        **({"annotations": dict(silence.annotations)} if silence.annotations else {}),
    }
