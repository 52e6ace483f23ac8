"""Operations on label sets. Label sets are sorted by name and contain no empty values."""

from __future__ import annotations

from collections.abc import Collection

from gpuscope.base.go_quote import quote as quote
from gpuscope.model.series import Labels

METRIC_NAME = "__name__"
# Labels that identify a metric; they do not apply to a computed value.
IDENTITY = frozenset({METRIC_NAME, "__type__", "__unit__"})

MAX_SHOWN_CHARACTERS = 1_000
"""Per label in a message: a label may be as long as the query's budget allows."""
MAX_SHOWN_LABELS = 100


def get(labels: Labels, name: str) -> str:
    """Return the value; "" if the label is absent, which PromQL does not distinguish."""
    for key, value in labels:
        if key == name:
            return value
    return ""


def drop_name(labels: Labels) -> Labels:
    """Drop the metric name (and type and unit, if a store keeps them as labels)."""
    return tuple(pair for pair in labels if pair[0] not in IDENTITY)


def drop(labels: Labels, names: Collection[str]) -> Labels:
    return tuple(pair for pair in labels if pair[0] not in names)


def assign(labels: Labels, name: str, value: str) -> Labels:
    """Set `name` to `value`; an empty value removes the label."""
    others = [pair for pair in labels if pair[0] != name]
    if value:
        others.append((name, value))
        others.sort()
    return tuple(others)


def is_utf8(text: str) -> bool:
    """Python represents bytes that are not UTF-8 as lone surrogates."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def as_utf8(text: str) -> str:
    """Replace each byte that is not UTF-8 by the replacement character, as Go's regular expressions do."""
    return text if is_utf8(text) else text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def render(labels: Labels) -> str:
    """Format a series for messages; long texts are truncated."""
    inner = ", ".join(
        f"{truncate(k)}={quote(truncate(v))}" for k, v in labels[:MAX_SHOWN_LABELS] if k != METRIC_NAME
    )
    return f"{truncate(get(labels, METRIC_NAME))}{{{inner}}}"


def truncate(text: str) -> str:
    """Truncate a text for messages."""
    return text if len(text) <= MAX_SHOWN_CHARACTERS else f"{text[:MAX_SHOWN_CHARACTERS]}…"
