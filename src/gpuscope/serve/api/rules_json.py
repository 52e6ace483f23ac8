"""Rule groups, alerts and Alertmanagers in the JSON of Prometheus' API, with its filters and pages.

`RulesView` is what the endpoints read: the groups of the rule engine, and the addresses of Alertmanagers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gpuscope.history.store.value_matching import Predicate
from gpuscope.judge.rules.alert_state import ActiveAlert
from gpuscope.judge.rules.evaluated_rules import AlertingRule, EvaluatedRule
from gpuscope.judge.rules.rule_group import RuleGroup
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.judge.rules.templates.go_format import float_text
from gpuscope.model.series import Labels
from gpuscope.serve.api.go_values import nanosecond_text


def _no_groups() -> Sequence[RuleGroup]:
    return ()


def _no_alertmanagers() -> tuple[Sequence[str], Sequence[str]]:
    return (), ()


@dataclass(frozen=True, slots=True)
class RulesView:
    groups: Callable[[], Sequence[RuleGroup]] = _no_groups
    """Sorted by file and name."""
    alertmanagers: Callable[[], tuple[Sequence[str], Sequence[str]]] = _no_alertmanagers
    """URLs that alerts are sent to, and URLs that relabelling has dropped."""


@dataclass(frozen=True, slots=True)
class RuleFilter:
    """Which rules a request asks for; an empty collection means all."""

    kinds: Collection[str] = ("alert", "record")
    names: Collection[str] = ()
    groups: Collection[str] = ()
    files: Collection[str] = ()
    selectors: Sequence[Sequence[tuple[str, Predicate]]] = ()
    """Label names and tests, compiled once for all rules."""
    with_alerts: bool = True

    def accepts_group(self, group: RuleGroup) -> bool:
        in_groups = not self.groups or group.spec.name in self.groups
        return in_groups and (not self.files or group.spec.file in self.files)

    def accepts_rule(self, rule: EvaluatedRule) -> bool:
        if ("alert" if rule.spec.is_alert else "record") not in self.kinds:
            return False
        if self.names and rule.spec.name not in self.names:
            return False
        labels = dict(rule.spec.labels)
        return not self.selectors or any(
            all(holds(labels.get(name, "")) for name, holds in matchers) for matchers in self.selectors
        )


class TokenNotFound(Exception):
    """The group that a page should begin with does not exist any more."""


def rules_json(
    groups: Sequence[RuleGroup], wanted: RuleFilter, max_groups: int | None, token: str
) -> dict[str, Any]:
    """The answer of `/api/v1/rules`; `token` is the first group of the page, or empty."""
    if token:
        start = next((at for at, group in enumerate(groups) if group_token(group) == token), None)
        if start is None:
            raise TokenNotFound(token)
        groups = groups[start:]
    found: list[dict[str, Any]] = []
    for group in groups:
        rules = (
            [rule for rule in group.rules if wanted.accepts_rule(rule)] if wanted.accepts_group(group) else []
        )
        if not rules:
            continue
        if max_groups is not None and len(found) == max_groups:
            return {"groups": found, "groupNextToken": group_token(group)}
        found.append(_group_json(group, rules, with_alerts=wanted.with_alerts))
    return {"groups": found}


def group_token(group: RuleGroup) -> str:
    return hashlib.sha256(group.spec.key.encode("utf-8", "surrogateescape")).hexdigest()


def _group_json(group: RuleGroup, rules: Sequence[EvaluatedRule], *, with_alerts: bool) -> dict[str, Any]:
    return {
        "name": group.spec.name,
        "file": group.spec.file,
        "rules": [_rule_json(rule, with_alerts=with_alerts) for rule in rules],
        "interval": _number(group.spec.interval_ns / SECOND_NS),
        "limit": group.spec.limit,
        "evaluationTime": _number(group.evaluation_seconds),
        "lastEvaluation": nanosecond_text(group.evaluated_at_ns),
    }


def _rule_json(rule: EvaluatedRule, *, with_alerts: bool) -> dict[str, Any]:
    spec = rule.spec
    health: dict[str, Any] = {"health": rule.health}
    if rule.last_error:
        health["lastError"] = rule.last_error
    health["evaluationTime"] = _number(rule.evaluation_seconds)
    health["lastEvaluation"] = nanosecond_text(rule.evaluated_at_ns)
    if not isinstance(rule, AlertingRule):
        query = {"name": spec.name, "query": spec.expression, "labels": dict(spec.labels)}
        return {**query, **health, "type": "recording"}
    return {
        "state": rule.state().text,
        "name": spec.name,
        "query": spec.expression,
        "duration": _number(spec.for_ns / SECOND_NS),
        "keepFiringFor": _number(spec.keep_firing_for_ns / SECOND_NS),
        "labels": dict(spec.labels),
        "annotations": dict(spec.annotations),
        "alerts": [alert_json(alert) for alert in rule.active_alerts()] if with_alerts else None,
        **health,
        "type": "alerting",
    }


def alert_json(alert: ActiveAlert) -> dict[str, Any]:
    found: dict[str, Any] = {
        "labels": _mapping(alert.labels),
        "annotations": _mapping(alert.annotations),
        "state": alert.state.text,
        "activeAt": nanosecond_text(alert.active_at_ns),
    }
    if alert.keep_firing_since_ns is not None:
        found["keepFiringSince"] = nanosecond_text(alert.keep_firing_since_ns)
    found["value"] = float_text(alert.value, "e", None)
    return found


def alerts_json(groups: Sequence[RuleGroup]) -> dict[str, Any]:
    """The answer of `/api/v1/alerts`: pending and firing alerts of all rules."""
    rules = [rule for group in groups for rule in group.alerting_rules()]
    return {"alerts": [alert_json(alert) for rule in rules for alert in rule.active_alerts()]}


def _mapping(labels: Labels) -> dict[str, str]:
    return dict(labels)


def _number(value: float) -> float | int:
    """Go writes a whole number without a point."""
    return int(value) if value.is_integer() else value
