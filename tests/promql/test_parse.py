"""`parse` returns a tree or raises `BadQueryError` for any text; unsupported features are refused by name."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.history.promql import BadQueryError, UnsupportedError, parse
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.promql.parse import MAX_CACHED_CHARACTERS
from gpuscope.history.promql.syntax import (
    At,
    Binary,
    FunctionCall,
    MatrixSelector,
    Number,
    Subquery,
    VectorSelector,
)
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.model.series import Matcher, MatchOp
from tests.examples import examples

TOKENS = [
    *("sum", "topk", "by", "without", "on", "ignoring", "group_left", "offset", "bool", "and", "or", "unless"),
    *(
        "rate",
        "abs",
        "time",
        "label_replace",
        "quantile_over_time",
        "start()",
        "end()",
        "x",
        "foo:bar",
        "__name__",
    ),
    *(
        "(",
        ")",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "=",
        "!=",
        "=~",
        "!~",
        "==",
        "+",
        "-",
        "*",
        "/",
        "%",
        "^",
        "@",
        "<",
    ),
    *(
        "5m",
        "1h30m",
        "0s",
        "-1",
        "1e999",
        "0x",
        "NaN",
        "Inf",
        "1.5",
        "'a'",
        '"',
        '"(a"',
        "`",
        "#",
        "\n",
        "é",
        "\0",
    ),
]


REFUSE = """
import json, sys
from gpuscope.history.promql import BadQueryError, parse
for text in json.load(sys.stdin):
    try:
        parse(text)
    except BadQueryError:
        print("refused", flush=True)
"""


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.sampled_from(TOKENS), max_size=25).map(" ".join))
def test_any_tokens_parse_or_are_refused(text: str) -> None:
    _parse_or_refuse(text)


@settings(max_examples=examples(100), deadline=None)
@given(st.text(max_size=200))
def test_any_text_parses_or_is_refused(text: str) -> None:
    _parse_or_refuse(text)


def _parse_or_refuse(text: str) -> None:
    with contextlib.suppress(BadQueryError):
        parse(text)


def test_deep_nesting_is_an_error_and_does_not_end_the_process() -> None:
    texts = [
        "(" * 10_000,
        "(" * 10_000 + "1" + ")" * 10_000,
        "-" * 90_000 + "x",
        "x" + "^x" * 40_000,
        "x" + " or x" * 15_000,
        "sum(" * 5_000 + "x" + ")" * 5_000,
        "x" * 200_000,
        "'" + "\\n" * 49_000 + "'",
        '"' + '\\"' * 49_000,
        "1" + "\n#" * 49_000 + "\n+",
        "x" + " == bool 1" * 9_000,
    ]
    # In a separate process: a stack overflow of the parser would end the test process.
    command = [sys.executable, "-c", REFUSE]
    done = subprocess.run(command, input=json.dumps(texts), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "refused\n" * len(texts)


def test_operators_inside_strings_do_not_count() -> None:
    assert isinstance(parse('x{a=~"' + "(a+b)|" * 2_000 + '"}'), VectorSelector)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ('x{a="1" or b="2"}', "VictoriaMetrics"),
        ("limitk(2, x)", "limitk"),
        ("limit_ratio(0.1, x)", "limit_ratio"),
        ("sort_by_label(x, 'a')", "sort_by_label"),
        ("double_exponential_smoothing(x[5m], 0.1, 0.1)", "double_exponential_smoothing"),
        ("ts_of_max_over_time(x[5m])", "ts_of_max_over_time"),
        ("info(x)", "info"),
        ("x + fill(0) y", "fill"),
    ],
)
def test_experimental_features_are_refused_by_name(text: str, named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        parse(text)


@pytest.mark.parametrize(
    "text",
    ["x offset 99999999y", "x offset -99999999y", "x[99999999y]", "x[5m:99999999y]", "x{a=~'b{1,9999}'}"],
)
def test_values_out_of_range_are_bad_data(text: str) -> None:
    with pytest.raises(BadQueryError):
        parse(text)


@pytest.mark.parametrize(
    "text", ["", "sum(", "rate(x)", "x[0s]", "x[0.0001]", "{}", '{a=~".*"}', "1 == 2", "x @ 1e30"]
)
def test_invalid_queries_are_bad_data(text: str) -> None:
    with pytest.raises(BadQueryError) as caught:
        parse(text)
    assert caught.value.error_type == "bad_data"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "x[9e18]",
            "x[1e30]",
            "x[5m:1e30]",
            "x[18446744073709551616]",
            "x[0x7fffffffffffffff]",
            "x[ 1e30 # c\n]",
        ),
        *("x offset Inf", "x offset -NaN", "x offset +1e30", "and offset Inf", "x and y offset NaN"),
    ],
)
def test_a_duration_out_of_range_does_not_reach_the_library(
    text: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """The library would panic, which writes to stderr, or raise OverflowError."""
    with pytest.raises(BadQueryError, match="duration out of range"):
        parse(text)
    with pytest.raises(BadQueryError, match="duration out of range"):
        parse_selector(text)
    assert capfd.readouterr().err == ""


def test_a_selector_keeps_its_matchers_in_order() -> None:
    assert parse('x{a="1", b!="2", c=~"3", d!~"4"}') == VectorSelector(
        (
            Matcher("__name__", MatchOp.EQUAL, "x"),
            Matcher("a", MatchOp.EQUAL, "1"),
            Matcher("b", MatchOp.NOT_EQUAL, "2"),
            Matcher("c", MatchOp.REGEX, "3"),
            Matcher("d", MatchOp.NOT_REGEX, "4"),
        )
    )


@pytest.mark.parametrize(
    ("text", "offset_ms", "at"),
    [
        ("x offset 5m", 300_000, None),
        ("x offset -1h30m", -5_400_000, None),
        ("x @ 5.25", 0, 5_250),
        ("x @ 0", 0, 0),
        ("x @ start() offset 1ms", 1, "start"),
        ("x offset 1w @ end()", 604_800_000, "end"),
        ('x{a="@ -1"} @ 7', 0, 7_000),
    ],
)
def test_offset_and_at(text: str, offset_ms: int, at: At | None) -> None:
    tree = parse(text)
    assert isinstance(tree, VectorSelector)
    assert (tree.offset_ms, tree.at) == (offset_ms, at)


def test_durations_are_milliseconds() -> None:
    assert isinstance(ranged := parse("x[1m1s1ms]"), MatrixSelector)
    assert ranged.range_ms == 61_001
    assert isinstance(sub := parse("x[1d:]"), Subquery)
    assert (sub.range_ms, sub.step_ms) == (86_400_000, None)


def test_parentheses_affect_only_precedence() -> None:
    assert parse("((x))") == parse("x")
    tree = parse("(1 + 2) * 3")
    assert isinstance(tree, Binary)
    assert isinstance(tree.left, Binary)
    assert tree.right == Number(3.0)
    assert isinstance(parse("rate((x[5m]))"), FunctionCall)


def test_trees_are_cached_except_of_long_queries() -> None:
    assert parse("up + 1") is parse("up + 1")
    long = 'x{a="' + "y" * 10_000 + '"}'
    assert parse(long) == parse(long)
    assert parse(long) is not parse(long)


def test_the_trees_of_all_checks_are_cached() -> None:
    """They are evaluated every few seconds, and parsing the longest ones takes 20 ms."""
    expressions = [check.promql for check in CHECKS.values()]
    assert all(parse(one) is parse(one) for one in expressions)
    trees = {one: parse(one) for one in expressions if len(one) > MAX_CACHED_CHARACTERS}
    assert all(parse(one) is tree for one, tree in trees.items()), "there are more of them than are kept"
