"""`for` after a restart without our own state file: what Prometheus restores from `ALERTS_FOR_STATE`.

The samples are written as a server that ran before would have left them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuscope.judge.rules.alert_state import AlertState
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.model.series import Labels
from tests.rules.rig import START, Rig
from tests.rules.scenario import STALE

RULES = """
groups:
- name: g
  interval: 10s
  rules:
  - alert: Hot
    expr: m > 1
    for: {hold}
    labels: {{severity: page, gpu_name: "GPU {{{{ $labels.gpu }}}}"}}
"""
HOUR = 3600
DOWN = START - 100
"""When the server stopped."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    found = Rig(tmp_path / "rig")
    yield found
    found.close()


def left(rig: Rig, active_at: int, **changes: str) -> None:
    """The last sample of an alert of the server that ran before."""
    labels = {"alertname": "Hot", "severity": "page", "gpu": "0", "gpu_name": "GPU 0", **changes}
    series: Labels = tuple(sorted({"__name__": "ALERTS_FOR_STATE", **labels}.items()))
    rig.write([(series, DOWN * 1000, active_at)])


def started(rig: Rig, hold: str) -> float:
    """When the alert counts as active, after three evaluations."""
    rig.start_runner(RULES.format(hold=hold))
    for _ in range(3):
        rig.set(5, gpu="0")
        rig.advance(10)
    [alert] = rig.rule("Hot").active_alerts()
    return alert.active_at_ns / SECOND_NS


def restored_at(rig: Rig) -> float:
    """The restore follows the second evaluation; the third has been."""
    slot = rig.group("g").last_slot_ns
    assert slot is not None
    return slot / SECOND_NS - 10


def test_a_for_that_was_over_fires_at_the_next_evaluation(rig: Rig) -> None:
    left(rig, DOWN - 2 * HOUR)
    assert started(rig, "2h") == DOWN - 2 * HOUR
    [alert] = rig.rule("Hot").active_alerts()
    assert alert.state is AlertState.FIRING
    assert alert.fired_at_ns == rig.group("g").last_slot_ns, (
        "startsAt is the first evaluation after the restore"
    )


def test_less_than_the_grace_period_left_waits_for_the_grace_period(rig: Rig) -> None:
    left(rig, DOWN - 2 * HOUR + 300)
    assert started(rig, "2h") == pytest.approx(restored_at(rig) + 600 - 2 * HOUR, abs=10)


def test_more_left_goes_on_without_the_time_away(rig: Rig) -> None:
    left(rig, DOWN - HOUR)
    assert started(rig, "2h") == pytest.approx(restored_at(rig) - HOUR, abs=10)


@pytest.mark.parametrize(
    ("hold", "changes", "why"),
    [
        ("9m59s", {}, "a for below the grace period starts anew"),
        ("2h", {"gpu": "1"}, "another series"),
        ("2h", {"severity": "warn"}, "another label of the rule"),
    ],
)
def test_it_starts_anew(rig: Rig, hold: str, changes: dict[str, str], why: str) -> None:
    left(rig, DOWN - 2 * HOUR, **changes)
    assert started(rig, hold) >= START, why


def test_an_alert_that_had_ended_is_not_restored(rig: Rig) -> None:
    left(rig, DOWN - 2 * HOUR)
    series = rig.query("ALERTS_FOR_STATE", DOWN)[0][0]
    rig.write([(tuple(sorted(series.items())), (DOWN + 1) * 1000, STALE)])
    assert started(rig, "2h") >= START


def test_longer_away_than_an_hour_starts_anew(rig: Rig) -> None:
    left(rig, DOWN - 2 * HOUR)
    rig.clock.seconds += HOUR
    assert started(rig, "2h") >= START + HOUR


def test_until_it_is_restored_no_series_are_written(rig: Rig) -> None:
    rig.start_runner(RULES.format(hold="2h"))
    written = []
    for _ in range(3):
        rig.set(5, gpu="0")
        rig.advance(10)
        written.append(bool(rig.query("last_over_time(ALERTS[1h])")))
    assert written == [False, False, True]


def test_a_rule_that_lost_its_state_by_the_limit_does_not_get_it_back_at_a_restart(rig: Rig) -> None:
    rules = RULES.format(hold="0s").replace("interval: 10s", "interval: 10s\n  limit: 1")
    rig.start_runner(rules)
    rig.set(5, gpu="0")
    rig.advance(10)
    assert len(rig.rule("Hot").active_alerts()) == 1
    rig.set(5, gpu="1")
    rig.set(5, gpu="0")
    rig.advance(10)
    assert rig.rule("Hot").active_alerts() == []
    rig.start_runner(rules)
    rig.runner.run_due()
    assert rig.rule("Hot").active_alerts() == []
