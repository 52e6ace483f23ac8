"""Formatting keeps the meaning of a query, is idempotent, and gives readable text."""

from __future__ import annotations

from itertools import chain
from typing import Any

import pytest

from gpuscope.history.promql import BadQueryError, format_query, parse
from gpuscope.history.promql.ast_json import describe
from tests.promql.corpus import by_hand, random_expressions

AWKWARD = [
    "(1 + 2) * 3 - (4 - 5) - 6",
    "(2 ^ 3) ^ 2",
    "2 ^ (3 ^ 2)",
    "(-2) ^ 2",
    "-(2 ^ 2)",
    "-(x + y)",
    "(-x) ^ 2",
    "2 ^ -x",
    "a - (b - c)",
    "a and (b or c) unless d",
    "(a > b) > c",
    "a > (b > bool c)",
    "(x + y)[5m:1m] offset -1m",
    "(-x)[5m:]",
    '{"dotted.name", "dotted.label"="é\\"\\n", plain=~"a\\\\.b"}',
    'sum by ("dotted.label", plain) (x)',
    '{__name__="inf"}',
    '{__name__!="x", a="b"}',
    "x + ignoring () group_left (a) y",
    "x + on () y",
    "1e300 + 1e-300 + Inf + NaN",
    "x[1w2d3h4m5s6ms] @ 1700000000.123",
    "rate(foo:bar{a!~'b'}[5m] @ end() offset 1h)",
]


@pytest.mark.parametrize("text", AWKWARD)
def test_difficult_queries_keep_their_meaning(text: str) -> None:
    _check(text)


def test_every_query_of_the_corpus_keeps_its_meaning() -> None:
    for text in chain(by_hand(), random_expressions(seed=11, count=300)):
        try:
            parse(text)
        except BadQueryError:
            continue
        _check(text)


def _check(text: str) -> None:
    formatted = format_query(text)
    assert _meaning(describe(formatted)) == _meaning(describe(text)), formatted
    assert format_query(formatted) == formatted


def _meaning(node: Any) -> Any:
    """Ignore the order of matchers, which has no effect."""
    if isinstance(node, list):
        return [_meaning(one) for one in node]
    if not isinstance(node, dict):
        return node
    found = {key: _meaning(value) for key, value in node.items()}
    if "matchers" in found:
        found["matchers"] = sorted(found["matchers"], key=lambda one: sorted(one.items()))
    return found


@pytest.mark.parametrize(
    ("text", "formatted"),
    [
        ("sum(rate(x{a='b'}[300s]))by(c)", 'sum by (c) (rate(x{a="b"}[5m]))'),
        ("((a))+(b*c)", "((a)) + (b * c)"),
        ("x{}", "x"),
        ("a==bool b", "a == bool b"),
        ("x offset 90m@ 5", "x @ 5.000 offset 1h30m"),
    ],
)
def test_short_queries_are_formatted_on_one_line(text: str, formatted: str) -> None:
    assert format_query(text) == formatted


@pytest.mark.parametrize(
    "text",
    [
        "offset + (5)",
        "offset - 5m",
        "+offset - +x",
        "x * on (a) offset + (2 - 3) ^ 2",
        "offset offset (5 + 1)",
        "and and offset + (5)",
        "and offset 5m",
    ],
)
def test_a_metric_named_offset_is_not_a_modifier(text: str) -> None:
    assert format_query(text) == text
    parse(text)


def test_long_queries_are_formatted_on_several_lines() -> None:
    text = (
        "sum by (node) (rate(gpuscope_gpu_energy_joules_total{job='gpuscope'}[5m])) "
        "/ on (node) group_left () count by (node) (gpuscope_gpu_info{job='gpuscope', simulated='true'})"
    )
    assert format_query(text) == (
        '  sum by (node) (rate(gpuscope_gpu_energy_joules_total{job="gpuscope"}[5m]))\n'
        "/ on (node) group_left ()\n"
        '  count by (node) (gpuscope_gpu_info{job="gpuscope",simulated="true"})'
    )
    _check(text)
