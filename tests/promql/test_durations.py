"""Duration expressions: replacement in the text, and their canonical form."""

from __future__ import annotations

import pytest

from gpuscope.history.promql import BadQueryError, format_query, parse
from gpuscope.history.promql.ast_json import describe
from gpuscope.history.promql.durations import QueryTimes, evaluate_durations

TIMES = QueryTimes(step_ms=30_000, range_ms=600_000)


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("x[5m+1m]", "x[ 360.000 ]"),
        ("x[step():range()/2]", "x[ 30.000 : 300.000 ]"),
        ("x offset(2*2)", "x offset 4.000 "),
        ("x offset -step() * 2", "x offset  -30.000  * 2"),
        ('x{a="[1+1]"}[1+1]', 'x{a="[1+1]"}[ 2.000 ]'),
        ("sum by (offset) (x)", "sum by (offset) (x)"),
        ("a:offset - (5)", "a:offset - (5)"),
        ("x[5m] # [1+1]", "x[5m] # [1+1]"),
        ("x[foo+1] offset (bar)", "x[foo+1] offset (bar)"),
    ],
)
def test_only_expressions_are_replaced(text: str, plain: str) -> None:
    assert evaluate_durations(text, TIMES) == plain


def test_the_tree_of_a_duration_expression_depends_on_the_step() -> None:
    assert parse("x[step()]", QueryTimes(1000, 0)) != parse("x[step()]", QueryTimes(2000, 0))
    assert parse("x[step()]", QueryTimes(2000, 0)) == parse("x[2s]")


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("x[5m+1m]", "x[5m + 1m]"),
        ("x[2*(1m+30)]", "x[2 * (1m + 30)]"),
        ("x[(5m)]", "x[5m]"),
        ("x offset -(STEP()/2)", "x offset -(step() / 2)"),
        ("x[1h:min_of(step(),  5m)] @ end()", "x[1h:min_of(step(), 5m)] @ end()"),
    ],
)
def test_the_canonical_form_keeps_the_expression(text: str, canonical: str) -> None:
    assert format_query(text) == canonical
    assert format_query(canonical) == canonical


def test_the_json_tree_contains_the_duration_expression() -> None:
    node = describe("x[step() - 5m]")
    assert node["range"] == 0
    assert node["rangeExpr"] == {
        "type": "durationExpr",
        "op": "-",
        "lhs": {"type": "durationExpr", "op": "step", "lhs": None, "rhs": None, "wrapped": False},
        "rhs": {"type": "numberLiteral", "val": "300", "duration": True},
        "wrapped": False,
    }


@pytest.mark.parametrize(
    "text", ["x[" + "(" * 199 + "1+1" + ")" * 199 + "]", "x[" + "-" * 399 + "5]", "x[1" + "+1" * 399 + "]"]
)
def test_deep_expressions_are_evaluated_or_refused(text: str) -> None:
    for read in (parse, format_query):
        try:
            read(text)
        except BadQueryError as error:
            assert "duration" in str(error) or "deep" in str(error)  # noqa: PT017 - both errors are correct
