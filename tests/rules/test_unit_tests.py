"""The notation of samples, and unit-test files: what they accept and what a failure looks like."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from gpuscope.base.errors import UsageError
from gpuscope.judge.rules.rule_io import STALE
from gpuscope.judge.rules.templates.go_format import float_text
from gpuscope.judge.rules.templates.go_time import duration_string
from gpuscope.judge.rules.unit_test_file import SeriesValuesError, load_unit_test_file, parse_values
from gpuscope.judge.rules.unit_tests import labels_text


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1 2.5 -3", [1, 2.5, -3]),
        ("0+10x3", [0, 10, 20, 30]),
        ("5-2x2", [5, 3, 1]),
        ("-2-3x1", [-2, -5]),
        ("7x2", [7, 7, 7]),
        ("0x3 1x0", [0, 0, 0, 0, 1]),
        ("_ _x2 1", [None, None, None, 1]),
        ("1e3 .5 Inf -Inf", [1000, 0.5, math.inf, -math.inf]),
    ],
)
def test_values(text: str, values: list[float | None]) -> None:
    assert parse_values(text) == values


def test_values_without_a_number() -> None:
    stale, nan = parse_values("stale NaN")
    assert stale is STALE
    assert nan is not None
    assert math.isnan(nan)


@pytest.mark.parametrize("text", ["x", "1+2", "1x", "1+x3", "{{sum:1}}", "1x99999999999", "stalex3", "--1"])
def test_what_is_not_a_value_is_refused(text: str) -> None:
    with pytest.raises(SeriesValuesError):
        parse_values(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tests: [{nonsense: 1}]", "nonsense"),
        ("evaluation_interval: 1", "not a duration"),
        ("group_eval_order: [a, a]", "repeated in evaluation order: a"),
        ("tests: [{alert_rule_test: [{eval_time: 1m}]}]", "alertname"),
        ("tests: [{start_timestamp: soon}]", "not a time"),
        ("tests: [{promql_expr_test: [{expr: a, exp_samples: [{histogram: x}]}]}]", "native histograms"),
    ],
)
def test_a_wrong_file_is_one_sentence_with_a_position(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "t.yml"
    path.write_text(text)
    with pytest.raises(UsageError, match=words):
        load_unit_test_file(str(path))


def test_texts_are_those_of_go() -> None:
    values = (1.0, 0.0, -0.5, 1234.5, 1e21, 5e-324, 100.0)
    assert [float_text(one, "e", None) for one in values] == [
        "1e+00", "0e+00", "-5e-01", "1.2345e+03", "1e+21", "5e-324", "1e+02",
    ]  # fmt: skip
    assert [float_text(one, "e", None) for one in (math.inf, -math.inf, math.nan)] == ["+Inf", "-Inf", "NaN"]
    assert [duration_string(one * 1_000_000) for one in (0, 5, 1000, 60_000, 90_500, 3_600_000)] == [
        "0s", "5ms", "1s", "1m0s", "1m30.5s", "1h0m0s",
    ]  # fmt: skip
    assert labels_text((("a.b", 'x"'), ("c", "d"))) == '{"a.b"="x\\"", c="d"}'
