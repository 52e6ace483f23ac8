"""Reads rule files as Prometheus does: strict YAML in, `GroupSpec`s out, or every mistake of all files at once.

A message is `FILE: LINE:COLUMN: group "g", rule N, "name": …`, as promtool writes it. Where Prometheus names
no position (labels, templates) or 0:0 (a missing key), the position of the label or of the rule is given. Of
several documents in one file only the first is read.
"""

from __future__ import annotations

import difflib
import glob
import logging
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuscope.base.config_values import parse_config_duration
from gpuscope.base.errors import UsageError
from gpuscope.base.yaml_file import (
    MAX_NUMBER_CHARACTERS,
    Place,
    YamlMapping,
    one_line,
    parse_first_document,
    read_yaml_text,
    shown,
)
from gpuscope.history.promql import BadQueryError
from gpuscope.history.promql.ast_json import describe
from gpuscope.history.promql.formatting import to_text
from gpuscope.history.promql.labels import quote
from gpuscope.judge.rules.alert_templates import RuleTemplateError, TemplateExpander
from gpuscope.judge.rules.rule_spec import GroupSpec, RuleSpec
from gpuscope.judge.rules.shipped.rule_files import group_text, rollup_groups, shipped_groups
from gpuscope.model.series import Labels

log = logging.getLogger("gpuscope")

FILE_KEYS = ("groups",)
GROUP_KEYS = ("name", "interval", "query_offset", "limit", "rules", "labels")
RULE_KEYS = ("record", "alert", "expr", "for", "keep_firing_for", "labels", "annotations")


class RuleFileError(UsageError):
    """A rule file with mistakes; `mistakes` has a line for each, with file, line and column."""

    def __init__(self, mistakes: Sequence[str]) -> None:
        super().__init__("\n".join(mistakes))
        self.mistakes = tuple(mistakes)


@dataclass(slots=True)
class _Mistakes:
    file: str
    found: list[str] = field(default_factory=list)

    def add(self, place: Place, text: str) -> None:
        self.found.append(one_line(f"{self.file}: {place[0]}:{place[1]}: {text}"))


def load_rule_file(path: str, interval_ns: int, templates: TemplateExpander) -> tuple[GroupSpec, ...]:
    """The groups of one file; `interval_ns` is for groups without one. Raises RuleFileError."""
    try:
        text = read_yaml_text(Path(path))
        document, more = parse_first_document(text, path)
    except UsageError as error:
        raise RuleFileError([str(error)]) from None
    if more:
        log.warning("%s: only the first of several YAML documents is read", path)
    return read_groups(document, path, interval_ns, templates)


def read_groups(
    document: object, file: str, interval_ns: int, templates: TemplateExpander
) -> tuple[GroupSpec, ...]:
    mistakes = _Mistakes(file)
    reader = _GroupReader(mistakes, interval_ns, templates)
    groups = reader.read(document)
    if mistakes.found:
        raise RuleFileError(mistakes.found)
    return groups


class _GroupReader:
    def __init__(self, mistakes: _Mistakes, interval_ns: int, templates: TemplateExpander) -> None:
        self._mistakes = mistakes
        self._interval_ns = interval_ns
        self._templates = templates

    def read(self, document: object) -> tuple[GroupSpec, ...]:
        if document is None:
            return ()
        if not isinstance(document, YamlMapping):
            self._mistakes.add((1, 1), "a rule file is a mapping with the key groups")
            return ()
        self._check_keys(document, FILE_KEYS, "a rule file")
        groups: list[GroupSpec] = []
        names: set[str] = set()
        for entry in self._mappings(document, "groups", "group"):
            group = self._group(entry)
            if group.name in names:
                place = _start(entry)
                self._mistakes.add(place, f"groupname: {quote(group.name)} is repeated in the same file")
            names.add(group.name)
            groups.append(group)
        return tuple(groups)

    def _group(self, entry: YamlMapping) -> GroupSpec:
        self._check_keys(entry, GROUP_KEYS, "a group")
        name = self._text(entry, "name")
        if not name:
            self._mistakes.add(_start(entry), "Groupname must not be empty")
        labels = self._pairs(entry, "labels", "")
        entries = self._mappings(entry, "rules", "rule")
        rules = [self._rule(rule, name, number, labels) for number, rule in enumerate(entries, 1)]
        offset = self._duration(entry, "query_offset") if entry.get("query_offset") is not None else None
        return GroupSpec(
            name=name,
            file=self._mistakes.file,
            interval_ns=self._duration(entry, "interval") or self._interval_ns,
            rules=tuple(rules),
            query_offset_ns=offset,
            limit=self._limit(entry),
        )

    def _rule(self, entry: YamlMapping, group: str, number: int, group_labels: dict[str, str]) -> RuleSpec:
        self._check_keys(entry, RULE_KEYS, "a rule")
        alert, record = self._text(entry, "alert"), self._text(entry, "record")
        where = f"group {quote(group)}, rule {number}, {quote(alert or record)}: "

        def wrong(place: Place, why: str) -> None:
            self._mistakes.add(place, where + why)

        if bool(alert) == bool(record):
            only = "only one of 'record' and 'alert' must be set"
            wrong(_value_place(entry, "record"), only if alert else "one of 'record' or 'alert' must be set")
        expression = self._expression(entry, wrong)
        for_ns, keep_ns = self._duration(entry, "for"), self._duration(entry, "keep_firing_for")
        labels = self._pairs(entry, "labels", where)
        annotations = self._pairs(entry, "annotations", where)
        if record:
            given = {"annotations": annotations, "for": for_ns, "keep_firing_for": keep_ns}
            self._check_recording(entry, record, given, wrong)
        if alert:
            self._check_templates(entry, alert, wrong)
        merged = {**group_labels, **labels}
        return RuleSpec(
            name=alert or record,
            is_alert=bool(alert),
            expression=expression,
            labels=_sorted(merged.items()),
            annotations=_sorted((name, value) for name, value in annotations.items()),
            for_ns=for_ns,
            keep_firing_for_ns=keep_ns,
            line=_start(entry)[0],
        )

    def _expression(self, entry: YamlMapping, wrong: Callable[[Place, str], None]) -> str:
        text = self._text(entry, "expr")
        if not text:
            wrong(_value_place(entry, "expr"), "field 'expr' must be set in rule")
            return ""
        try:
            return canonical_expression(text)
        except BadQueryError as error:
            wrong(_value_place(entry, "expr"), f"could not parse expression: {error}")
            return text

    def _check_recording(
        self, entry: YamlMapping, record: str, given: dict[str, object], wrong: Callable[[Place, str], None]
    ) -> None:
        place = _value_place(entry, "record")
        for key, value in given.items():
            if value:
                wrong(entry.places.get(key, place), f"invalid field '{key}' in recording rule")
        if "{" in record or "}" in record:
            wrong(place, f"braces present in the recording rule name; should it be in expr?: {record}")

    def _check_templates(self, entry: YamlMapping, alert: str, wrong: Callable[[Place, str], None]) -> None:
        for key, kind in (("labels", "label"), ("annotations", "annotation")):
            table = entry.get(key)
            if not isinstance(table, YamlMapping):
                continue
            for name, text in table.items():
                if not isinstance(text, str):
                    continue  # empty, or a mistake that `_pairs` names
                try:
                    self._templates.parse(text, f"__alert_{alert}")
                except RuleTemplateError as error:
                    wrong(table.value_places[name], f"{kind} {quote(name)}: {error}")

    def _pairs(self, entry: YamlMapping, key: str, where: str) -> dict[str, str]:
        """Labels or annotations: names and texts."""
        table = entry.get(key)
        if table is None:
            return {}
        if not isinstance(table, YamlMapping):
            self._mistakes.add(entry.places[key], f"{where}{key} must be a mapping of names to texts")
            return {}
        kind = "annotation" if key == "annotations" else "label"
        for name, value in table.items():
            if isinstance(value, (dict, list)):
                self._mistakes.add(table.places[name], f"{where}{kind} {quote(name)} must have a text")
            if name == "__name__" and key == "labels":
                self._mistakes.add(table.places[name], f"{where}invalid label name: {name}")
        return {name: value if isinstance(value, str) else "" for name, value in table.items()}

    def _mappings(self, entry: YamlMapping, key: str, kind: str) -> list[YamlMapping]:
        entries = entry.get(key)
        if entries is None:
            return []
        if not isinstance(entries, list):
            self._mistakes.add(entry.places[key], f"{key} must be a list; put '- ' before each {kind}")
            return []
        for number, item in enumerate(entries, 1):
            if item is not None and not isinstance(item, YamlMapping):  # an empty entry is left out, as there
                self._mistakes.add(_value_place(entry, key), f"{kind} {number} must be a mapping")
        return [item for item in entries if isinstance(item, YamlMapping)]

    def _text(self, entry: YamlMapping, key: str) -> str:
        value = entry.get(key)
        if isinstance(value, (dict, list)):
            self._mistakes.add(entry.places[key], f"{key} must be a text")
            return ""
        return value or ""

    def _duration(self, entry: YamlMapping, key: str) -> int:
        value = entry.get(key)
        if value is None:
            return 0
        try:
            return round(parse_config_duration(value) * 1000) * 1_000_000
        except ValueError as error:
            self._mistakes.add(_value_place(entry, key), f"{key}: {error}")
            return 0

    def _limit(self, entry: YamlMapping) -> int:
        """0 is no limit, and so is a negative number, as in Prometheus."""
        key = "limit"
        value = entry.get(key)
        if value is None:
            return 0
        number = None if key in entry.quoted else _go_integer(str(value))
        if number is None:
            why = "is not a whole number" + (" but a text; remove the quotes" if key in entry.quoted else "")
            self._mistakes.add(_value_place(entry, key), f"{key}: {value!r} {why}")
        return max(0, number or 0)

    def _check_keys(self, entry: YamlMapping, known: Sequence[str], kind: str) -> None:
        for key in entry:
            if key not in known:
                near = difflib.get_close_matches(key, known, 1)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
                self._mistakes.add(entry.places[key], f"{kind} has no key {shown(key)}; {hint}")


def canonical_expression(text: str) -> str:
    """The parsed expression as Prometheus prints it, on one line."""
    try:
        return to_text(describe(text, durations=True))
    except RecursionError as error:
        raise BadQueryError("the query is nested too deeply") from error


def _go_integer(text: str) -> int | None:
    """A number as Go's YAML reads it into an integer: 1_000, 0x10, 017 (octal), and 1.5, which becomes 1."""
    digits = text.replace("_", "")
    if len(digits) > MAX_NUMBER_CHARACTERS or not digits.isascii():
        return None
    octal = re.fullmatch(r"([+-]?)0([0-7]+)", digits)
    try:
        number = int(f"{octal[1]}0o{octal[2]}" if octal else digits, 0)
    except ValueError:
        is_float = re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", digits, re.IGNORECASE)
        if not is_float or not math.isfinite(float(digits)):
            return None
        number = math.trunc(float(digits))
    return number if -(2**63) <= number < 2**63 else None


def _sorted(pairs: Iterable[tuple[str, str]]) -> Labels:
    return tuple(sorted(pairs))


def _start(entry: YamlMapping) -> Place:
    return min(entry.places.values(), default=(0, 0))


def _value_place(entry: YamlMapping, key: str) -> Place:
    return entry.value_places.get(key) or _start(entry)


@dataclass(frozen=True, slots=True)
class RuleFiles:
    """Patterns of rule files. `required` names the flag whose files must exist; "" if none need to."""

    patterns: tuple[str, ...] = ()
    required: str = ""

    def find(self) -> list[str]:
        """The files, in the order of the patterns, each once."""
        files: dict[str, None] = {}
        for pattern in self.patterns:
            matches = sorted(glob.glob(pattern))  # noqa: PTH207 - the path as written decides evaluation times
            if not matches and self.required:
                raise UsageError(f"{self.required} {pattern}: no such file")
            files.update(dict.fromkeys(matches))
        return list(files)


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
    recording = [(group, rule) for group in groups for rule in group.rules if not rule.is_alert]
    if recording:
        group, rule = recording[0]
        more = f" and {len(recording) - 1} more" if len(recording) > 1 else ""
        raise UsageError(
            f"{group.file}, line {rule.line}: recording rule {rule.name}{more} cannot run here: samples cannot "
            f"be written to {engine}; run it there: `gpuscope render rules` writes files for that engine"
        )


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


# The rule groups that are evaluated by default, read as if they were files.
#
# `gpuscope up` evaluates the alerts; the roll-ups are evaluated wherever there is an embedded store. A group
# of a user's file that has the same name replaces the shipped one, and its slow part (`NAME-slow`) with it;
# an empty group switches it off.


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
