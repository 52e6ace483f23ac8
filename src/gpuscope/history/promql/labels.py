"""Operations on label sets. Label sets are sorted by name and contain no empty values."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from gpuscope.base.anchored_regex import compile_anchored
from gpuscope.base.go_quote import quote as quote
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.frame import Frame
from gpuscope.history.promql.syntax import ExecutionError
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


# label_replace and label_join: create labels from other labels.
#
# A nested query can make a label ten times as long at each level. So the length of every new value is charged
# to the budget before the value is created.

# Go's template syntax: $1, $name or ${name}; $$ is a dollar sign. A name extends as far as possible.
_REFERENCE = re.compile(r"\$(?:(\$)|\{([^{}]*)\}|([0-9A-Za-z_]+))")

_Template = list[str | int]
"""Texts and group numbers, in order."""


def label_replace(frame: Frame, target: str, template: str, source: str, pattern: str, budget: Budget) -> Frame:
    """Set `target` to the expanded template where the whole value of `source` matches."""
    try:
        regex = compile_anchored(pattern)
    except ValueError as error:
        raise ExecutionError(f"invalid regular expression in label_replace(): {pattern}") from error
    check_label_name(target, "invalid destination label name in label_replace(): {}")
    parts = _parse_template(template, regex)

    def value_of(labels: Labels, count: int) -> str | None:
        match = regex.fullmatch(as_utf8(get(labels, source)))
        if match is None:
            return None
        groups = {part: match.group(part) or "" for part in parts if isinstance(part, int)}
        return _join("", [groups[part] if isinstance(part, int) else part for part in parts], count, budget)

    return frame.set_label(target, [source], value_of, budget).merged()


def _parse_template(template: str, regex: Any) -> _Template:
    """Parse a template; references to groups that do not exist are empty and are left out."""
    parts: _Template = []
    end = 0
    for reference in _REFERENCE.finditer(template):
        parts.append(template[end : reference.start()])
        end = reference.end()
        dollar, braced, bare = reference.groups()
        name = bare if braced is None else braced
        if dollar:
            parts.append("$")
        elif name.isascii() and name.isdigit():
            if len(name) < 9 and int(name) <= regex.groups:
                parts.append(int(name))
        elif name in regex.groupindex:
            parts.append(regex.groupindex[name])
    parts.append(template[end:])
    return [part for part in parts if part != ""]


def label_join(frame: Frame, target: str, separator: str, sources: list[str], budget: Budget) -> Frame:
    for source in sources:
        check_label_name(source, "invalid source label name in label_join(): {}")
    check_label_name(target, "invalid destination label name in label_join(): {}")

    def value_of(labels: Labels, count: int) -> str:
        by_name = dict(labels)
        return _join(separator, [by_name.get(source, "") for source in sources], count, budget)

    return frame.set_label(target, sources, value_of, budget).merged()


def _join(separator: str, parts: list[str], count: int, budget: Budget) -> str:
    """Join the parts; first charge the budget for each of the series: the encoded result repeats the text."""
    length = sum(map(len, parts)) + len(separator) * max(0, len(parts) - 1)
    is_ascii = separator.isascii() and all(map(str.isascii, parts))
    budget.charge_labels(length, is_ascii=is_ascii)
    if count > 1:
        budget.charge_labels(length * (count - 1), is_ascii=is_ascii, sets=count - 1)
    return separator.join(parts)


def check_label_name(name: str, message: str) -> None:
    """Raise if the name is empty or not UTF-8: Prometheus 3 allows any other text."""
    if not name or not is_utf8(name):
        raise ExecutionError(message.format(name))
