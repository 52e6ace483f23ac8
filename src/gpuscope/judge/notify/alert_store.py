"""Every alert that the notifier knows, firing or resolved not long ago, by fingerprint.

Times are seconds since the epoch. `ends_at` is always set: an alert without an end gets one `resolve_timeout`
after its last update (`is_timeout`), and it is resolved as soon as that time has passed. A quarter of the room
is for the alerts of this server's own rules: clients that send many must not shut them out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cmp_to_key, lru_cache
from typing import Any

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql.labels import quote
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.model.series import Labels

_FNV_OFFSET, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_SEPARATOR = b"\xff"
TEXT_OF_ONE_ALERT = 2048
"""An alert with more text counts as several."""
MAX_CACHED_FINGERPRINTS = 16_384
"""The same alerts come again with every resend."""
SWEEP_SECONDS = 1.0


def fingerprint(labels: Mapping[str, str]) -> str:
    """Alertmanager's: FNV-1a over the sorted names and values, each followed by 0xff, as 16 hex digits."""
    return _fingerprint(tuple(sorted(labels.items())))


@lru_cache(maxsize=MAX_CACHED_FINGERPRINTS)
def _fingerprint(labels: Labels) -> str:
    number = _FNV_OFFSET
    for name, value in labels:
        text = name.encode("utf-8", "surrogateescape") + _SEPARATOR
        for byte in text + value.encode("utf-8", "surrogateescape") + _SEPARATOR:
            number = ((number ^ byte) * _FNV_PRIME) & _MASK
    return f"{number:016x}"


def label_set_text(labels: Mapping[str, str]) -> str:
    """`{a="b", c="d"}`, as in a group key."""
    return "{" + ", ".join(f"{name}={quote(labels[name])}" for name in sorted(labels)) + "}"


@dataclass(frozen=True, slots=True)
class StoredAlert:
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    starts_at: float
    ends_at: float
    generator_url: str = ""
    updated_at: float = 0.0
    is_timeout: bool = False
    """`ends_at` was not given: it is the time after which silence means resolved."""
    fingerprint: str = field(default="")
    is_own: bool = False
    """Of this server's own rules; others come from clients of the API."""

    def __post_init__(self) -> None:
        if not self.fingerprint:
            object.__setattr__(self, "fingerprint", fingerprint(self.labels))

    @property
    def weight(self) -> int:
        """How many alerts it counts as."""
        texts = (self.labels.items(), self.annotations.items())
        size = sum(len(name) + len(value) for many in texts for name, value in many) + len(self.generator_url)
        return 1 + size // TEXT_OF_ONE_ALERT

    def is_resolved(self, now: float) -> bool:
        return self.ends_at <= now

    def merged_into(self, newer: StoredAlert, now: float) -> StoredAlert:
        """Both describe the same alert over overlapping times; `newer` was updated last."""
        starts_at, ends_at = min(self.starts_at, newer.starts_at), newer.ends_at
        if newer.is_resolved(now):
            if self.is_resolved(now):
                ends_at = max(ends_at, self.ends_at)
        elif not self.is_timeout:
            ends_at = max(ends_at, self.ends_at)
        return replace(newer, starts_at=starts_at, ends_at=ends_at)

    def overlaps(self, newer: StoredAlert) -> bool:
        return self.starts_at < newer.ends_at < self.ends_at or self.starts_at < newer.starts_at < self.ends_at


def store_alert(alert: Alert, now: float, resolve_timeout: float, *, is_own: bool) -> StoredAlert:
    ends_at, is_timeout = alert.ends_at, False
    if ends_at is None and alert.valid_until:
        ends_at = alert.valid_until
    elif ends_at is None:
        ends_at, is_timeout = now + resolve_timeout, True
    labels = {_utf8(name): _utf8(value) for name, value in alert.labels if value}
    annotations = {_utf8(name): _utf8(value) for name, value in alert.annotations}
    url = _utf8(alert.generator_url)
    return StoredAlert(labels, annotations, alert.starts_at, ends_at, url, now, is_timeout, is_own=is_own)


def _utf8(text: str) -> str:
    """Without bytes that are not UTF-8, which a label of a scrape target may have: JSON cannot hold them."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _compare(first: Mapping[str, str], second: Mapping[str, str]) -> int:
    for name in ("job", "instance"):
        one, other = first.get(name), second.get(name)
        if one != other:
            if one is None or other is None:
                return 1 if one is None else -1  # an alert without the label comes last
            return -1 if one < other else 1
    if len(first) != len(second):
        return len(first) - len(second)
    for name in sorted({*first, *second}):
        if name not in first or name not in second:
            return -1 if name not in first else 1
        if first[name] != second[name]:
            return -1 if first[name] < second[name] else 1
    return 0


_label_order = cmp_to_key(_compare)


def message_order(alert: StoredAlert) -> Any:
    """The sort key of alerts in a message: job, instance, then the labels."""
    return _label_order(alert.labels)


def for_clients(limit: int) -> int:
    """What is left of a limit for the alerts that clients send."""
    return limit - limit // 4


class AlertStore:
    """Not for several threads at once."""

    def __init__(self, *, max_alerts: int) -> None:
        self._alerts: dict[str, StoredAlert] = {}
        self._max_alerts = max_alerts
        self._weight = 0
        self._client_weight = 0
        """Of the alerts that clients sent."""
        self._swept_at = float("-inf")

    def __len__(self) -> int:
        return len(self._alerts)

    def __iter__(self) -> Iterator[StoredAlert]:
        return iter(self._alerts.values())

    def put(self, alert: StoredAlert, now: float) -> StoredAlert | None:
        """The alert as it is kept, merged with what was known of it; None if there is no room for a new one."""
        if not self._has_room(alert):
            if (
                not self._swept_at <= now < self._swept_at + SWEEP_SECONDS
            ):  # not for each of 10,000 in a request
                self.forget_resolved(now)
            if not self._has_room(alert):
                LIMITS_REACHED.count("max_alerts")
                return None
        known = self._alerts.get(alert.fingerprint)
        if known is not None:
            self._count(known, -1)
            # An alert of our own stays one when a client sends it too.
            alert = replace(alert, is_own=alert.is_own or known.is_own)
        self._count(alert, 1)
        if known is not None and known.overlaps(alert):
            alert = known.merged_into(alert, now)
        self._alerts[alert.fingerprint] = alert
        return alert

    def _has_room(self, alert: StoredAlert) -> bool:
        known = self._alerts.get(alert.fingerprint)
        more = alert.weight - (0 if known is None else known.weight)
        is_own = alert.is_own or (known is not None and known.is_own)
        is_within = self._weight + more <= self._max_alerts
        return more <= 0 or (
            is_within and (is_own or self._client_weight + more <= for_clients(self._max_alerts))
        )

    def _count(self, alert: StoredAlert, sign: int) -> None:
        self._weight += sign * alert.weight
        self._client_weight += 0 if alert.is_own else sign * alert.weight

    def forget_resolved(self, now: float) -> None:
        self._alerts = {key: alert for key, alert in self._alerts.items() if not alert.is_resolved(now)}
        self._swept_at = now
        self._weight = self._client_weight = 0
        for alert in self._alerts.values():
            self._count(alert, 1)
