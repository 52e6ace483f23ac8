"""The rule files of a server: patterns in, all their groups out. One mistake refuses the whole set."""

from __future__ import annotations

import glob
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gpuscope.base.errors import UsageError
from gpuscope.judge.rules.interfaces import TemplateExpander
from gpuscope.judge.rules.rule_file import RuleFileError, load_rule_file
from gpuscope.judge.rules.rule_spec import GroupSpec


@dataclass(frozen=True, slots=True)
class RuleFiles:
    """Patterns of rule files. `required` names the flag whose files must exist; "" if none need to."""

    patterns: tuple[str, ...] = ()
    required: str = ""

    def find(self) -> list[str]:
        """The files, in the order of the patterns, each once."""
        found: dict[str, None] = {}
        for pattern in self.patterns:
            matches = sorted(glob.glob(pattern))  # noqa: PTH207 - the path as written decides evaluation times
            if not matches and self.required:
                raise UsageError(f"{self.required} {pattern}: no such file")
            found.update(dict.fromkeys(matches))
        return list(found)


def load_rule_set(files: Iterable[str], interval_ns: int, templates: TemplateExpander) -> tuple[GroupSpec, ...]:
    """Raises RuleFileError with the mistakes of all files."""
    groups: list[GroupSpec] = []
    mistakes: list[str] = []
    for file in files:
        try:
            groups += load_rule_file(file, interval_ns, templates)
        except RuleFileError as error:
            mistakes += error.mistakes
    if mistakes:
        raise RuleFileError(mistakes)
    return tuple(groups)


def refuse_recording_rules(groups: Sequence[GroupSpec], engine: str) -> None:
    """For a server over another engine, which cannot store samples."""
    found = [(group, rule) for group in groups for rule in group.rules if not rule.is_alert]
    if found:
        group, rule = found[0]
        more = f" and {len(found) - 1} more" if len(found) > 1 else ""
        raise UsageError(
            f"{group.file}, line {rule.line}: recording rule {rule.name}{more} cannot run here: samples cannot "
            f"be written to {engine}; run it there: `gpuscope render rules` writes files for that engine"
        )
