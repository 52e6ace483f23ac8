"""Rule files: what is read, and every mistake with its line and column."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.errors import UsageError
from gpuscope.base.yaml_file import parse_first_document
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.rule_file import (
    GROUP_KEYS,
    RULE_KEYS,
    RuleFileError,
    RuleFiles,
    canonical_expression,
    load_rule_file,
    load_rule_set,
    read_groups,
    refuse_recording_rules,
)
from gpuscope.judge.rules.rule_spec import SECOND_NS
from tests.rules.rig import LabelTemplates

MINUTE_NS = 60 * SECOND_NS


def load(folder: Path, text: str) -> object:
    path = folder / "r.yml"
    path.write_text(text)
    return load_rule_file(str(path), MINUTE_NS, LabelTemplates())


def mistakes(folder: Path, text: str) -> list[str]:
    with pytest.raises(RuleFileError) as caught:
        load(folder, text)
    return [line.removeprefix(f"{folder}/r.yml: ") for line in caught.value.mistakes]


def test_a_file_with_every_key(tmp_path: Path) -> None:
    text = """
groups:
- name: g
  interval: 1m30s
  query_offset: 5s
  limit: 7
  labels: {team: gpu, tier: 1}
  rules:
  - {record: a:b, expr: 'sum(x{})  by (y)', labels: {tier: rule, gone: ""}}
  - alert: A
    expr: up{} == 0
    for: 5m
    keep_firing_for: 1h
    labels: {severity: "{{ $value }}"}
    annotations: {summary: text}
- {name: empty}
"""
    path = tmp_path / "r.yml"
    path.write_text(text)
    group, empty = load_rule_file(str(path), MINUTE_NS, LabelTemplates())
    assert (group.interval_ns, group.query_offset_ns, group.limit) == (90 * SECOND_NS, 5 * SECOND_NS, 7)
    record, alert = group.rules
    assert record.expression == "sum by (y) (x)"
    assert record.labels == (("gone", ""), ("team", "gpu"), ("tier", "rule"))
    assert alert.labels == (("severity", "{{ $value }}"), ("team", "gpu"), ("tier", "1"))
    assert (alert.for_ns, alert.keep_firing_for_ns, alert.line) == (300 * SECOND_NS, 3600 * SECOND_NS, 10)
    assert (empty.interval_ns, empty.query_offset_ns, empty.rules) == (MINUTE_NS, None, ())


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("{expr: up}", '4:6: group "g", rule 1, "": one of \'record\' or \'alert\' must be set'),
        ("{record: a, alert: b, expr: up}", "4:14: group \"g\", rule 1, \"b\": only one of 'record'"),
        ("{alert: a}", "4:6: group \"g\", rule 1, \"a\": field 'expr' must be set in rule"),
        ("{alert: a, expr: 'sum('}", '4:22: group "g", rule 1, "a": could not parse expression: parse error'),
        ("{record: 'a{b}', expr: up}", "4:14: group \"g\", rule 1, \"a{b}\": braces present"),
        ("{record: a, expr: up, for: 1m}", "4:27: group \"g\", rule 1, \"a\": invalid field 'for'"),
        ("{alert: a, expr: up, for: 5}", "4:31: for: '5' is not a duration"),
        ("{alert: a, expr: up, labels: {__name__: x}}", "4:35: group \"g\", rule 1, \"a\": invalid label name"),
        ("{alert: a, expr: up, labels: {x: '{{'}}", '4:38: group "g", rule 1, "a": label "x": template'),
        ("{alert: a, expr: up, annotation: {}}", "4:26: a rule has no key annotation; did you mean annot"),
        ("{alert: [a], expr: up}", "4:6: alert must be a text"),
        ("3", "4:3: rule 1 must be a mapping"),
    ],
)  # fmt: skip
def test_a_mistake_has_a_position(rule: str, message: str, tmp_path: Path) -> None:
    found = mistakes(tmp_path, f"groups:\n- name: g\n  rules:\n  - {rule}\n")
    assert any(line.startswith(message) for line in found), found


def test_all_mistakes_of_a_set_are_listed_at_once(tmp_path: Path) -> None:
    for name in ("a.yml", "b.yml"):
        (tmp_path / name).write_text("groups: [{name: g, rules: [{alert: x}]}, {name: g}, {name: ''}]\n")
    files = RuleFiles((str(tmp_path / "*.yml"),)).find()
    with pytest.raises(RuleFileError) as caught:
        load_rule_set(files, MINUTE_NS, LabelTemplates())
    assert len(caught.value.mistakes) == 6
    assert "is repeated in the same file" in str(caught.value)


def test_only_the_first_document_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert load(tmp_path, "groups: []\n---\nnonsense: [\n") == ()
    assert "only the first" in caplog.text
    assert load(tmp_path, "") == ()


@pytest.mark.parametrize("text", ["[1]", "groups: 3", "groups: {a: b}", "groups: [", "\t", "x: 1"])
def test_what_is_no_rule_file_is_refused(text: str, tmp_path: Path) -> None:
    assert mistakes(tmp_path, text)


def test_a_file_of_the_command_line_must_exist(tmp_path: Path) -> None:
    assert RuleFiles((str(tmp_path / "none.yml"),)).find() == []
    with pytest.raises(UsageError, match=r"--rules .*none\.yml: no such file"):
        RuleFiles((str(tmp_path / "none.yml"),), "--rules").find()


def test_recording_rules_are_refused_over_another_engine(tmp_path: Path) -> None:
    text = "groups: [{name: g, rules: [{alert: a, expr: up}, {record: b, expr: up}]}]"
    path = tmp_path / "r.yml"
    path.write_text(text)
    groups = load_rule_file(str(path), MINUTE_NS, LabelTemplates())
    with pytest.raises(UsageError, match=r"recording rule b cannot run here.*gpuscope render rules"):
        refuse_recording_rules(groups, "http://engine:9090")


def test_the_canonical_expression_is_one_line() -> None:
    long = " or ".join(f"metric_with_a_long_name_{number}{{ }}" for number in range(10))
    assert canonical_expression(long) == long.replace("{ }", "")


@given(st.text(max_size=60), st.text(max_size=60))
def test_no_text_breaks_the_reader(name: str, expression: str) -> None:
    document, _ = parse_first_document("groups: [{name: n, rules: [{alert: a, expr: e}]}]", "f")
    assert isinstance(document, dict)
    document["groups"][0]["name"] = name
    document["groups"][0]["rules"][0]["expr"] = expression
    found: tuple[str, ...] = ()
    try:
        read_groups(document, "f", MINUTE_NS, LabelTemplates())
    except RuleFileError as error:
        found = error.mistakes
    assert all(line.startswith("f: ") and "\n" not in line for line in found)


VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-9, 9), st.floats(), st.text(max_size=5), st.just("{{ x")),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=5), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(
    st.dictionaries(st.sampled_from((*GROUP_KEYS, "other")), VALUES, max_size=3),
    st.dictionaries(st.sampled_from((*RULE_KEYS, "other")), VALUES, max_size=6),
)
def test_no_value_breaks_the_reader(group: dict[str, object], rule: dict[str, object]) -> None:
    text = json.dumps({"groups": [{"rules": [rule], **group}]})
    message = "f: "
    try:
        document, _ = parse_first_document(text, "f")
        read_groups(document, "f", MINUTE_NS, load_templates())
    except UsageError as error:
        message = str(error)
    assert message.startswith("f: ")
