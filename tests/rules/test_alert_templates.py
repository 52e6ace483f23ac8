"""Annotations with queries: their number in an evaluation is bounded, and every alert gets its turn."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.judge.rules.alert_templates import NOT_LOOKED_UP, load_templates
from gpuscope.judge.rules.evaluated_rules import AlertContext
from tests.rules.rig import Rig

RULES = """
groups:
- name: g
  interval: 15s
  rules:
  - alert: Many
    expr: m > 0
    annotations:
      seen: '{{ with printf "m{gpu=%q}" $labels.gpu | query }}{{ . | first | value }}{{ end }}'
      plain: 'GPU {{ $labels.gpu }} has {{ $value }}'
"""
MAX_QUERIES = 4


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(tmp_path, templates=load_templates())
    context = AlertContext(rig.templates, {}, "http://x", max_template_queries=MAX_QUERIES)
    rig.start_runner(RULES, context=context)
    yield rig
    rig.close()


def evaluate(rig: Rig, value: float, gpus: int) -> dict[str, dict[str, str]]:
    """The annotations by GPU, after one evaluation of these series."""
    for gpu in range(gpus):
        rig.set(value, gpu=str(gpu))
    rig.advance(15.0)
    return {dict(one.labels)["gpu"]: dict(one.annotations) for one in rig.rule("Many").table}


def test_lookups_of_many_alerts_take_turns_and_new_alerts_come_first(rig: Rig) -> None:
    before = LIMITS_REACHED.counts()["rules_max_template_queries"]
    first = evaluate(rig, 1.0, 10)
    assert sorted(text["seen"] for text in first.values()) == ["1"] * MAX_QUERIES + [NOT_LOOKED_UP] * 6
    assert all(text["plain"] == f"GPU {gpu} has 1" for gpu, text in first.items())
    second = evaluate(rig, 2.0, 10)
    assert sorted(text["seen"] for text in second.values()) == ["1"] * 4 + ["2"] * 4 + [NOT_LOOKED_UP] * 2
    assert all(text["plain"] == f"GPU {gpu} has 2" for gpu, text in second.items())
    third = evaluate(rig, 3.0, 10)
    assert sorted(text["seen"] for text in third.values()) == ["1"] * 2 + ["2"] * 4 + ["3"] * 4
    assert LIMITS_REACHED.counts()["rules_max_template_queries"] == before + 3
    newcomers = evaluate(rig, 4.0, 12)
    assert (newcomers["10"]["seen"], newcomers["11"]["seen"]) == ("4", "4")
    assert len(rig.kept.alerts) >= 12, "every alert is sent"


def test_few_alerts_are_looked_up_at_each_evaluation(rig: Rig) -> None:
    for value in ("1", "2", "3"):
        found = evaluate(rig, float(value), MAX_QUERIES - 1)
        assert {text["seen"] for text in found.values()} == {value}
