"""The threads of rule evaluation: slow groups delay no other, and the end of the program waits for none."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np

from gpuscope.base.settings import load_settings
from gpuscope.cli.wiring.rule_evaluation import RuleEvaluation, RuleIo, load_rules
from gpuscope.history.promql import Vector
from gpuscope.history.scrape.config import ScrapeConfig
from gpuscope.judge.rules.rule_group import RuleGroup
from gpuscope.judge.rules.rule_io import NoSamples
from tests.waiting import PATIENCE_SECONDS, wait_for

SLOW = "- {{name: slow{}, interval: 100ms, rules: [{{alert: S, expr: slow}}, {{alert: T, expr: slow}}]}}\n"
QUICK = "- {name: quick, interval: 100ms, rules: [{alert: Q, expr: quick}]}\n"


class SlowQueries:
    """Answers `quick` at once and `slow` when `answer` is set."""

    def __init__(self) -> None:
        self.answer = threading.Event()
        self.asked = 0

    def instant(self, expression: str, at_ms: int) -> Vector:
        if expression == "slow":
            self.asked += 1
            assert self.answer.wait(PATIENCE_SECONDS)
        return Vector(at_ms, [()], np.array([1.0]))


def evaluation(folder: Path, queries: SlowQueries, stopping: threading.Event | None = None) -> RuleEvaluation:
    rules = folder / "rules.yml"
    rules.write_text("groups:\n" + "".join(map(SLOW.format, range(3))) + QUICK)
    settings = load_settings({"rules": str(rules)}, {})
    io = RuleIo(queries, NoSamples(), stopping or threading.Event())
    loaded = load_rules(settings, ScrapeConfig(), with_rollup=False)
    return RuleEvaluation(settings, ("127.0.0.1", 1), loaded, io, folder / "state.json")


def group(rules: RuleEvaluation, name: str) -> RuleGroup:
    return next(one for one in rules.view.groups() if one.spec.name == name)


def test_a_group_is_evaluated_while_three_others_hang(tmp_path: Path) -> None:
    queries = SlowQueries()
    with evaluation(tmp_path, queries) as rules:
        wait_for(lambda: queries.asked == 3, "three queries that hang")
        before = group(rules, "quick").iterations
        wait_for(lambda: group(rules, "quick").iterations >= before + 5, "evaluations of the other group")
        assert queries.asked == 3, "a group is evaluated by one thread at a time"
        assert {group(rules, f"slow{n}").iterations for n in range(3)} == {1}
        assert rules.view.groups()[0].alerting_rules()[0].active_alerts(), "the quick alert is there"
        queries.answer.set()
        wait_for(lambda: group(rules, "slow0").missed > 0, "the slow group's missed slots")


def test_at_the_end_rules_that_have_not_begun_are_left_out(tmp_path: Path) -> None:
    queries, stopping = SlowQueries(), threading.Event()
    with evaluation(tmp_path, queries, stopping) as rules:
        wait_for(lambda: queries.asked == 3 and group(rules, "quick").iterations, "three queries that hang")
        stopping.set()
        queries.answer.set()
    assert queries.asked == 3, "the second rule of each group has not begun"
    saved = json.loads((tmp_path / "state.json").read_text())["groups"]
    alerts = {rule["name"]: len(rule["alerts"]) for one in saved for rule in one["rules"]}
    assert alerts == {"Q": 1, "S": 1, "T": 0}, "the state of all alerts is saved"
