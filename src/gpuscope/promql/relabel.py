"""label_replace and label_join: new labels from old ones. Values and times are not looked at."""

from __future__ import annotations

import re
from typing import Any

from gpuscope.promql import labels as label_sets
from gpuscope.promql.errors import ExecutionError
from gpuscope.promql.frame import Frame
from gpuscope.promql.regex import compile_whole
from gpuscope.store.series import Labels

# Go's template: $1, $name or ${name}; $$ is a dollar. The name is as long as it can be.
_REFERENCE = re.compile(r"\$(?:(\$)|\{([^{}]*)\}|([0-9A-Za-z_]+))")


def label_replace(frame: Frame, target: str, template: str, source: str, pattern: str) -> Frame:
    """Where the whole value of `source` matches, `target` becomes the filled-in template."""
    try:
        regex = compile_whole(pattern)
    except ValueError as error:
        raise ExecutionError(f"invalid regular expression in label_replace(): {pattern}") from error
    _check_name(target, "destination", "label_replace")

    def change(labels: Labels) -> Labels:
        found = regex.fullmatch(label_sets.get(labels, source))
        return labels if found is None else label_sets.assign(labels, target, _expand(template, found))

    return frame.relabelled(change).merged()


def _expand(template: str, found: Any) -> str:
    names = found.re.groupindex

    def value(reference: re.Match[str]) -> str:
        if reference.group(1):
            return "$"
        name = reference.group(2) if reference.group(2) is not None else reference.group(3)
        if name.isascii() and name.isdigit():
            number = int(name)
            return found.group(number) or "" if number <= found.re.groups else ""
        return found.group(names[name]) or "" if name in names else ""

    return _REFERENCE.sub(value, template)


def label_join(frame: Frame, target: str, separator: str, sources: list[str]) -> Frame:
    for source in sources:
        _check_name(source, "source", "label_join")
    _check_name(target, "destination", "label_join")

    def change(labels: Labels) -> Labels:
        joined = separator.join(label_sets.get(labels, source) for source in sources)
        return label_sets.assign(labels, target, joined)

    return frame.relabelled(change).merged()


def _check_name(name: str, role: str, function: str) -> None:
    # Since Prometheus 3 any text is a label name; only nothing is not.
    if not name:
        raise ExecutionError(f"invalid {role} label name in {function}(): {name}")
