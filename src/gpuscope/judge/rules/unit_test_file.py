"""Reads promtool's unit test files for rules, with the notation of their samples: `0+10x5 _ stale 3x2`.

`a+bxn` and `a-bxn` are n+1 values, each b more or less than the one before; `axn` is n+1 times a; `_` is no
sample, `_xn` n times none; `stale` is a stale marker. Native histograms (`{{…}}`) are refused: this program has
none.
"""

from __future__ import annotations

import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path

from gpuscope.base.config_values import ConfigMapping
from gpuscope.base.time_text import parse_rfc3339
from gpuscope.base.yaml_file import load_yaml
from gpuscope.judge.rules.rule_io import STALE
from gpuscope.model.series import Labels

MINUTE_MS = 60_000
MAX_VALUES = 5_000_000
"""Of one series: three years of minutes are 1.6 million."""
_NUMBER = r"(?:[0-9]*\.?[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+\.|[iI]nf|[nN]a[nN])"
_ITEM = re.compile(
    rf"(?P<blank>_)(?:x(?P<blanks>[0-9]+))?\Z"
    rf"|(?P<stale>stale)\Z"
    rf"|(?P<start>[+-]?{_NUMBER})(?:(?P<step>[+-]{_NUMBER}))?(?:x(?P<times>[0-9]+))?\Z"
)


@dataclass(frozen=True, slots=True)
class ExpectedAlert:
    labels: Labels
    annotations: Labels


@dataclass(frozen=True, slots=True)
class AlertTest:
    eval_time_ms: int
    alertname: str
    expected: tuple[ExpectedAlert, ...]


@dataclass(frozen=True, slots=True)
class ExpressionTest:
    expression: str
    eval_time_ms: int
    expected: tuple[tuple[str, float], ...]
    """Series as text, and their values."""


@dataclass(frozen=True, slots=True)
class UnitTest:
    name: str
    interval_ms: int
    input_series: tuple[tuple[str, str], ...]
    """Series as text, and their values in `series_values` notation."""
    alert_tests: tuple[AlertTest, ...]
    expression_tests: tuple[ExpressionTest, ...]
    external_labels: dict[str, str]
    external_url: str
    start_ms: int

    def last_eval_time_ms(self) -> int:
        times = [alert_test.eval_time_ms for alert_test in self.alert_tests]
        return max([0, *times, *(expression_test.eval_time_ms for expression_test in self.expression_tests)])


@dataclass(frozen=True, slots=True)
class UnitTestFile:
    rule_files: tuple[str, ...]
    missing_patterns: tuple[str, ...]
    """Patterns of `rule_files` that match nothing: a warning, as in promtool."""
    evaluation_interval_ms: int
    group_eval_order: tuple[str, ...]
    fuzzy_compare: bool
    tests: tuple[UnitTest, ...]


def load_unit_test_file(path: str) -> UnitTestFile:
    """Raises UsageError."""
    table = ConfigMapping(load_yaml(Path(path)), path, Path(path).parent)
    interval_ms = _milliseconds(table, "evaluation_interval") or MINUTE_MS
    order = table.strings("group_eval_order")
    repeated = next((name for name in order if order.count(name) > 1), None)
    if repeated is not None:
        table.fail("group_eval_order", f"group name repeated in evaluation order: {repeated}")
    files, missing = _rule_files(table, os.path.dirname(path))  # noqa: PTH120 - the path as it is written
    read = UnitTestFile(
        rule_files=files,
        missing_patterns=missing,
        evaluation_interval_ms=interval_ms,
        group_eval_order=order,
        fuzzy_compare=table.switch("fuzzy_compare", False),
        tests=tuple(_read_test(entry, interval_ms) for entry in table.tables("tests")),
    )
    table.finish((), _ignore)
    return read


def _ignore(text: str) -> None:
    """No key of these files is known and not supported."""


def _rule_files(table: ConfigMapping, folder: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    files: list[str] = []
    missing: list[str] = []
    for pattern in table.strings("rule_files"):
        full = os.path.normpath(os.path.join(folder, pattern))  # noqa: PTH118
        matches = sorted(glob.glob(full))  # noqa: PTH207
        files += matches
        if not matches:
            missing.append(full)
    return tuple(files), tuple(missing)


def _read_test(table: ConfigMapping, evaluation_interval_ms: int) -> UnitTest:
    test = UnitTest(
        name=table.text("name"),
        interval_ms=_milliseconds(table, "interval") or evaluation_interval_ms,
        input_series=tuple(_read_series(entry) for entry in table.tables("input_series")),
        alert_tests=tuple(_read_alert_test(entry) for entry in table.tables("alert_rule_test")),
        expression_tests=tuple(_read_expression_test(entry) for entry in table.tables("promql_expr_test")),
        external_labels=table.labels("external_labels"),
        external_url=table.text("external_url"),
        start_ms=table.parsed("start_timestamp", 0, _parse_time_ms),
    )
    table.finish((), _ignore)
    return test


def _read_series(table: ConfigMapping) -> tuple[str, str]:
    read = table.text("series"), table.text("values")
    table.finish((), _ignore)
    return read


def _read_alert_test(table: ConfigMapping) -> AlertTest:
    expected = []
    for entry in table.tables("exp_alerts"):
        labels, annotations = entry.labels("exp_labels"), entry.labels("exp_annotations")
        expected.append(ExpectedAlert(_pairs(labels), _pairs(annotations)))
        entry.finish((), _ignore)
    test = AlertTest(_milliseconds(table, "eval_time"), table.text("alertname"), tuple(expected))
    if not test.alertname:
        table.fail("alertname", "an item under alert_rule_test needs it")
    table.finish((), _ignore)
    return test


def _read_expression_test(table: ConfigMapping) -> ExpressionTest:
    expected = []
    for entry in table.tables("exp_samples"):
        if entry.has("histogram"):
            entry.fail("histogram", "native histograms are not supported here")
        expected.append((entry.text("labels"), entry.parsed("value", 0.0, _parse_float)))
        entry.finish(("histogram",), _ignore)
    test = ExpressionTest(table.text("expr"), _milliseconds(table, "eval_time"), tuple(expected))
    table.finish((), _ignore)
    return test


def _pairs(labels: dict[str, str]) -> Labels:
    return tuple(sorted(labels.items()))


def _milliseconds(table: ConfigMapping, key: str) -> int:
    return round(table.duration(key, 0.0) * 1000)


def _parse_float(value: object) -> float:
    """As YAML writes numbers: also `.inf` and `.nan`."""
    text = str(value)
    try:
        return float(text.replace(".inf", "inf").replace(".Inf", "inf").replace(".nan", "nan").replace("_", ""))
    except ValueError:
        raise ValueError(f"{text!r} is not a number") from None


def _parse_time_ms(value: object) -> int:
    text = str(value)
    try:
        return round(float(text) * 1000)
    except ValueError:
        pass
    try:
        return round(parse_rfc3339(text) * 1000)
    except ValueError:
        raise ValueError(f"{text!r} is not a time: RFC 3339 or seconds since 1970") from None


class SeriesValuesError(ValueError):
    pass


def parse_values(text: str) -> list[float | None]:
    """A value for each interval; None where there is no sample."""
    if "{{" in text:
        raise SeriesValuesError("native histograms are not supported here")
    values: list[float | None] = []
    for item in text.split():
        match = _ITEM.match(item)
        if match is None or (match["step"] and match["times"] is None):
            raise SeriesValuesError(f"{item!r} is not a value such as 1, 0+10x5, _ or stale")
        count = int((match["blanks"] or match["times"] or "0")[:12])
        if len(values) + count > MAX_VALUES:
            raise SeriesValuesError(f"more than {MAX_VALUES} values")
        if match["blank"]:
            values += [None] * (count if match["blanks"] is not None else 1)
        elif match["stale"]:
            values.append(STALE)
        else:
            _add_numbers(values, float(match["start"]), float(match["step"] or 0), count)
    return values


def _add_numbers(values: list[float | None], start: float, step: float, count: int) -> None:
    # Added up one by one, as Prometheus does it: a product would differ in the last digit.
    value = start
    for _ in range(count + 1):
        values.append(value)
        value += step
