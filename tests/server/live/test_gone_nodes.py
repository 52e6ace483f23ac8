"""What is gone, told from the history alone: a real store, the real evaluator, and a clock moved by hand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Vector
from gpuscope.history.scrape.target import TargetHealth
from gpuscope.history.store import Store, Tick
from gpuscope.judge.checks.facts import Missing, Sample
from gpuscope.model.series import STALE_NAN_BITS, Labels
from gpuscope.serve.live.gone_nodes import GoneWatch
from tests.server.live.pictures import fleet_state
from tests.store.support import HandClock

START = 1_700_000_000
HOUR = 3600
STALE = np.array([STALE_NAN_BITS], np.uint64).view(np.float64)[0]


def gpu_info(instance: str, index: int) -> dict[str, str]:
    own = {"gpu": str(index), "uuid": f"GPU-{instance}-{index}", "model": "H100", "node": f"name-{instance}"}
    return {"__name__": "gpuscope_gpu_info", "instance": instance, "job": "gpus", **own}


def agent_info(instance: str) -> dict[str, str]:
    own = {"node": f"name-{instance}", "simulated": "false", "version": "1"}
    return {"__name__": "gpuscope_agent_info", "instance": instance, "job": "gpus", **own}


def plain(name: str, instance: str) -> dict[str, str]:
    return {"__name__": name, "instance": instance, "job": "gpus"}


class History:
    """A store written by hand, a sample a minute."""

    def __init__(self, folder: Path) -> None:
        self.clock = HandClock(START * 1000)
        self.store = Store(folder, clock=self.clock)
        self.store.start()
        self.target = self.store.target("t")
        self.engine = Engine(self.store)

    def write(
        self, start: int, end: int, *series: dict[str, str], value: float = 1.0, interval: int = 60
    ) -> None:
        labels: list[Labels] = [tuple(sorted(one.items())) for one in series]
        ids = self.store.resolve(self.target, labels)
        for at in range(start, end, interval):
            self.clock.at = max(self.clock.at, at * 1000)
            self.store.append(Tick(self.target, at * 1000, ids, np.full(len(ids), value)))

    def node(self, instance: str, end: int, *, scraped: bool = True, start: int = START) -> None:
        names = ["up", "scrape_duration_seconds"] if scraped else ["up"]
        reports = [plain(name, instance) for name in names]
        self.write(start, end, *reports, agent_info(instance), gpu_info(instance, 0), gpu_info(instance, 1))
        if scraped:
            self.write(end, end + 60, agent_info(instance), gpu_info(instance, 0), value=STALE)

    async def ask(self, expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        result = self.engine.instant(expression, int(at * 1000))
        assert isinstance(result, Vector)
        return list(zip(map(dict, result.labels), result.values.tolist(), strict=True))

    def find_missing(self, at: float, *states: TargetHealth, samples: Sequence[Sample] = ()) -> Missing:
        """By a process that has just been started."""

        async def targets() -> Sequence[TargetHealth]:
            return states

        return asyncio.run(GoneWatch(self.ask, targets, clock=lambda: at).find_missing(list(samples)))


@pytest.fixture
def history(tmp_path: Path) -> Iterator[History]:
    history = History(tmp_path)
    yield history
    history.store.close()


def down(instance: str, error: str = "connection refused") -> TargetHealth:
    return TargetHealth(labels={"job": "gpus", "instance": instance}, error=error)


def test_since_when_is_in_the_history(history: History) -> None:
    died = START + HOUR
    history.node("b:1", died)
    history.write(died, died + HOUR, plain("up", "b:1"), value=0.0)
    missing = history.find_missing(died + HOUR, down("b:1"))
    gone = missing.nodes["b:1"]
    assert died - 120 <= gone.since <= died
    assert (gone.why, gone.answered) == ("connection refused", True)
    state = fleet_state([], now=died + HOUR, source="t", missing=missing)
    (node,) = state["nodes"]
    assert (node["name"], node["gone"]["since"], node["sources"]) == ("name-b:1", gone.since, [])
    assert [(gpu["gpu"], gpu["state"], gpu["since"]) for gpu in state["gpus"]] == [
        ("0", "gone", gone.since),
        ("1", "gone", gone.since),
    ]
    assert state["targets"] == [
        {
            "job": "gpus",
            "instance": "b:1",
            "url": "",
            "since": gone.since,
            "why": "connection refused",
            "answered": True,
        }
    ]


def test_a_gpu_that_left_hours_before_its_node_is_not_shown(history: History) -> None:
    died = START + 4 * HOUR
    history.write(START, START + HOUR, gpu_info("b:1", 7))
    history.node("b:1", died, start=START + HOUR)
    missing = history.find_missing(died + 600, down("b:1"))
    shown = fleet_state([], now=died + 600, source="t", missing=missing)["gpus"]
    assert [gpu["gpu"] for gpu in shown] == ["0", "1"]


@pytest.mark.parametrize("hours", [23, 25])
def test_it_ages_out_after_a_day(history: History, hours: int) -> None:
    died = START + HOUR
    history.node("b:1", died)
    ups = (plain("up", "b:1"), plain("up", "never:1"))
    history.write(died, died + 26 * HOUR, *ups, value=0.0, interval=240)
    missing = history.find_missing(died + hours * HOUR, down("b:1"), down("never:1"))
    expected = {"b:1", "never:1"} if hours < 24 else set()
    assert missing.nodes.keys() == expected
    assert {target.instance for target in missing.targets} == expected


def test_one_that_never_answered_has_its_first_try(history: History) -> None:
    history.write(START, START + HOUR, plain("up", "never:1"), value=0.0)
    missing = history.find_missing(START + HOUR, down("never:1", "no such host"))
    gone = missing.nodes["never:1"]
    assert (gone.answered, gone.why) == (False, "no such host")
    assert START <= gone.since <= START + 120
    (node,) = fleet_state([], now=START + HOUR, source="t", missing=missing)["nodes"]
    assert (node["name"], node["stale"]) == ("never:1", True)


@pytest.mark.parametrize("first_try", [START + 7, None])
def test_since_when_it_never_answered_does_not_move(history: History, first_try: int | None) -> None:
    """Also where the first scrape is seconds old, or not in the history yet, when that is asked."""
    if first_try is not None:
        history.write(first_try, first_try + HOUR, plain("up", "never:1"), value=0.0)
    now = [START + 17.0]

    async def targets() -> Sequence[TargetHealth]:
        return [down("never:1")]

    async def look_twice() -> list[float]:
        watch = GoneWatch(history.ask, targets, clock=lambda: now[0])
        found = [(await watch.find_missing([])).nodes["never:1"].since]
        now[0] += 600
        return [*found, (await watch.find_missing([])).nodes["never:1"].since]

    expected = START + 17.0 if first_try is None else first_try
    assert asyncio.run(look_twice()) == [expected, expected]


def test_somebody_elses_exporter_is_a_target_and_no_node(history: History) -> None:
    history.write(START, START + 600, plain("up", "exporter:1"), plain("scrape_duration_seconds", "exporter:1"))
    missing = history.find_missing(START + HOUR, down("exporter:1"))
    assert missing.nodes == {}
    assert [target.instance for target in missing.targets] == ["exporter:1"]


def test_a_node_that_pushed_is_gone_for_a_day_without_a_target(history: History) -> None:
    stopped = START + HOUR
    history.node("p", stopped, scraped=False)
    gone = history.find_missing(stopped + HOUR).nodes["p"]
    assert stopped - 120 <= gone.since <= stopped
    assert gone.why == ""
    assert history.find_missing(stopped + 25 * HOUR).nodes == {}


def test_a_scraped_node_without_a_target_has_left_the_configuration(history: History) -> None:
    history.node("b:1", START + HOUR)
    assert history.find_missing(START + 2 * HOUR) == Missing(samples=[], nodes={}, targets=[])


def test_a_node_that_came_back_under_another_address_is_not_gone(history: History) -> None:
    history.node("b:1", START + HOUR)
    now = START + HOUR + 300
    new = agent_info("b:2") | {"node": "name-b:1"}
    samples: list[Sample] = [
        ("gpuscope_agent_info", new, 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", plain("x", "b:2"), float(now)),
    ]
    missing = history.find_missing(now, down("b:1"), samples=samples)
    (node,) = fleet_state(samples, now=now, source="t", missing=missing)["nodes"]
    assert (node["instance"], "gone" in node) == ("b:2", False)


def test_one_that_died_while_nobody_scraped_is_gone_once_its_numbers_are_stale(history: History) -> None:
    """Its last samples have no end and are looked back at for five minutes."""
    died = START + HOUR
    history.write(START, died, plain("up", "b:1"), plain("scrape_duration_seconds", "b:1"))
    history.write(START, died, agent_info("b:1"), gpu_info("b:1", 0))
    lingering: list[Sample] = [
        ("gpuscope_agent_info", agent_info("b:1"), 1.0),
        ("gpuscope_gpu_info", gpu_info("b:1", 0), 1.0),
        ("gpuscope_agent_snapshot_timestamp_seconds", plain("x", "b:1"), float(died)),
    ]
    for age, expected in ((10, None), (120, "connection refused")):
        missing = history.find_missing(died + age, down("b:1"), samples=lingering)
        (node,) = fleet_state(lingering, now=died + age, source="t", missing=missing)["nodes"]
        assert node.get("gone", {}).get("why") == expected
    pushed = history.find_missing(died + 120, samples=lingering)
    assert pushed.nodes == {}, "a node that pushes is stale first"


def test_names_from_outside_are_quoted_in_queries(history: History) -> None:
    hostile = 'b"}or up{x=~".*|\\'
    history.node(hostile, START + HOUR)
    assert history.find_missing(START + 2 * HOUR, down(hostile)).nodes.keys() == {hostile}


def test_a_history_that_cannot_be_asked_takes_nothing_else_away(caplog: pytest.LogCaptureFixture) -> None:
    now = [1000.0]

    async def broken(expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        raise RuntimeError("boom")

    async def targets() -> Sequence[TargetHealth]:
        return ()

    async def look_twice() -> None:
        watch = GoneWatch(broken, targets, clock=lambda: now[0])
        for _ in range(3):
            assert (await watch.find_missing([])).nodes == {}
            now[0] += 60

    with caplog.at_level(logging.WARNING):
        asyncio.run(look_twice())
    assert len([one for one in caplog.records if "boom" in one.message]) == 1


class ManyLost:
    """A history that knows nodes which pushed until an hour ago, and counts the instances of each query.

    Its answers also name an instance that no query asks for."""

    def __init__(self, count: int) -> None:
        self.names = [f"n{number:05}" for number in range(count)]
        self.asked: list[int] = []

    async def ask(self, expression: str, at: float) -> list[tuple[dict[str, str], float]]:
        named = self.names
        if "=~" in expression:
            named = [one for one in self.names if one in expression]
            self.asked.append(len(named))
            named = [*named, "a stranger"]
        value = at - HOUR if "timestamp(" in expression else 1.0
        return [(agent_info(one), value) for one in named if "gpuscope_agent_info" in expression]

    def watch(self, limits: Limits | None = None) -> GoneWatch:
        async def targets() -> Sequence[TargetHealth]:
            return ()

        return GoneWatch(self.ask, targets, limits=limits, clock=lambda: START)


def test_thousands_are_looked_up_some_per_picture() -> None:
    many = ManyLost(450)

    async def make_pictures() -> list[int]:
        watch = many.watch()
        return [len((await watch.find_missing([])).nodes) for _ in range(6)]

    assert asyncio.run(make_pictures()) == [100, 200, 300, 400, 450, 450]
    assert max(many.asked) == 100


def test_more_than_the_limit_are_left_out() -> None:
    before = LIMITS_REACHED.counts()["live_max_gone_nodes"]
    many = ManyLost(5)
    missing = asyncio.run(many.watch(Limits(live_max_gone_nodes=3)).find_missing([]))
    assert missing.nodes.keys() == set(many.names[2:])
    assert LIMITS_REACHED.counts()["live_max_gone_nodes"] == before + 1


def test_one_that_leaves_now_is_looked_up_before_those_of_the_history() -> None:
    many = ManyLost(250)

    async def leave() -> Missing:
        watch = many.watch()
        here = ("gpuscope_agent_snapshot_timestamp_seconds", plain("", many.names[0]), float(START))
        await watch.find_missing([here])
        return await watch.find_missing([])

    assert many.names[0] in asyncio.run(leave()).nodes
