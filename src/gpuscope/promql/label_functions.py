"""label_replace and label_join: create labels from other labels.

A nested query can make a label ten times as long at each level. So the length of every new value is charged to
the budget before the value is created.
"""

from __future__ import annotations

import re
from typing import Any

from gpuscope.anchored_regex import compile_anchored
from gpuscope.promql import labels as label_sets
from gpuscope.promql.budget import Budget
from gpuscope.promql.frame import Frame
from gpuscope.promql.query_errors import ExecutionError
from gpuscope.series import Labels

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

    def change(labels: Labels) -> Labels:
        found = regex.fullmatch(label_sets.as_utf8(label_sets.get(labels, source)))
        if found is None:
            return labels
        groups = {part: found.group(part) or "" for part in parts if isinstance(part, int)}
        return _assign(labels, target, "", [groups[p] if isinstance(p, int) else p for p in parts], budget)

    return frame.relabel(change, budget).merged()


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

    def change(labels: Labels) -> Labels:
        by_name = dict(labels)
        return _assign(labels, target, separator, [by_name.get(source, "") for source in sources], budget)

    return frame.relabel(change, budget).merged()


def _assign(labels: Labels, target: str, separator: str, parts: list[str], budget: Budget) -> Labels:
    """Set `target` to the joined parts; charge the budget before joining them."""
    length = sum(map(len, parts)) + len(separator) * max(0, len(parts) - 1)
    budget.charge_labels(length, is_ascii=separator.isascii() and all(map(str.isascii, parts)))
    return label_sets.assign(labels, target, separator.join(parts))


def check_label_name(name: str, message: str) -> None:
    """Raise if the name is empty or not UTF-8: Prometheus 3 allows any other text."""
    if not name or not label_sets.is_utf8(name):
        raise ExecutionError(message.format(name))
