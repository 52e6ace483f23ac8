"""Rule groups, alerts and Alertmanagers in the JSON of Prometheus' API, with its filters and pages.

`RulesView` is what the endpoints read: the groups of the rule engine, and the addresses of Alertmanagers.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuscope.base.limits import Limits
from gpuscope.history.promql import PromQLError
from gpuscope.history.promql.labels import quote
from gpuscope.history.store.series_pairs import Predicate, predicate
from gpuscope.judge.rules.alert_state import ActiveAlert
from gpuscope.judge.rules.evaluated_rules import AlertingRule, EvaluatedRule
from gpuscope.judge.rules.rule_group import RuleGroup
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.judge.rules.templates.go_format import float_text
from gpuscope.model.series import Labels
from gpuscope.serve.api.parameters import (
    ApiError,
    Parameters,
    bad,
    nanosecond_text,
    parse_bool,
    parse_int,
    read_parameters,
)
from gpuscope.serve.api.responses import data_answer, error_answer
from gpuscope.serve.http.messages import Request, Response, Route

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi
MAX_SMALL_SIZE = 200
"""Rules and alerts that are written on the event loop: 2 ms."""
_KINDS = {"": ("alert", "record"), "alert": ("alert",), "record": ("record",)}


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
    groups_json: list[dict[str, Any]] = []
    for group in groups:
        rules = (
            [rule for rule in group.rules if wanted.accepts_rule(rule)] if wanted.accepts_group(group) else []
        )
        if not rules:
            continue
        if max_groups is not None and len(groups_json) == max_groups:
            return {"groups": groups_json, "groupNextToken": group_token(group)}
        groups_json.append(_group_json(group, rules, with_alerts=wanted.with_alerts))
    return {"groups": groups_json}


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
    document: dict[str, Any] = {
        "labels": _mapping(alert.labels),
        "annotations": _mapping(alert.annotations),
        "state": alert.state.text,
        "activeAt": nanosecond_text(alert.active_at_ns),
    }
    if alert.keep_firing_since_ns is not None:
        document["keepFiringSince"] = nanosecond_text(alert.keep_firing_since_ns)
    document["value"] = float_text(alert.value, "e", None)
    return document


def alerts_json(groups: Sequence[RuleGroup]) -> dict[str, Any]:
    """The answer of `/api/v1/alerts`: pending and firing alerts of all rules."""
    rules = [rule for group in groups for rule in group.alerting_rules()]
    return {"alerts": [alert_json(alert) for rule in rules for alert in rule.active_alerts()]}


def _mapping(labels: Labels) -> dict[str, str]:
    return dict(labels)


def _number(value: float) -> float | int:
    """Go writes a whole number without a point."""
    return int(value) if value.is_integer() else value


async def rules(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return await _answer(api, request, parameters, lambda: data_answer(_rules(api.rules, parameters)))


async def alerts(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return await _answer(api, request, parameters, lambda: data_answer(_alerts(api.rules, parameters)))


async def _answer(
    api: EmbeddedApi, request: Request, parameters: Parameters, build: Callable[[], Response]
) -> Response:
    """In a thread if there are many rules or alerts: other clients must not wait for them."""
    may_be_small = not parameters.all("match[]")  # a thousand expressions take a quarter of a second
    rules_of_groups = [rule for group in api.rules.groups() for rule in group.alerting_rules()]
    size = len(rules_of_groups) + sum(len(rule.table) for rule in rules_of_groups)
    return await api.evaluate(request, lambda cancelled: build(), small=may_be_small and size <= MAX_SMALL_SIZE)


async def alertmanagers(api: EmbeddedApi, request: Request, parameters: Parameters) -> Response:
    return data_answer(_alertmanagers(api.rules, parameters))


def rule_routes(view: RulesView, limits: Limits) -> list[Route]:
    return [
        _route("/api/v1/rules", view, limits, _rules),
        _route("/api/v1/alerts", view, limits, _alerts),
        _route("/api/v1/alertmanagers", view, limits, _alertmanagers),
    ]


def _route(
    path: str, view: RulesView, limits: Limits, build: Callable[[RulesView, Parameters], dict[str, Any]]
) -> Route:
    async def answer(request: Request) -> Response:
        try:
            parameters = await read_parameters(request, limits)
            return await asyncio.to_thread(lambda: data_answer(build(view, parameters)))
        except (ApiError, PromQLError) as error:
            return error_answer(error.error_type, str(error))

    return Route(path, answer, ("GET",))


def _rules(view: RulesView, parameters: Parameters) -> dict[str, Any]:
    parameters.well_formed()
    selectors = [
        [(matcher.name, predicate(matcher)) for matcher in matchers] for matchers in parameters.selectors()
    ]
    kind = parameters.from_url("type").lower()
    if kind not in _KINDS:
        raise bad("type", f"not supported value {quote(kind)}")
    wanted = RuleFilter(
        kinds=_KINDS[kind],
        names=frozenset(parameters.all("rule_name[]")),
        groups=frozenset(parameters.all("rule_group[]")),
        files=frozenset(parameters.all("file[]")),
        selectors=selectors,
        with_alerts=not _switch(parameters, "exclude_alerts"),
    )
    max_groups, token = _page(parameters)
    try:
        return rules_json(view.groups(), wanted, max_groups, token)
    except TokenNotFound:
        message = f"invalid group_next_token '{token}'. were rule groups changed?"
        raise bad("group_next_token", message) from None


def _alerts(view: RulesView, parameters: Parameters) -> dict[str, Any]:
    return alerts_json(view.groups())


def _alertmanagers(view: RulesView, parameters: Parameters) -> dict[str, Any]:
    active, dropped = view.alertmanagers()
    return {
        "activeAlertmanagers": [{"url": url} for url in active],
        "droppedAlertmanagers": [{"url": url} for url in dropped],
    }


def _switch(parameters: Parameters, name: str) -> bool:
    text = parameters.from_url(name).lower()
    try:
        return parse_bool(text) if text else False
    except ValueError as error:
        raise bad(name, f"error converting {name}: {error}") from None


def _page(parameters: Parameters) -> tuple[int | None, str]:
    """The most groups wanted and the token of the first one; None and "" for all."""
    most, after = parameters.from_url("group_limit"), parameters.from_url("group_next_token")
    if after and not most:
        raise bad("group_next_token", "group_limit needs to be present in order to paginate over the groups")
    if not most:
        return None, ""
    try:
        count = parse_int(most, bits=32, by="ParseInt")
    except ValueError as error:
        raise bad("group_limit", f"group_limit needs to be a valid number: {error}") from None
    if count <= 0:
        raise bad("group_limit", "group_limit needs to be greater than 0")
    return count, after
