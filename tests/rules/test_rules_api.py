"""`/api/v1/rules`, `/alerts` and `/alertmanagers`: every field, filter and page."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from gpuscope.base.limits import Limits
from gpuscope.judge.rules.rule_runner import rule_families
from gpuscope.serve.api.rule_routes import RulesView, rule_routes
from gpuscope.serve.http.messages import Request, Response
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.page_routes import page_routes
from tests.rules.rig import Rig

RULES = """
groups:
- name: one
  interval: 10s
  limit: 9
  rules:
  - {record: a:b, expr: sum(m), labels: {team: x}}
  - alert: Hot
    expr: m > 1
    for: 20s
    keep_firing_for: 1m
    labels: {severity: page}
    annotations: {summary: hot}
- name: two
  interval: 10s
  rules:
  - {alert: Bad, expr: m + on () group_left () m}
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path / "rig")
    found.start_runner(RULES)
    yield found
    found.close()


def ask(rig: Rig, path: str, **parameters: str | list[str]) -> tuple[int, Any]:
    view = RulesView(lambda: rig.runner.groups, lambda: (["http://a/api/v2/alerts"], ["http://b/"]))
    route = next(one for one in rule_routes(view, Limits()) if one.path == f"/api/v1/{path}")
    query = urlencode(parameters, doseq=True)

    async def answer() -> Response:
        return await route.handler(Request("GET", route.path, query=query.encode()))

    answered = asyncio.run(answer())
    document = json.loads(answered.body)
    return answered.status, document.get("data", document.get("error"))


def rules(rig: Rig, **parameters: str | list[str]) -> list[str]:
    status, data = ask(rig, "rules", **parameters)
    assert status == 200, data
    return [f"{group['name']}/{rule['name']}" for group in data["groups"] for rule in group["rules"]]


def test_every_field(rig: Rig) -> None:
    _, before = ask(rig, "rules")
    assert before["groups"][0]["lastEvaluation"] == "0001-01-01T00:00:00Z"
    assert before["groups"][0]["rules"][1]["state"] == "unknown"
    assert before["groups"][0]["rules"][1]["health"] == "unknown"
    rig.set(5, gpu="0")
    rig.set(0.5, gpu="1")
    rig.advance(30)
    rig.set(5, gpu="0")
    rig.advance(10)
    rig.set(0, gpu="0")
    rig.advance(10)
    _, data = ask(rig, "rules")
    one, two = data["groups"]
    assert (one["name"], one["interval"], one["limit"]) == ("one", 10, 9)
    record, hot = one["rules"]
    assert list(record) == ["name", "query", "labels", "health", "evaluationTime", "lastEvaluation", "type"]
    assert list(hot) == [
        "state", "name", "query", "duration", "keepFiringFor", "labels", "annotations", "alerts", "health",
        "evaluationTime", "lastEvaluation", "type",
    ]  # fmt: skip
    assert (hot["state"], hot["duration"], hot["keepFiringFor"], hot["query"]) == ("firing", 20, 60, "m > 1")
    (alert,) = hot["alerts"]
    assert list(alert) == ["labels", "annotations", "state", "activeAt", "keepFiringSince", "value"]
    assert (alert["value"], alert["labels"]["alertname"]) == ("5e+00", "Hot")
    (bad,) = two["rules"]
    assert (bad["health"], "many-to-many" in bad["lastError"], bad["alerts"]) == ("err", True, [])
    _, alerts = ask(rig, "alerts")
    assert alerts == {"alerts": [alert]}
    _, managers = ask(rig, "alertmanagers")
    assert managers["activeAlertmanagers"] == [{"url": "http://a/api/v2/alerts"}]
    assert managers["droppedAlertmanagers"] == [{"url": "http://b/"}]


def test_filters(rig: Rig) -> None:
    every = ["one/a:b", "one/Hot", "two/Bad"]
    file = rig.group("one").spec.file
    assert rules(rig) == every
    assert rules(rig, type="ALERT") == every[1:]
    assert rules(rig, type="record") == every[:1]
    assert rules(rig, **{"rule_name[]": ["Hot", "Bad"]}) == every[1:]
    assert rules(rig, **{"rule_group[]": "two"}) == every[2:]
    assert rules(rig, **{"file[]": file}) == every
    assert rules(rig, **{"file[]": "other"}) == []
    assert rules(rig, **{"match[]": ['{severity="page"}', '{team=~"x|y"}']}) == every[:2]
    _, data = ask(rig, "rules", exclude_alerts="true")
    found = [rule for group in data["groups"] for rule in group["rules"] if "alerts" in rule]
    assert [rule["alerts"] for rule in found] == [None, None]


def test_pages(rig: Rig) -> None:
    _, first = ask(rig, "rules", group_limit="1")
    assert [group["name"] for group in first["groups"]] == ["one"]
    _, second = ask(rig, "rules", group_limit="1", group_next_token=first["groupNextToken"])
    assert [group["name"] for group in second["groups"]] == ["two"]
    assert "groupNextToken" not in second


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"type": "x"}, 'not supported value "x"'),
        ({"exclude_alerts": "perhaps"}, "error converting exclude_alerts"),
        ({"group_limit": "0"}, "needs to be greater than 0"),
        ({"group_limit": "x"}, "needs to be a valid number"),
        ({"group_next_token": "x"}, "group_limit needs to be present"),
        ({"group_limit": "1", "group_next_token": "x"}, "were rule groups changed?"),
        ({"match[]": "{"}, "parse error"),
    ],
)
def test_a_wrong_parameter_is_400(parameters: dict[str, str], words: str, rig: Rig) -> None:
    status, error = ask(rig, "rules", **parameters)
    assert status == 400
    assert words in error


def test_metrics_have_prometheus_names(rig: Rig) -> None:
    rig.set(5)
    rig.advance(30)
    totals = rig.environment().totals
    families = {family.name: dict(family.samples) for family in rule_families(rig.runner.groups, totals)}
    evaluations = families["prometheus_rule_evaluations_total"]
    assert sorted(evaluations.values()) == [3, 6]
    assert {labels.pairs[0][0] for labels in evaluations} == {"rule_group"}
    assert len(families) >= 24


@pytest.mark.parametrize(
    ("query", "location"),
    [
        (b"g0.expr=m+%3E+1&g0.tab=1", "./#/explore?q=m+%3E+1"),
        (b"", "./#/explore?q="),
        (b"&".join([b"a=1"] * 1000), "./#/explore?q="),
        (b"g0.expr=%0d%0aSet-Cookie:x", "./#/explore?q=%0D%0ASet-Cookie%3Ax"),
    ],
)
def test_the_link_of_an_alert_leads_to_the_page(query: bytes, location: str) -> None:
    async def samples() -> dict[str, list[Any]]:
        return {}

    routes = page_routes(LiveFleet(samples, "test"))
    graph = next(one for one in routes if one.path == "/graph")

    async def answer() -> Response:
        return await graph.handler(Request("GET", "/graph", query=query))

    answered = asyncio.run(answer())
    assert (answered.status, dict(answered.headers)["location"]) == (302, location)
