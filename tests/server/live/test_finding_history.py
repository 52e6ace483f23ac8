"""Beginnings of findings from the history, over the real PromQL engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gpuscope.health.facts import Sample
from gpuscope.health.finding import Finding, FindingOwner
from gpuscope.health.missing import NOTHING_MISSING
from gpuscope.promql import Engine, Vector
from gpuscope.server.live.fleet_judge import FleetJudge
from gpuscope.server.live.fleet_samples import by_node
from tests.health.fleets import HOUR, NOW, gpu, node, of_gpu, process
from tests.promql.memory import MemoryStorage

Picture = Callable[[float], list[Sample]]


class History:
    """A fleet sampled every 30 s for three hours, in a storage that the engine reads."""

    def __init__(self, picture: Picture, hours: float = 3.0) -> None:
        series: dict[tuple[tuple[str, str], ...], list[tuple[int, float]]] = {}
        for step in range(int(hours * 120) + 1):
            at = NOW - hours * HOUR + 30 * step
            for metric, labels, value in picture(at):
                key = tuple(sorted({"__name__": metric, **labels}.items()))
                series.setdefault(key, []).append((int(at * 1000), value))
        storage = MemoryStorage()
        for key, points in series.items():
            storage.add(dict(key), points)
        self._engine = Engine(storage)
        self.is_broken = False
        self.queries = 0

    async def ask(self, expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        self.queries += 1
        if self.is_broken:
            raise OSError("the store is away")
        result = self._engine.instant(expression, int(at * 1000))
        assert isinstance(result, Vector)
        return list(zip(map(dict, result.labels), result.values.tolist(), strict=True))


def look_twice(history: History, picture: Picture) -> list[Finding]:
    """A server's first look after its start, the lookup, and the second look."""
    judge = FleetJudge(history.ask)
    first = judge.judge(by_node(picture(NOW)), NOTHING_MISSING, NOW)
    asyncio.run(judge.look_up(first))
    second = judge.judge(by_node(picture(NOW + 1)), NOTHING_MISSING, NOW + 1)
    asyncio.run(judge.look_up(second))  # who was on a lost GPU is asked once its time is known
    return judge.judge(by_node(picture(NOW + 2)), NOTHING_MISSING, NOW + 2).findings


def worked_twice(at: float) -> list[Sample]:
    """Works at the start and once more, 80 minutes before now; the agent restarted a minute ago."""
    working = at < NOW - 2 * HOUR or NOW - 82 * 60 <= at < NOW - 80 * 60
    idle_for = None if working else min(at - (NOW - 60), 60.0) if at > NOW - 60 else 60.0
    return [*node(at=at), *gpu("0"), *process("0", user="a", idle_for=idle_for, at=at)]


def test_an_idle_gpu_counts_from_its_last_work() -> None:
    (finding,) = look_twice(History(worked_twice), worked_twice)
    assert finding.kind == "held_idle"
    assert finding.since is not None
    last_work = NOW - 80 * 60
    assert last_work - 30 <= finding.since <= last_work + 300, "never earlier than the work itself"


def throttled_for_an_hour(at: float) -> list[Sample]:
    reason = of_gpu("0", "throttle_reason", 1.0 if at >= NOW - HOUR else 0.0, reason="hw_thermal_slowdown")
    return [*node(at=at), *gpu("0"), reason]


def just_throttled(at: float) -> list[Sample]:
    reason = of_gpu("0", "throttle_reason", 1.0 if at >= NOW - 90 else 0.0, reason="hw_thermal_slowdown")
    return [*node(at=at), *gpu("0"), reason]


def always_narrow(at: float) -> list[Sample]:
    return [
        *node(at=at),
        *gpu("0"),
        of_gpu("0", "pcie_link_width", 8.0),
        of_gpu("0", "pcie_link_width_max", 16.0),
    ]


@pytest.mark.parametrize(
    ("picture", "began", "early", "late"),
    [
        (throttled_for_an_hour, NOW - HOUR, 330, 0),
        (just_throttled, NOW - 90, 40, 0),
        (always_narrow, NOW - 3 * HOUR, 0, 330),  # as far as the history reaches
    ],
)
def test_a_condition_counts_from_when_it_began(
    picture: Picture, began: float, early: float, late: float
) -> None:
    (finding,) = look_twice(History(picture), picture)
    assert finding.since is not None
    assert began - early <= finding.since <= began + late


def test_a_young_history_is_enough() -> None:
    """A step of five minutes may hit none of its samples."""
    (finding,) = look_twice(History(always_narrow, hours=0.02), always_narrow)
    assert finding.since is not None
    assert NOW - 72 - 1 <= finding.since <= NOW
    (finding,) = look_twice(History(lambda at: []), always_narrow)
    assert finding.since == NOW, "nothing is stored yet"


def lost_an_hour_ago(at: float) -> list[Sample]:
    if at < NOW - HOUR:
        return [*node(at=at), *gpu("0"), *process("0", user="a", slurm_job="17", at=at)]
    xid = of_gpu("0", "xid_last_timestamp_seconds", NOW - HOUR, xid="79")
    return [*node(at=at), *gpu("0", up=0.0), xid]


def test_a_lost_gpu_names_who_was_on_it() -> None:
    (finding,) = look_twice(History(lost_an_hour_ago), lost_an_hour_ago)
    assert (finding.kind, finding.since) == ("gpu_lost", NOW - HOUR)
    assert finding.owner == FindingOwner("job", "", "17", "a")


def test_a_history_that_fails_costs_only_the_beginning() -> None:
    history = History(throttled_for_an_hour)
    history.is_broken = True
    (finding,) = look_twice(history, throttled_for_an_hour)
    assert (finding.kind, finding.since) == ("throttled", None)


def test_what_is_known_is_not_asked_again() -> None:
    history = History(throttled_for_an_hour)
    judge = FleetJudge(history.ask)
    for second in range(5):
        judged = judge.judge(by_node(throttled_for_an_hour(NOW + second)), NOTHING_MISSING, NOW + second)
        asyncio.run(judge.look_up(judged))
    assert history.queries == 4
