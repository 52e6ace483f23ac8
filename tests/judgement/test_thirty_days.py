"""Thirty days of a fleet of nine nodes, judged as a server judges them: hour by hour, now and over time.

Without a fault nobody is accused. With 200 faults among the same people each is found, with its owner, its
beginning and its cost, and nobody else is accused.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.history.store import Store, StoreOptions
from gpuscope.history.store.options import DAY_MS
from tests.judgement.comparison import SLACK_SHARE
from tests.judgement.days import DAY_SECONDS, HOUR, INTERVAL
from tests.judgement.fleet import FleetScrapes, Slot, plan_fleet
from tests.judgement.test_situations import InlineExecutor
from tests.judgement.verdicts import FoundFinding, Server
from tests.store.support import HandClock

pytestmark = pytest.mark.slow

SEED = 20261118
FAULTS = 200
HOURS_BETWEEN_LOOKS = 8
"""Somebody looks at the findings of now about so often."""
MAX_SHOWN = 40


def judge_fleet(slots: Sequence[Slot], folder: Path, seed: int) -> list[str]:
    """Everything that is judged wrong, in words."""
    rng = random.Random(seed)
    start, end = slots[0].start, max(slot.end for slot in slots)
    clock, wrong = HandClock(round(1000 * start)), []
    with Store(folder, StoreOptions(retention_ms=40 * DAY_MS), clock=clock) as store:
        evaluator, executor = Engine(store), InlineExecutor()
        scrapes = FleetScrapes(store, slots)
        server = Server(lambda: EmbeddedEngine(store, evaluator, executor), start, start)
        at, look_at = start, start + rng.uniform(1, HOURS_BETWEEN_LOOKS) * HOUR
        while at < end:
            clock.at = round(1000 * (at + HOUR))
            scrapes.append(at, at + HOUR)
            store.maintain()
            at += HOUR
            if at >= look_at:
                now = at - rng.uniform(0, HOUR)
                server.move_to(now)
                found = server.findings_now(_down(slots, now))
                wrong += [f"now: {text}" for slot in slots for text in _differences_now(slot, found, now)]
                look_at = at + rng.uniform(0, 2 * HOURS_BETWEEN_LOOKS) * HOUR
        server.move_to(end)
        server.read_history()
        for slot in slots:
            # The step in which a day begins still sees the last scrape of the day before.
            past = server.findings_between(slot.start + INTERVAL, slot.end)
            wrong += [f"over time: {text}" for text in slot.differences(past)]
        weeks = np.arange(start, end, 7 * DAY_SECONDS).tolist()
        found = [one for week in weeks for one in server.findings_between(week, week + 7 * DAY_SECONDS)]
    return [*wrong, *_differences_of_costs(slots, found)]


def _differences_now(slot: Slot, found: Sequence[FoundFinding], now: float) -> list[str]:
    return list(slot.differences(found, now)) if slot.start <= now < slot.end else []


def _down(slots: Sequence[Slot], now: float) -> list[TargetHealth]:
    """Agents that do not answer."""
    return [
        TargetHealth(
            labels={"job": "gpuscope", "instance": instance}, url=f"http://{instance}", error="refused"
        )
        for slot in slots
        if slot.start <= now < slot.end
        for instance in slot.down_instances(now)
    ]


def _differences_of_costs(slots: Sequence[Slot], findings: Sequence[FoundFinding]) -> list[str]:
    """By what goes wrong, over the thirty days."""
    faults = [fault for slot in slots for fault in slot.recording.faults]
    # Faults that are found as one of several kinds share some of these.
    several = tuple(sorted({kind for fault in faults if len(fault.kinds) > 1 for kind in fault.kinds}))
    expected: dict[tuple[str, ...], float] = defaultdict(float)
    for fault in faults:
        expected[several if len(fault.kinds) > 1 else fault.kinds] += fault.gpu_hours or 0.0
    found = {kinds: sum(one.gpu_hours or 0.0 for one in findings if one.kind in kinds) for kinds in expected}
    return [
        f"thirty days: {'|'.join(kinds)} costs {found[kinds]:.2f} GPU-hours, not {hours:.2f}"
        for kinds, hours in expected.items()
        if abs(found[kinds] - hours) > SLACK_SHARE * hours
    ]


def test_thirty_innocent_days_accuse_nobody(tmp_path: Path) -> None:
    slots = plan_fleet(SEED, 0)
    assert not any(fault.is_accusation for slot in slots for fault in slot.recording.faults)
    wrong = judge_fleet(slots, tmp_path, SEED)
    assert not wrong, "\n".join([f"{len(wrong)}:", *wrong[:MAX_SHOWN]])


def test_each_of_200_faults_is_found_with_owner_beginning_and_cost(tmp_path: Path) -> None:
    slots = plan_fleet(SEED, FAULTS)
    assert sum(fault.is_accusation for slot in slots for fault in slot.recording.faults) == FAULTS
    wrong = judge_fleet(slots, tmp_path, SEED)
    assert not wrong, "\n".join([f"{len(wrong)}:", *wrong[:MAX_SHOWN]])
