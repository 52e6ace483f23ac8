"""Which routes take an alert. Alertmanager's own answers are in test_decisions_against_alertmanager.py."""

from __future__ import annotations

from dataclasses import replace

from gpuscope.judge.notify.alert_matchers import parse_matchers
from gpuscope.judge.notify.alert_routes import AlertRoute

CRITICAL = AlertRoute("pager", parse_matchers('severity="critical"'))
GPUS = AlertRoute(
    "gpus", parse_matchers('team="gpus"'), routes=(AlertRoute("night", parse_matchers('shift="night"')),)
)
ROOT = AlertRoute("default", routes=(CRITICAL, GPUS))


def receivers(root: AlertRoute, **labels: str) -> list[str]:
    return [route.receiver for route in root.match(labels)]


def test_the_first_child_that_matches_takes_the_alert() -> None:
    assert receivers(ROOT, severity="critical", team="gpus") == ["pager"]
    assert receivers(ROOT, team="gpus") == ["gpus"]
    assert receivers(ROOT, team="gpus", shift="night") == ["night"]
    assert receivers(ROOT, team="other") == ["default"]


def test_after_a_child_that_continues_the_next_one_may_take_it_too() -> None:
    root = replace(ROOT, routes=(replace(CRITICAL, continues=True), GPUS, AlertRoute("last")))
    assert receivers(root, severity="critical", team="gpus") == ["pager", "gpus"]
    assert receivers(root, severity="critical") == ["pager", "last"]


def test_a_route_whose_matchers_do_not_match_takes_nothing() -> None:
    assert receivers(GPUS, team="other", shift="night") == []


def test_walking_visits_every_route_before_its_children() -> None:
    assert [route.receiver for route in ROOT.walk()] == ["default", "pager", "gpus", "night"]
