"""The JSON syntax tree of a query; the differential test compares it with that of Prometheus."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.history.promql import BadQueryError, format_query
from gpuscope.history.promql.ast_json import describe, has_selector, parse_selector
from gpuscope.history.promql.lexical import read_spelling
from gpuscope.history.store.series_pairs import predicate
from gpuscope.model.series import Matcher, MatchOp
from tests.examples import examples


def test_parentheses_and_order_are_kept() -> None:
    told = describe('((x{b="1",a="2"}))')
    assert told["type"] == told["expr"]["type"] == "parenExpr"
    assert [one["name"] for one in told["expr"]["expr"]["matchers"]] == ["b", "a", "__name__"]
    assert describe("sum by (b, a) (x)")["grouping"] == ["b", "a"]


@pytest.mark.parametrize(
    ("text", "signs", "durations"),
    [
        ("+x", "+", []), ("-+x", "-+", []), ("+1", "", [False]), ("x + +y", "+", []), ("x offset -5m", "", []),
        ("x @ -5 + 1h", "", [True]), ("x[5m] + 1", "", [False]), ("a + on (x) -b", "-", []),
        ("sum(x) by (a) - b", "", []),
        ("'+x' + +y", "+", []), ("x # + 5m\n + 5m", "", [True]), ("x{inf='1'} + Inf", "", [False]),
        ("2 ^ -x", "-", [False]),
        ("a * on (x) group_left -b", "-", []), ("a > bool -b", "-", []),
        ("x[5m:1m] offset 1h - 2", "", [False]),
    ],
)  # fmt: skip
def test_signs_and_durations_are_read_from_the_text(text: str, signs: str, durations: list[bool]) -> None:
    found = read_spelling(text)
    assert "".join(found.signs) == signs
    assert found.durations == durations
    assert len(found.text) == len(text)


@pytest.mark.parametrize("text", ["x offset 5m", "x[5m]", "(x)", "sum(x)", "1", "", "x{", "x @ 5", "x or y"])
def test_invalid_selectors(text: str) -> None:
    with pytest.raises(BadQueryError):
        parse_selector(text)


@pytest.mark.parametrize(
    ("text", "matchers"),
    [
        ("{}", []),
        ('{a=~".*",}', [Matcher("a", MatchOp.REGEX, ".*")]),
        (' { a="" } ', [Matcher("a", MatchOp.EQUAL, "")]),
        ("x", [Matcher("__name__", MatchOp.EQUAL, "x")]),
    ],
)
def test_a_selector_may_select_everything(text: str, matchers: list[Matcher]) -> None:
    assert parse_selector(text) == matchers


def test_matching() -> None:
    value = "ab"
    found = [predicate(Matcher("l", op, "a.*"))(value) for op in MatchOp]
    assert dict(zip(MatchOp, found, strict=True)) == {
        MatchOp.EQUAL: False, MatchOp.NOT_EQUAL: True, MatchOp.REGEX: True, MatchOp.NOT_REGEX: False,
    }  # fmt: skip


def test_which_queries_read_series() -> None:
    asked = ("1 + time()", "sum(rate(x[5m]))", "vector(1)", "1 > bool scalar(x)")
    assert [has_selector(describe(text)) for text in asked] == [False, True, False, True]


pieces = st.sampled_from(
    ["x", "+", "-", "(", ")", "5m", "1", "[5m]", "[5m:]", "{a='b'}", " by (a) ", "sum", "on (a)", "offset",
     "@", "'", '"', "#", ",",
     "inf", "bool", "==", "^", "topk(2,", "rate(", " ", "\n", "é", "\x00", "group_left", "\\"]
)  # fmt: skip


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(pieces, max_size=10).map("".join) | st.text(max_size=15))
def test_any_text_is_described_or_refused(text: str) -> None:
    with contextlib.suppress(BadQueryError):
        json.dumps(describe(text))
        assert describe(format_query(text)) == describe(text)
    with contextlib.suppress(BadQueryError):
        parse_selector(text)
    read_spelling(text)
