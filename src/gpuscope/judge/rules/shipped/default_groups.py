"""The rule groups that are evaluated by default, read as if they were files.

`gpuscope up` evaluates the alerts; the roll-ups are evaluated wherever there is an embedded store.
A group of a user's file that has the same name replaces the shipped one, and its slow part (`NAME-slow`) with
it; an empty group switches it off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from gpuscope.base.yaml_file import parse_first_document
from gpuscope.judge.rules.alert_templates import TemplateExpander
from gpuscope.judge.rules.rule_file import read_groups
from gpuscope.judge.rules.rule_spec import GroupSpec
from gpuscope.judge.rules.shipped.rollup_rules import rollup_groups
from gpuscope.judge.rules.shipped.rule_files import group_text, shipped_groups


def with_default_groups(
    groups: Iterable[GroupSpec], interval_ns: int, templates: TemplateExpander
) -> tuple[GroupSpec, ...]:
    """With the alerts over gpuscope's own metrics."""
    texts = {
        shipped.name: group_text(shipped, "{{ externalURL }}")
        for shipped in shipped_groups()
        if shipped.is_default
    }
    return _with_groups(groups, texts, interval_ns, templates)


def with_rollups(
    groups: Iterable[GroupSpec], interval_ns: int, templates: TemplateExpander
) -> tuple[GroupSpec, ...]:
    """With the roll-ups that reports read."""
    texts = {name: f"groups:\n{text}" for name, text in rollup_groups().items()}
    return _with_groups(groups, texts, interval_ns, templates)


def _with_groups(
    groups: Iterable[GroupSpec], texts: Mapping[str, str], interval_ns: int, templates: TemplateExpander
) -> tuple[GroupSpec, ...]:
    own = tuple(groups)
    replaced = {group.name for group in own}
    default: list[GroupSpec] = []
    for name, text in texts.items():
        if name not in replaced:
            file = f"gpuscope/{name}.yml"
            document, _ = parse_first_document(text, file)
            specs = read_groups(document, file, interval_ns, templates)
            default += [spec for spec in specs if spec.name not in replaced]
    return (*own, *default)
