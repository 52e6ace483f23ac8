"""Metrics of rule evaluation under Prometheus' names, so that its dashboards and alerts on rules work here."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from gpuscope.judge.rules.alert_templates import TEMPLATE_COUNTS
from gpuscope.judge.rules.rule_group import EvaluationTotals, RuleGroup
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.judge.rules.timings import timing_families, unlabelled
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample

_Row = tuple[str, str, str, Callable[[RuleGroup], float | None]]
_ROWS: tuple[_Row, ...] = (
    ("rule_evaluations_total", "counter", "Rule evaluations.", lambda group: group.evaluations),
    (
        "rule_evaluation_failures_total",
        "counter",
        "Rule evaluations that failed.",
        lambda group: group.failures,
    ),
    (
        "rule_group_iterations_total",
        "counter",
        "Scheduled evaluations of the group, run or missed.",
        lambda group: group.iterations,
    ),
    (
        "rule_group_iterations_missed_total",
        "counter",
        "Evaluations of the group that were skipped because the previous one was slow.",
        lambda group: group.missed,
    ),
    (
        "rule_group_interval_seconds",
        "gauge",
        "Evaluation interval of the group.",
        lambda group: group.spec.interval_ns / SECOND_NS,
    ),
    (
        "rule_group_last_evaluation_timestamp_seconds",
        "gauge",
        "When the last evaluation of the group began.",
        lambda group: (group.evaluated_at_ns or 0) / SECOND_NS,
    ),
    (
        "rule_group_last_duration_seconds",
        "gauge",
        "Duration of the last evaluation of the group.",
        lambda group: group.evaluation_seconds,
    ),
    (
        "rule_group_last_rule_duration_sum_seconds",
        "gauge",
        "Duration of the last evaluation of all rules of the group.",
        lambda group: sum(rule.evaluation_seconds for rule in group.rules),
    ),
    (
        "rule_group_last_restore_duration_seconds",
        "gauge",
        "Duration of restoring alerts from ALERTS_FOR_STATE; absent if that was not done.",
        lambda group: group.restore_seconds,
    ),
    ("rule_group_rules", "gauge", "Rules in the group.", lambda group: len(group.rules)),
    (
        "rule_group_last_evaluation_samples",
        "gauge",
        "Samples that the last evaluation of the group gave.",
        lambda group: group.last_samples,
    ),
)


def rule_families(groups: Sequence[RuleGroup], totals: EvaluationTotals) -> Iterator[MetricFamily]:
    labels = [LabelSet((("rule_group", group.spec.key),)) for group in groups]
    for name, kind, help_text, read in _ROWS:
        values = [(own, read(group)) for own, group in zip(labels, groups, strict=True)]
        samples = [Sample(own, value) for own, value in values if value is not None]
        yield MetricFamily(f"prometheus_{name}", kind, help_text, samples)
    yield from timing_families(
        "prometheus_rule_evaluation_duration_seconds",
        "prometheus_rule_evaluation_duration_histogram_seconds",
        "Duration of rule evaluations.",
        (0.5, 0.9, 0.99),
        unlabelled(totals.rules),
    )
    yield from timing_families(
        "prometheus_rule_group_duration_seconds",
        "prometheus_rule_group_duration_histogram_seconds",
        "Duration of rule group evaluations.",
        (0.01, 0.05, 0.5, 0.9, 0.99),
        unlabelled(totals.groups),
    )
    counts = (("expansions", TEMPLATE_COUNTS.expansions), ("expansion_failures", TEMPLATE_COUNTS.failures))
    for word, count in counts:
        yield MetricFamily(
            f"prometheus_template_text_{word}_total",
            "counter",
            f"Template text {word.replace('_', ' ')}.",
            [Sample(NO_LABELS, count)],
        )
