"""The endpoints `/api/v1/rules`, `/api/v1/alerts` and `/api/v1/alertmanagers`.

`rule_routes` serves them for a server over another engine; the embedded API has them in its own table.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpuscope.base.limits import Limits
from gpuscope.history.promql import PromQLError
from gpuscope.history.promql.labels import quote
from gpuscope.history.store.value_matching import predicate
from gpuscope.serve.api.go_values import parse_bool, parse_int
from gpuscope.serve.api.parameters import ApiError, Parameters, bad, read_parameters
from gpuscope.serve.api.responses import data_answer, error_answer
from gpuscope.serve.api.rules_json import RuleFilter, RulesView, TokenNotFound, alerts_json, rules_json
from gpuscope.serve.http.messages import Request, Response
from gpuscope.serve.http.routing import Route

if TYPE_CHECKING:
    from gpuscope.serve.api.embedded import EmbeddedApi

MAX_SMALL_SIZE = 200
"""Rules and alerts that are written on the event loop: 2 ms."""
_KINDS = {"": ("alert", "record"), "alert": ("alert",), "record": ("record",)}


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
    selectors = [[(one.name, predicate(one)) for one in matchers] for matchers in parameters.selectors()]
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
