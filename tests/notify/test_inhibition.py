"""Which of several sources inhibits, and until when."""

from __future__ import annotations

import pytest

from gpuscope.judge.notify.alert_matchers import parse_matchers
from gpuscope.judge.notify.alert_routes import Inhibitor, InhibitRule
from gpuscope.judge.notify.alert_store import StoredAlert

RULE = InhibitRule(
    tuple(parse_matchers('alertname="NodeDown"')), tuple(parse_matchers('alertname="GpuLost"')), ("node",)
)
TARGET = {"alertname": "GpuLost", "node": "n1"}


def source(rack: str, ends_at: float) -> StoredAlert:
    return StoredAlert({"alertname": "NodeDown", "node": "n1", "rack": rack}, {}, 0.0, ends_at)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_source_that_ends_last_inhibits(order: tuple[int, int]) -> None:
    sources = [source("a", 100.0), source("b", 200.0)]
    inhibitor = Inhibitor([RULE])
    for number in order:
        inhibitor.update(sources[number])
    assert inhibitor.inhibited_by(TARGET, 150.0) == sources[1].fingerprint
    assert inhibitor.inhibited_by(TARGET, 199.9) == sources[1].fingerprint
    assert inhibitor.inhibited_by(TARGET, 200.0) == ""


def test_of_two_that_end_together_the_newer_one_inhibits() -> None:
    inhibitor = Inhibitor([RULE])
    for alert in (source("a", 100.0), source("b", 100.0)):
        inhibitor.update(alert)
    assert inhibitor.inhibited_by(TARGET, 50.0) == source("b", 100.0).fingerprint


def test_a_source_that_ends_sooner_than_it_said_stops_to_inhibit() -> None:
    inhibitor = Inhibitor([RULE])
    for alert in (source("a", 300.0), source("a", 60.0)):
        inhibitor.update(alert)
    assert inhibitor.inhibited_by(TARGET, 61.0) == ""


def test_only_targets_with_equal_labels_are_inhibited() -> None:
    inhibitor = Inhibitor([RULE])
    inhibitor.update(source("a", 100.0))
    assert inhibitor.inhibited_by({**TARGET, "node": "n2"}, 50.0) == ""
    assert inhibitor.inhibited_by({"alertname": "GpuLost"}, 50.0) == "", (
        "a missing label equals only an empty one"
    )
    assert inhibitor.inhibited_by({"alertname": "GpuHot", "node": "n1"}, 50.0) == ""


def test_a_rebuilt_inhibitor_knows_the_given_alerts_only() -> None:
    inhibitor = Inhibitor([RULE])
    inhibitor.update(source("a", 200.0))
    inhibitor.rebuild([])
    assert inhibitor.inhibited_by(TARGET, 50.0) == ""
    inhibitor.rebuild([source("b", 100.0)])
    assert inhibitor.inhibited_by(TARGET, 50.0) == source("b", 100.0).fingerprint


def test_alerts_that_match_both_sides_do_not_inhibit_each_other() -> None:
    severe = tuple(parse_matchers('severity=~"critical|warning"'))
    critical = tuple(parse_matchers('severity="critical"'))
    both, one_sided = {"node": "n1", "severity": "warning"}, {"node": "n1", "severity": "critical"}
    inhibitor = Inhibitor([InhibitRule(severe, severe, ("node",))])
    inhibitor.update(StoredAlert(both, {}, 0.0, 100.0))
    assert inhibitor.inhibited_by({**both, "gpu": "1"}, 50.0) == ""
    # One that matches only the side of the sources inhibits it, whichever sides it matches itself.
    inhibitor = Inhibitor([InhibitRule(severe, tuple(parse_matchers('severity="warning"')), ("node",))])
    inhibitor.update(StoredAlert(one_sided, {}, 0.0, 100.0))
    assert inhibitor.inhibited_by(both, 50.0) == StoredAlert(one_sided, {}, 0.0, 100.0).fingerprint
    inhibitor = Inhibitor([InhibitRule(critical, severe, ("node",))])
    inhibitor.update(StoredAlert(one_sided, {}, 0.0, 100.0))
    assert inhibitor.inhibited_by(both, 50.0) == StoredAlert(one_sided, {}, 0.0, 100.0).fingerprint
