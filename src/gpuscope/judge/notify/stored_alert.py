"""An alert as the notifier keeps it: labels as a dictionary, its fingerprint, and when it was last updated.

Times are seconds since the epoch. `ends_at` is always set: an alert without an end gets one `resolve_timeout`
after its last update (`is_timeout`), and it is resolved as soon as that time has passed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cmp_to_key, lru_cache
from typing import Any

from gpuscope.history.promql.labels import quote
from gpuscope.judge.rules.alert import Alert
from gpuscope.model.series import Labels

_FNV_OFFSET, _FNV_PRIME, _MASK = 0xCBF29CE484222325, 0x100000001B3, (1 << 64) - 1
_SEPARATOR = b"\xff"
TEXT_OF_ONE_ALERT = 2048
"""An alert with more text counts as several."""
MAX_CACHED_FINGERPRINTS = 16_384
"""The same alerts come again with every resend."""


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
