from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.scrape.relabel import ACTIONS, RelabelRule, relabel

NAMES = st.sampled_from(["a", "b", "c", "job", "__address__", "__meta_x", "instance"])
VALUES = st.sampled_from(["", "1", "x1y", "host:9400", "Größe", "a;b", "line\nbreak", "$1"])
LABELS = st.dictionaries(NAMES, VALUES, max_size=6)
REGEXES = st.sampled_from(["(.*)", "(.+)", "x(.)y", "(?P<w>[a-z]+).*", "a|b", "", "(.*);(.*)", "__meta_(.+)"])
TEMPLATES = st.sampled_from(["$1", "${1}x", "$$", "$2", "${w}", "plain", "", "a$", "$1$1", "${1", "$nosuch"])


@st.composite
def rules(draw: st.DrawFn) -> RelabelRule:
    action = draw(st.sampled_from(ACTIONS))
    return RelabelRule(
        action=action,
        source_labels=tuple(draw(st.lists(NAMES, max_size=2))),
        separator=draw(st.sampled_from([";", "", "-"])),
        regex=draw(REGEXES),
        modulus=draw(st.integers(1, 10)),
        target_label=draw(st.sampled_from(["a", "new", "${1}_x"])) if action == "replace" else draw(NAMES),
        replacement=draw(TEMPLATES),
    )


@pytest.mark.parametrize(
    ("rule", "before", "after"),
    [
        (
            RelabelRule(source_labels=("__address__",), regex="([^:]+):.*", target_label="host"),
            {"__address__": "n1:9400"},
            {"__address__": "n1:9400", "host": "n1"},
        ),
        (RelabelRule(target_label="env", replacement="lab"), {}, {"env": "lab"}),
        (RelabelRule(source_labels=("a",), target_label="a", replacement=""), {"a": "1"}, {}),
        (RelabelRule(source_labels=("a",), regex="nothing", target_label="b"), {"a": "1"}, {"a": "1"}),
        (RelabelRule(source_labels=("a", "b"), target_label="c"), {"a": "1"}, {"a": "1", "c": "1;"}),
        (RelabelRule("keep", ("a",), regex="1|2"), {"a": "1"}, {"a": "1"}),
        (RelabelRule("keep", ("a",), regex="1|2"), {"a": "12"}, None),
        (RelabelRule("drop", ("a",), regex="1.*"), {"a": "12"}, None),
        (RelabelRule("drop", ("nosuch",), regex=""), {"a": "12"}, None),
        (RelabelRule("keepequal", ("a",), target_label="b"), {"a": "1", "b": "1"}, {"a": "1", "b": "1"}),
        (RelabelRule("keepequal", ("a",), target_label="b"), {"a": "1", "b": "2"}, None),
        (RelabelRule("dropequal", ("a",), target_label="b"), {"a": "1", "b": "1"}, None),
        (
            RelabelRule("labelmap", regex="__meta_(.+)"),
            {"__meta_zone": "z"},
            {"__meta_zone": "z", "zone": "z"},
        ),
        (RelabelRule("labeldrop", regex="x.*"), {"xa": "1", "b": "2"}, {"b": "2"}),
        (RelabelRule("labelkeep", regex="x.*"), {"xa": "1", "b": "2"}, {"xa": "1"}),
        (RelabelRule("lowercase", ("a",), target_label="a"), {"a": "ÄB"}, {"a": "äb"}),
        (RelabelRule("uppercase", ("a",), target_label="b"), {"a": "x"}, {"a": "x", "b": "X"}),
        (RelabelRule("uppercase", ("a",), target_label="a"), {"a": "straße"}, {"a": "STRAßE"}),
        (RelabelRule("lowercase", ("a",), target_label="a"), {"a": "ΟΔΟΣ İ"}, {"a": "οδοσ i"}),
        (
            RelabelRule(
                source_labels=("a",), regex="(?P<w>.).*", target_label="${w}_x", replacement="$$${w}$9"
            ),
            {"a": "hi"},
            {"a": "hi", "h_x": "$h"},
        ),
    ],
)
def test_each_action(rule: RelabelRule, before: dict[str, str], after: dict[str, str] | None) -> None:
    assert relabel(before, [rule]) == after


def test_hashmod_equals_prometheus() -> None:
    rule = RelabelRule("hashmod", ("c",), modulus=1000, target_label="shard")
    changed = relabel({"c": "baz"}, [rule])
    assert changed is not None
    assert changed["shard"] == "976"


def test_a_wrong_regex_is_an_error() -> None:
    with pytest.raises(ValueError, match="not a regular expression"):
        RelabelRule(regex="(")


@given(LABELS, st.lists(rules(), max_size=4))
def test_no_empty_values_and_the_input_is_unchanged(labels: dict[str, str], some: list[RelabelRule]) -> None:
    before = dict(labels)
    changed = relabel(labels, some)
    assert labels == before
    assert changed is None or all(changed.values())


@given(LABELS, rules())
def test_keep_and_drop_change_nothing_else(labels: dict[str, str], rule: RelabelRule) -> None:
    if rule.action in ("keep", "drop", "keepequal", "dropequal"):
        assert relabel(labels, [rule]) in (None, {k: v for k, v in labels.items() if v})


@given(LABELS, st.lists(rules(), max_size=3), st.lists(rules(), max_size=3))
def test_rules_run_one_after_the_other(
    labels: dict[str, str], first: list[RelabelRule], second: list[RelabelRule]
) -> None:
    between = relabel(labels, first)
    assert relabel(labels, [*first, *second]) == (None if between is None else relabel(between, second))
