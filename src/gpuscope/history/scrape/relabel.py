"""Relabelling as in Prometheus: takes labels, returns changed labels or None (dropped).

Rules apply in order. A regex must match the whole value; an empty value means that the label is absent. `$1` in
a replacement follows Go's template rules, not Python's.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import re2

from gpuscope.base.anchored_regex import compile_anchored

ACTIONS = (
    "replace", "keep", "drop", "keepequal", "dropequal", "hashmod", "labelmap", "labeldrop", "labelkeep",
    "lowercase", "uppercase",
)  # fmt: skip

# Go's template: $1, $name or ${name} with the longest possible name; $$ is a dollar, any other $ stays.
_REFERENCE = re.compile(r"\$(?:(\$)|\{(\w+)\}|(\w+))", re.ASCII)


def _compile(pattern: str) -> Any:
    try:
        return compile_anchored(pattern)
    except ValueError as error:
        raise ValueError(f"{pattern!r} is not a regular expression: {error}") from None


def expand(template: str, match: Any) -> str:
    """Expands a template with the groups of a match; an unknown or unmatched group is empty."""
    if "$" not in template:
        return template

    def fill(reference: re.Match[str]) -> str:
        dollar, braced, bare = reference.groups()
        if dollar:
            return "$"
        name = braced or bare
        try:
            return match.group(int(name) if name.isdigit() else name) or ""
        except (IndexError, KeyError, re2.error):
            return ""

    return _REFERENCE.sub(fill, template)


@dataclass(frozen=True, slots=True)
class RelabelRule:
    action: str = "replace"
    source_labels: tuple[str, ...] = ()
    separator: str = ";"
    regex: str = "(.*)"
    modulus: int = 0
    target_label: str = ""
    replacement: str = "$1"
    compiled: Any = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "compiled", _compile(self.regex))

    def source(self, labels: Mapping[str, str]) -> str:
        return self.separator.join([labels.get(name, "") for name in self.source_labels])


Labels = dict[str, str]
"""Changed in place while the rules run; no empty values."""


def relabel(labels: Mapping[str, str], rules: Sequence[RelabelRule]) -> Labels | None:
    """Returns the labels after all rules; None if a rule dropped them."""
    changed = {name: value for name, value in labels.items() if value != ""}
    for rule in rules:
        if not _APPLY[rule.action](rule, changed):
            return None
    return changed


def _replace(rule: RelabelRule, labels: Labels) -> bool:
    match = rule.compiled.fullmatch(rule.source(labels))
    if match is not None:
        target = expand(rule.target_label, match)
        if target:
            _set(labels, target, expand(rule.replacement, match))
    return True


def _set(labels: Labels, name: str, value: str) -> None:
    if value == "":
        labels.pop(name, None)
    else:
        labels[name] = value


def _keep(rule: RelabelRule, labels: Labels) -> bool:
    return rule.compiled.fullmatch(rule.source(labels)) is not None


def _drop(rule: RelabelRule, labels: Labels) -> bool:
    return not _keep(rule, labels)


def _keep_equal(rule: RelabelRule, labels: Labels) -> bool:
    return labels.get(rule.target_label, "") == rule.source(labels)


def _drop_equal(rule: RelabelRule, labels: Labels) -> bool:
    return not _keep_equal(rule, labels)


def _hashmod(rule: RelabelRule, labels: Labels) -> bool:
    # The last 8 bytes of an MD5, as in Prometheus: both must compute the same shard.
    digest = hashlib.md5(rule.source(labels).encode("utf-8", "surrogateescape"), usedforsecurity=False).digest()
    labels[rule.target_label] = str(int.from_bytes(digest[8:], "big") % rule.modulus)
    return True


def _label_map(rule: RelabelRule, labels: Labels) -> bool:
    for name, value in sorted(labels.items()):
        match = rule.compiled.fullmatch(name)
        if match is not None:
            target = expand(rule.replacement, match)
            if target:
                labels[target] = value
    return True


def _label_drop(rule: RelabelRule, labels: Labels) -> bool:
    for name in [name for name in labels if rule.compiled.fullmatch(name) is not None]:
        del labels[name]
    return True


def _label_keep(rule: RelabelRule, labels: Labels) -> bool:
    for name in [name for name in labels if rule.compiled.fullmatch(name) is None]:
        del labels[name]
    return True


# Go converts each letter on its own: ß stays, and a final sigma is not special.
def _lowercase(rule: RelabelRule, labels: Labels) -> bool:
    _set(labels, rule.target_label, "".join([char.lower()[0] for char in rule.source(labels)]))
    return True


def _uppercase(rule: RelabelRule, labels: Labels) -> bool:
    changed = [char.upper() if len(char.upper()) == 1 else char for char in rule.source(labels)]
    _set(labels, rule.target_label, "".join(changed))
    return True


_APPLY: dict[str, Callable[[RelabelRule, Labels], bool]] = {
    "replace": _replace,
    "keep": _keep,
    "drop": _drop,
    "keepequal": _keep_equal,
    "dropequal": _drop_equal,
    "hashmod": _hashmod,
    "labelmap": _label_map,
    "labeldrop": _label_drop,
    "labelkeep": _label_keep,
    "lowercase": _lowercase,
    "uppercase": _uppercase,
}
