"""Checks rule files as `promtool check rules` does: mistakes, and duplicate rules as a lint finding."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.judge.rules.rule_spec import GroupSpec, RuleSpec
from gpuscope.model.series import Labels


def find_duplicates(groups: Sequence[GroupSpec]) -> list[RuleSpec]:
    """One rule of each set with the same name and labels: these rules would write the same series."""
    seen: dict[tuple[str, Labels], int] = {}
    duplicates: list[RuleSpec] = []
    for rule in sorted((rule for group in groups for rule in group.rules), key=lambda rule: rule.key):
        seen[rule.key] = seen.get(rule.key, 0) + 1
        if seen[rule.key] == 2:
            duplicates.append(rule)
    return duplicates


def duplicates_text(duplicates: Sequence[RuleSpec]) -> str:
    """promtool's message."""
    lines = [f"lint error {len(duplicates)} duplicate rule(s) found."]
    for rule in duplicates:
        lines += [f"Metric: {rule.name}", "Label(s):", *(f"\t{name}: {value}" for name, value in rule.labels)]
    return "\n".join([*lines, "Might cause inconsistency while recording expressions"])
