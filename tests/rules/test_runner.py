"""The engine over time: schedule, reload, restart, failing rules; on an injected clock."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql import Engine, Vector
from gpuscope.judge.rules.alert_state import AlertState
from gpuscope.judge.rules.evaluated_rules import AlertContext
from gpuscope.judge.rules.rule_io import EvaluatorQueries, RuleQueryError
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.judge.rules.unit_tests import MemoryStorage
from tests.rules.rig import START, Rig
from tests.waiting import PATIENCE_SECONDS, wait_for

HOT = """
groups:
- name: g
  interval: 10s
  rules:
  - alert: Hot
    expr: m > 1
    for: {hold}
"""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path / "rig")
    yield found
    found.close()


def keep_hot(rig: Rig, seconds: int) -> None:
    for _ in range(seconds // 10):
        rig.set(5)
        rig.advance(10)


def names(rig: Rig, expression: str) -> set[str]:
    return {labels["__name__"] for labels, _ in rig.query(expression)}


def test_a_slow_evaluation_misses_slots_and_jumps_ahead(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="0s"))
    rig.advance(10)
    first = rig.group("g").last_slot_ns
    assert first is not None
    rig.clock.seconds = first / SECOND_NS + 35  # as if the evaluation had taken so long
    rig.runner.run_due()
    group = rig.group("g")
    assert (group.missed, group.iterations) == (2, 4)
    assert group.last_slot_ns == first + 30 * SECOND_NS


def test_a_clock_that_is_set_back_does_not_stop_evaluation(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="0s"))
    rig.advance(20)
    rig.clock.seconds -= 3600
    before = rig.group("g").iterations
    rig.advance(20)
    assert rig.group("g").iterations == before + 2


def test_a_failing_rule_writes_nothing_and_the_next_ones_run(rig: Rig) -> None:
    rules = """
groups:
- name: g
  interval: 10s
  rules:
  - {record: a, expr: m}
  - {record: b, expr: m + on() group_left() m}
  - {alert: C, expr: m}
"""
    rig.start_runner(rules)
    rig.set(1, gpu="0")
    rig.advance(30)
    assert names(rig, '{__name__=~"a|b"}') == {"a", "b"}
    sent = len(rig.kept.alerts)
    rig.set(1, gpu="0")
    rig.set(1, gpu="1")  # b fails now: many-to-many
    rig.advance(10)
    rule = rig.group("g").rules[1]
    assert (rule.health, "many-to-many" in rule.last_error) == ("err", True)
    assert len(rig.query("b")) == 1, "no stale marker: the last value is still there"
    assert len(rig.query("a")) == 2
    assert len(rig.kept.alerts) > sent
    assert rig.group("g").failures == 1


def test_a_reload_keeps_state_and_ends_what_was_removed(rig: Rig) -> None:
    rules = HOT.format(hold="60s") + "  - {record: old, expr: m}\n"
    rig.start_runner(rules)
    rig.advance(30)
    keep_hot(rig, 30)
    active_at = rig.rule("Hot").active_alerts()[0].active_at_ns
    assert names(rig, "old") == {"old"}
    rig.set(5)
    rig.reload(HOT.format(hold="30s"))
    rig.advance(11)
    (alert,) = rig.rule("Hot").active_alerts()
    assert (alert.active_at_ns, alert.state) == (active_at, AlertState.FIRING)
    assert names(rig, "old") == set(), "the series of the removed rule ended at the next evaluation"


def test_a_reload_leaves_equal_groups_untouched(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="0s"))
    rig.advance(10)
    before = rig.group("g")
    rig.reload(HOT.format(hold="0s") + "- name: other\n  rules: []\n")
    rig.advance(10)
    assert rig.group("g") is before
    assert len(rig.runner.groups) == 2


def test_a_removed_group_ends_two_intervals_later(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="0s"))
    rig.advance(30)
    keep_hot(rig, 20)
    assert names(rig, "ALERTS") == {"ALERTS"}
    rig.reload("groups: []")
    rig.advance(19)
    assert names(rig, "ALERTS") == {"ALERTS"}
    rig.advance(2)
    assert names(rig, "ALERTS") == set()


def test_a_renamed_group_does_not_end_the_series_it_goes_on_writing(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="0s"))
    rig.advance(30)
    keep_hot(rig, 20)
    rig.reload(HOT.format(hold="0s").replace("name: g", "name: renamed"))
    keep_hot(rig, 60)
    ended = rig.query('count_over_time(ALERTS{alertstate="firing"}[40s])')
    assert [count for _, count in ended] == [4]


@pytest.mark.parametrize(("hold", "seconds"), [("30s", 30), ("5m", 300), ("20m", 1200)])
def test_for_goes_on_after_a_restart_where_it_was(rig: Rig, hold: str, seconds: int) -> None:
    rig.start_runner(HOT.format(hold=hold))
    rig.advance(30)
    keep_hot(rig, seconds - 10)
    before = rig.rule("Hot").active_alerts()[0]
    assert before.state is AlertState.PENDING
    rig.clock.seconds += 3 * 3600  # killed, and away for longer than any look-back
    rig.start_runner(HOT.format(hold=hold))
    keep_hot(rig, 20)
    (alert,) = rig.rule("Hot").active_alerts()
    assert alert.state is AlertState.FIRING, "the time before the restart counts"
    assert alert.active_at_ns > before.active_at_ns, "the time away does not"


def test_a_firing_alert_keeps_its_start_over_a_restart_and_is_not_resolved_meanwhile(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="10s"))
    rig.advance(30)
    keep_hot(rig, 30)
    started = {alert.starts_at for alert in rig.kept.alerts}
    assert len(started) == 1
    rig.kept.alerts.clear()
    rig.clock.seconds += 600  # no data for now: the first evaluations find nothing
    rig.start_runner(HOT.format(hold="10s"))
    rig.advance(20)
    assert {alert.ends_at for alert in rig.kept.alerts} == {None}
    keep_hot(rig, 90)
    assert {alert.starts_at for alert in rig.kept.alerts} == started
    assert {alert.ends_at for alert in rig.kept.alerts} == {None}
    rig.set(0)
    rig.advance(10)
    assert rig.kept.alerts[-1].ends_at is not None


def test_without_a_state_file_for_is_restored_as_in_prometheus(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="20m"))
    rig.advance(30)
    keep_hot(rig, 900)
    active_at = rig.rule("Hot").active_alerts()[0].active_at_ns
    (rig.folder / "state.json").unlink()
    rig.clock.seconds += 100
    rig.start_runner(HOT.format(hold="20m"))
    keep_hot(rig, 10)
    assert names(rig, "ALERTS_FOR_STATE offset 5s") <= {"ALERTS_FOR_STATE"}
    keep_hot(rig, 20)
    (alert,) = rig.rule("Hot").active_alerts()
    # 15 of 20 minutes had passed: less than the grace period of 10 minutes is left, so that is the rest.
    expected = rig.clock.seconds + 600 - 1200
    assert abs(alert.active_at_ns / SECOND_NS - expected) <= 20
    assert alert.active_at_ns > active_at


def test_a_damaged_state_file_is_ignored(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    for content in (b"", b"{", b'{"version": 9, "groups": []}', b"[]", b'{"version":1,"groups":[{"key":1}]}'):
        (rig.folder / "state.json").write_bytes(content)
        rig.start_runner(HOT.format(hold="0s"))
        rig.advance(10)
    assert "cannot be read and is ignored" in caplog.text


def test_a_saved_alert_of_a_strange_shape_is_ignored(rig: Rig) -> None:
    rig.start_runner(HOT.format(hold="0s"))
    key = rig.group("g").spec.key
    rules = [{"name": "Hot", "labels": [], "alerts": [{"labels": 3}]}]
    document = {"version": 1, "groups": [{"key": key, "last_slot_ns": 1, "rules": rules}]}
    (rig.folder / "state.json").write_text(json.dumps(document))
    rig.start_runner(HOT.format(hold="0s"))
    rig.advance(30)
    keep_hot(rig, 20)
    assert rig.rule("Hot").state() is AlertState.FIRING


def test_more_alerts_than_allowed_fail_the_rule(rig: Rig) -> None:
    before = LIMITS_REACHED.counts()["rules_max_alerts"]
    context = AlertContext(rig.templates, {}, "", max_alerts=2)
    rig.start_runner(HOT.format(hold="0s"), context=context)
    rig.set(5, gpu="0")
    rig.set(5, gpu="1")
    rig.advance(10)
    assert len(rig.rule("Hot").active_alerts()) == 2
    rig.set(5, gpu="2")
    rig.advance(10)
    rule = rig.rule("Hot")
    assert (rule.health, "rules_max_alerts" in rule.last_error) == ("err", True)
    assert len(rule.active_alerts()) == 2, "nothing has changed"
    assert LIMITS_REACHED.counts()["rules_max_alerts"] == before + 1


def test_a_group_that_is_never_fast_enough_does_not_keep_the_thread(rig: Rig) -> None:
    rules = HOT.format(hold="0s")

    class SlowQueries:
        def instant(self, expression: str, at_ms: int) -> Vector:
            rig.clock.seconds += 25
            return rig.queries().instant(expression, at_ms)

    rig.start_runner(rules, queries=SlowQueries())
    rig.runner.run_due()
    rig.clock.seconds += 10
    for _ in range(3):
        assert rig.runner.run_due() == 0.0
    assert rig.group("g").missed > 0


TWO = """
groups:
- {name: slow, interval: 10s, rules: [{alert: S, expr: slow}]}
- {name: quick, interval: 10s, rules: [{alert: Q, expr: m > 1}]}
"""


class HangingQueries:
    """`slow` does not answer until `answer` is set."""

    def __init__(self, rig: Rig) -> None:
        self._queries = rig.queries()
        self.asked, self.answer = threading.Event(), threading.Event()

    def instant(self, expression: str, at_ms: int) -> Vector:
        if expression == "slow":
            self.asked.set()
            assert self.answer.wait(PATIENCE_SECONDS)
        return self._queries.instant(expression, at_ms)


@contextmanager
def hanging(rig: Rig) -> Iterator[HangingQueries]:
    """Another thread evaluates the slow group; this one has evaluated the other group once."""
    queries = HangingQueries(rig)
    rig.start_runner(TWO, queries=queries)
    rig.runner.run_due()
    rig.clock.seconds += 10
    thread = threading.Thread(target=rig.runner.run_due)
    thread.start()
    try:
        assert queries.asked.wait(PATIENCE_SECONDS)
        rig.runner.run_due()
        yield queries
    finally:
        queries.answer.set()
        thread.join()


def test_a_slow_group_delays_no_other(rig: Rig) -> None:
    with hanging(rig):
        for _ in range(5):
            rig.set(5)
            idle = rig.runner.run_due()
            assert 0 < idle <= 10, "it neither sleeps over the next slot nor asks all the time"
            rig.advance(10)
        assert rig.group("quick").missed == 0
        assert rig.group("quick").iterations >= 5
        assert rig.rule("Q").state() is AlertState.FIRING
        assert rig.group("slow").iterations == 1, "no other thread begins the same group"
    rig.runner.run_due()
    assert rig.group("slow").missed > 0
    saved = json.loads((rig.folder / "state.json").read_text())["groups"]
    assert {rule["name"]: len(rule["alerts"]) for group in saved for rule in group["rules"]} == {"Q": 1, "S": 0}


def test_a_reload_waits_only_for_the_groups_that_it_changes(rig: Rig) -> None:
    with hanging(rig) as queries:
        rig.reload(TWO.replace("m > 1", "m > 2"))
        rig.advance(10)
        assert rig.group("quick").rules[0].spec.expression == "m > 2", "the slow group is equal"
        rig.reload(TWO.replace("expr: slow", "expr: slow * 2").replace("m > 1", "m > 3"))
        before = rig.group("quick").iterations
        rig.advance(30)
        assert rig.group("quick").rules[0].spec.expression == "m > 2", "no half of a reload is used"
        assert rig.group("quick").iterations == before, "it begins again with the new rules"
        queries.answer.set()
        wait_for(lambda: rig.group("slow").rules[0].spec.expression == "slow * 2", "the reload")
    rig.advance(10)
    assert rig.group("quick").rules[0].spec.expression == "m > 3"
    assert rig.group("quick").iterations > before


def test_nothing_begins_and_nothing_fails_once_the_program_stops(rig: Rig) -> None:
    stopping = threading.Event()
    rules = TWO.replace(
        "rules: [", "rules: [{record: r, expr: m}, {record: t, expr: m + on() group_left() m}, "
    )
    rig.start_runner(rules, stopping=stopping, queries=EvaluatorQueries(Engine(rig.memory), stopping))
    rig.set(1, gpu="0")
    rig.set(1, gpu="1")
    rig.advance(10)
    before = [(group.iterations, group.failures) for group in rig.runner.groups]
    assert before == [(1, 1), (1, 1)]
    stopping.set()
    rig.clock.seconds += 30
    rig.runner.run_due()
    assert [(group.iterations, group.failures) for group in rig.runner.groups] == before
    rig.group("quick").evaluate((START + 60) * SECOND_NS)  # as if it had begun before
    assert rig.group("quick").failures == 1
    assert rig.group("quick").evaluations == before[0][0] * 3 + 1, "its other rules are left out"


def test_a_template_that_fails_leaves_its_error_and_the_alert_goes(rig: Rig) -> None:
    rules = """
groups:
- name: g
  interval: 10s
  rules:
  - alert: A
    expr: m > 1
    labels: {gone: "{{ none }}", node: "n-{{ $labels.node }}", own: "{{ $labels.__name__ }}"}
    annotations: {bad: "{{ fail }}", good: "{{ $value }} W"}
"""
    rig.start_runner(rules)
    rig.advance(30)
    rig.set(7, node="a")
    rig.advance(10)
    (alert,) = rig.kept.alerts
    assert dict(alert.labels) == {"alertname": "A", "node": "n-a", "own": "m"}
    assert dict(alert.annotations) == {"bad": "<error expanding template: it fails>", "good": "7 W"}
    (series, _), *_ = rig.query("ALERTS")
    assert series["gone"] == "{{ none }}", "Prometheus shows the raw text here"


def test_expressions_of_checks_are_evaluated_as_checks_are() -> None:
    """Nothing that is not needed is read, so it cannot fail either. A rule of somebody else shows its error."""
    memory = MemoryStorage()
    for gpu in "01":
        memory.add((("__name__", "a"), ("gpu", gpu)), START * 1000, 1.0)
    memory.show_until(START * 1000)
    ambiguous = "missing\nand a * on () a"
    queries = EvaluatorQueries(Engine(memory), checks=["missing and a * on () a"])
    assert list(queries.instant(ambiguous, START * 1000).labels) == []
    with pytest.raises(RuleQueryError, match="many-to-many"):
        EvaluatorQueries(Engine(memory)).instant(ambiguous, START * 1000)
