"""Runs promtool's unit tests for rules: a test file in, the messages of its failures out.

All groups are evaluated each `evaluation_interval` from time 0 (their own interval does not count); alerts are
compared at the last evaluation at or before `eval_time`, firing ones only. Samples of the test become visible
as time passes, as in promtool.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpuscope.base.clock import SystemClock
from gpuscope.base.time_text import duration_text
from gpuscope.history.promql import Engine, PromQLError
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.promql.labels import quote
from gpuscope.history.store.series_pairs import predicate
from gpuscope.judge.rules.alert_state import Alert, AlertState
from gpuscope.judge.rules.alert_templates import TemplateExpander
from gpuscope.judge.rules.evaluated_rules import AlertContext
from gpuscope.judge.rules.rule_file import RuleFileError, load_rule_set
from gpuscope.judge.rules.rule_group import RuleEnvironment, RuleGroup
from gpuscope.judge.rules.rule_io import STALE, EvaluatorQueries, ForStateSample, RuleQueryError, RuleSample
from gpuscope.judge.rules.templates.go_format import float_text
from gpuscope.judge.rules.templates.go_time import duration_string
from gpuscope.judge.rules.unit_test_file import (
    AlertTest,
    ExpressionTest,
    SeriesValuesError,
    UnitTest,
    UnitTestFile,
    parse_values,
)
from gpuscope.model.series import Labels, Matcher, MatchOp, Series

MILLISECOND_NS = 1_000_000
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
FoundAlert = tuple[Labels, Labels]
"""Labels and annotations."""


class _Column:
    """The samples of one series, appended in time order."""

    __slots__ = ("_size", "times", "values")

    def __init__(self) -> None:
        self._size = 0
        self.times: NDArray[np.int64] = np.empty(16, np.int64)
        self.values: NDArray[np.float64] = np.empty(16, np.float64)

    def append(self, time_ms: int, value: float) -> None:
        if self._size and time_ms <= self.times[self._size - 1]:
            return  # a second sample for the same time, for example a stale marker of a renamed rule
        if self._size == len(self.times):
            self.times = np.concatenate([self.times, np.empty_like(self.times)])
            self.values = np.concatenate([self.values, np.empty_like(self.values)])
        self.times[self._size], self.values[self._size] = time_ms, value
        self._size += 1

    def between(self, start_ms: int, end_ms: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        times = self.times[: self._size]
        low, high = np.searchsorted(times, [start_ms, end_ms + 1])
        return times[low:high], self.values[low:high]


class MemoryStorage:
    """Implements `series.Storage` and `SampleWriter`."""

    def __init__(self) -> None:
        self._columns: dict[Labels, _Column] = {}
        self._until_ms = 0

    def add(self, labels: Labels, time_ms: int, value: float) -> None:
        column = self._columns.get(labels)
        if column is None:
            column = self._columns[labels] = _Column()
        column.append(time_ms, value)

    def show_until(self, time_ms: int) -> None:
        self._until_ms = time_ms

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        accept = [(matcher.name, predicate(matcher)) for matcher in matchers]
        selected: list[Series] = []
        for labels, column in self._columns.items():
            values = dict(labels)
            if all(accepts(values.get(name, "")) for name, accepts in accept):
                times, numbers = column.between(start_ms, min(end_ms, self._until_ms))
                if len(times):
                    selected.append(Series(labels, times, numbers))
        return selected

    def append(self, rule: str, at_ms: int, samples: Sequence[RuleSample], stale: Sequence[Labels]) -> str:
        for labels, value in samples:
            self.add(labels, at_ms, value)
        for labels in stale:
            self.add(labels, at_ms, STALE)
        return ""

    def last_samples(self, labels: Labels, start_ms: int, end_ms: int) -> Sequence[ForStateSample]:
        matchers = [Matcher(name, MatchOp.EQUAL, value) for name, value in labels]
        return [
            (series.labels, int(series.timestamps[-1]), float(series.values[-1]))
            for series in self.select(matchers, start_ms, end_ms)
        ]


class _NoAlerts:
    def take(self, alerts: Sequence[Alert]) -> None:
        """Alerts of a unit test are not sent."""


def run_unit_tests(file: UnitTestFile, templates: TemplateExpander, only: str = "") -> list[str]:
    """The failures, in promtool's format; `only` is a regular expression for names of tests."""
    failures: list[str] = []
    for test in file.tests:
        if not only or re.search(only, test.name):
            failures += _TestRun(file, test, templates).run()
    return failures


@dataclass(slots=True)
class _TestRun:
    file: UnitTestFile
    test: UnitTest
    templates: TemplateExpander
    storage: MemoryStorage = field(default_factory=MemoryStorage)

    def run(self) -> list[str]:
        try:
            self._load_series()
            groups = self._build_groups()
        except RuleFileError as error:
            return list(error.mistakes)
        except (SeriesValuesError, PromQLError) as error:
            return [str(error)]
        failures, has_finished = self._evaluate(groups)
        if has_finished:
            failures += [
                failure
                for expression_test in self.test.expression_tests
                for failure in self._check_expression(expression_test)
            ]
        return failures

    def _load_series(self) -> None:
        for series, values in self.test.input_series:
            labels = parse_series(series)
            for index, value in enumerate(parse_values(values)):
                if value is not None:
                    self.storage.add(labels, self.test.start_ms + index * self.test.interval_ms, value)

    def _queries(self) -> EvaluatorQueries:
        return EvaluatorQueries(Engine(self.storage, subquery_step_ms=self.file.evaluation_interval_ms))

    def _build_groups(self) -> list[RuleGroup]:
        specs = load_rule_set(self.file.rule_files, self.test.interval_ms * MILLISECOND_NS, self.templates)
        context = AlertContext(self.templates, self.test.external_labels, self.test.external_url)
        environment = RuleEnvironment(self._queries(), self.storage, _NoAlerts(), context, SystemClock())
        order = {name: index for index, name in enumerate(self.file.group_eval_order)}
        ordered = sorted(specs, key=lambda spec: order.get(spec.name, 0))
        return [RuleGroup(spec, environment, is_restored=True) for spec in ordered]

    def _evaluate(self, groups: Sequence[RuleGroup]) -> tuple[list[str], bool]:
        """The failures, and False if a rule failed, which ends the test."""
        step, start = self.file.evaluation_interval_ms, self.test.start_ms
        failures: list[str] = []
        for offset in range(0, self.test.last_eval_time_ms() + 1, step):
            self.storage.show_until(start + offset)
            broken: list[str] = []
            for group in groups:
                group.evaluate((start + offset) * MILLISECOND_NS)
                at = duration_string((start + offset) * 1_000_000)
                broken += [
                    f"    rule: {rule.spec.name}, time: {at}, err: {rule.last_error}"
                    for rule in group.rules
                    if rule.last_error
                ]
            if broken:
                return [*failures, *broken], False
            due = [
                alert_test
                for alert_test in self.test.alert_tests
                if offset <= alert_test.eval_time_ms < offset + step
            ]
            for test in sorted(due, key=lambda test: test.eval_time_ms):
                failures += self._check_alerts(groups, test)
        return failures, True

    def _check_alerts(self, groups: Sequence[RuleGroup], test: AlertTest) -> Iterator[str]:
        got = sorted(
            (alert.labels, alert.annotations)
            for group in groups
            for rule in group.alerting_rules()
            if rule.spec.name == test.alertname
            for alert in rule.active_alerts()
            if alert.state is AlertState.FIRING
        )
        expected = sorted(
            (tuple(sorted({**dict(alert.labels), "alertname": test.alertname}.items())), alert.annotations)
            for alert in test.expected
        )
        if got != expected:
            name = f"    name: {self.test.name},\n" if self.test.name else ""
            yield (
                f"{name}    alertname: {test.alertname}, time: {duration_text(test.eval_time_ms)}, \n"
                f"        exp:{_alerts_text(expected)}, \n        got:{_alerts_text(got)}"
            )

    def _check_expression(self, test: ExpressionTest) -> Iterator[str]:
        where = f"    expr: {quote(test.expression)}, time: {duration_text(test.eval_time_ms)},"
        try:
            vector = self._queries().instant(test.expression, self.test.start_ms + test.eval_time_ms)
            expected = sorted((parse_series(labels), value) for labels, value in test.expected)
        except (RuleQueryError, PromQLError) as error:
            yield f"{where} err: {error}"
            return
        got = sorted(zip(vector.labels, vector.values.tolist(), strict=True))
        if len(got) != len(expected) or not all(map(self._is_equal, got, expected)):
            yield f"{where}\n        exp: {_samples_text(expected)}\n        got: {_samples_text(got)}"

    def _is_equal(self, one: tuple[Labels, float], other: tuple[Labels, float]) -> bool:
        if one[0] != other[0]:
            return False
        if one[1] == other[1] or not self.file.fuzzy_compare:
            return one[1] == other[1]
        return other[1] in (math.nextafter(one[1], math.inf), math.nextafter(one[1], -math.inf))


def parse_series(text: str) -> Labels:
    """`up{job="a"}` as labels; empty values are absent. Raises PromQLError."""
    if text.strip() in ("", "{}"):
        return ()
    matchers = parse_selector(text)
    if any(matcher.op is not MatchOp.EQUAL for matcher in matchers):
        raise SeriesValuesError(f"{text!r} is not a series: only = is possible")
    return tuple(sorted((matcher.name, matcher.value) for matcher in matchers if matcher.value))


def _alerts_text(alerts: Sequence[FoundAlert]) -> str:
    if not alerts:
        return "[]"
    shown = [
        f"{index}:\n  Labels:{labels_text(labels)}\n  Annotations:{labels_text(annotations)}"
        for index, (labels, annotations) in enumerate(alerts)
    ]
    return ("[\n" + ",\n".join(shown) + "\n]").replace("\n", "\n            ")


def _samples_text(samples: Sequence[tuple[Labels, float]]) -> str:
    return (
        ", ".join(f"{labels_text(labels)} {float_text(value, 'e', None).upper()}" for labels, value in samples)
        or "nil"
    )


def labels_text(labels: Labels) -> str:
    """`{a="b", c="d"}`, the metric name included."""
    pairs = (f"{name if _PLAIN_NAME.fullmatch(name) else quote(name)}={quote(value)}" for name, value in labels)
    return "{" + ", ".join(pairs) + "}"
