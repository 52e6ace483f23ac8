"""The same alerts over the metrics of other exporters, for people who keep those: the vendors have the rows."""

from __future__ import annotations

from gpuscope.base.time_text import duration_text
from gpuscope.judge.checks import thresholds
from gpuscope.judge.checks.check import Subject
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.rules.shipped.shipped_rule import NODE_PLACE, ShippedGroup, ShippedRule
from gpuscope.model.vendor import ExporterRules, advices


def exporter_groups() -> tuple[ShippedGroup, ...]:
    return tuple(
        ShippedGroup(rules.group, rules.title, _rules(rules), is_default=False)
        for advice in advices().values()
        for rules in advice.exporter_rules
    )


def _rules(exporter: ExporterRules) -> tuple[ShippedRule, ...]:
    limits = {name: f"{value:g}" for name, value in vars(thresholds).items() if isinstance(value, int | float)}
    limits["XID_ALERT_DURATION"] = duration_text(round(thresholds.XID_ALERT_SECONDS * 1000))
    rules = []
    for kind, expression, detail in exporter.rows:
        is_node = CHECKS[kind].subject is Subject.NODE
        rules.append(
            ShippedRule(
                check=CHECKS[kind],
                expression=expression % limits,
                place=NODE_PLACE if is_node else exporter.place,
                detail=detail,
                lookups={} if is_node else exporter.lookups,
                gpu_argument=exporter.gpu_argument,
            )
        )
    return tuple(rules)
