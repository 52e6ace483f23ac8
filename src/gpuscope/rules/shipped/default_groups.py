"""The groups that `gpuscope up` evaluates without being asked, read as if they were files.

A group of a user's file that has the same name replaces the shipped one; an empty group switches it off.
"""

from __future__ import annotations

from collections.abc import Iterable

from gpuscope.rules.interfaces import TemplateExpander
from gpuscope.rules.rule_file import read_groups
from gpuscope.rules.rule_spec import GroupSpec
from gpuscope.rules.shipped.rule_files import group_text, shipped_groups
from gpuscope.yaml_file import parse_first_document


def with_default_groups(
    groups: Iterable[GroupSpec], interval_ns: int, templates: TemplateExpander
) -> tuple[GroupSpec, ...]:
    own = tuple(groups)
    replaced = {group.name for group in own}
    default: list[GroupSpec] = []
    for shipped in shipped_groups():
        if shipped.is_default and shipped.name not in replaced:
            file = f"gpuscope/{shipped.name}.yml"
            document, _ = parse_first_document(group_text(shipped), file)
            default += read_groups(document, file, interval_ns, templates)
    return (*own, *default)
