"""The checks over a real store, at a clock of the test: how soon a finding is in the picture, how long a failed
check is known, and what a finding explains."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.engines.query_engine import EngineError, EngineUnreachable, or_why_not
from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Vector
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.facts import NOTHING_MISSING, Gone, Missing, Sample, sort_samples
from gpuscope.judge.checks.finding import Condition, Finding, SubjectKey
from gpuscope.judge.checks.findings import FindingMaker
from gpuscope.judge.checks.judgement import (
    KEEP_SECONDS,
    NOT_EVALUATED,
    UNKNOWN_SECONDS,
    Judgement,
    OpenEpisode,
)
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.model.series import STALE_NAN_BITS, Labels
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.fleet_samples import by_node
from gpuscope.serve.live.judging import PAUSE_SECONDS, Judging
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.live.stored_samples import StoreSamples
from tests.health.fleets import NOW, gpu, gpu_labels, node, of_gpu, process
from tests.store.support import HandClock

STALE = float(np.array([STALE_NAN_BITS], dtype=np.int64).view(np.float64)[0])


class FailingEngine(EmbeddedEngine):
    """Over the store; raises what the test gives it, for all expressions or for one."""

    error: Exception | None = None
    of: str = ""

    async def instant(
        self,
        expression: str,
        at_ms: int | None = None,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Vector:
        if self.error is not None and self.of in ("", expression):
            raise self.error
        return await super().instant(expression, at_ms, max_series=max_series, timeout_seconds=timeout_seconds)

    async def instants(
        self,
        expressions: Sequence[str],
        at_ms: int,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> list[Vector | EngineError]:
        return [
            await or_why_not(self.instant(one, at_ms, max_series=max_series, timeout_seconds=timeout_seconds))
            for one in expressions
        ]


class Server:
    def __init__(self, store: Store, clock: HandClock) -> None:
        self._store, self._clock = store, clock
        self.now = NOW
        self.engine = FailingEngine(store, Engine(store))
        self.judging = Judging(self.engine, clock=lambda: self.now)
        self.judge = FleetJudge(self.judging)
        self.samples = StoreSamples(store)
        self._known: dict[str, set[Labels]] = {}

    def scrape(self, samples: Iterable[Sample], name: str = "n1") -> None:
        values = {
            tuple(sorted({"__name__": metric, "job": "gpus", **labels}.items())): float(value)
            for metric, labels, value in samples
        }
        values |= dict.fromkeys(self._known.get(name, set()) - values.keys(), STALE)
        self._known[name] = {labels for labels, value in values.items() if value == value}
        target = self._store.target(name)
        ids = self._store.resolve(target, values)
        self._store.append(Tick(target, int(self.now * 1000), ids, np.array(list(values.values()))))

    def evaluate(self, after_seconds: float = 0.0) -> list[Finding]:
        """The loop of `Judging.run`, and the findings of a picture at its end."""
        end = self.now + after_seconds
        while self.now <= end:
            self._clock.at = int(self.now * 1000)
            asyncio.run(self.judging.evaluate_due())
            self.now += PAUSE_SECONDS
        self.now = end
        return self.findings()

    def findings(self) -> list[Finding]:
        return self.judge.judge(self.samples.samples(), NOTHING_MISSING, self.now).findings

    def kinds(self) -> set[str]:
        return {one.kind for one in self.findings()}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    clock = HandClock(int(NOW * 1000))
    with Store(tmp_path, StoreOptions(), clock) as store:
        store.start()
        yield Server(store, clock)


def machine(*more: Sample, up: float = 1.0, at: float = NOW) -> list[Sample]:
    return [*node(at=at), *gpu("0", up=up, busy=0.5 if up else None), *more]


CRITICAL = [kind for kind, check in CHECKS.items() if check.severity == "critical" and kind != "node_down"]
"""A node that is down sends no sample; the picture shows at once that it is gone."""


def test_every_critical_check_is_evaluated_at_least_every_five_seconds() -> None:
    assert CRITICAL
    assert all(CHECKS[kind].every_seconds + PAUSE_SECONDS <= 5.0 for kind in CRITICAL)


@pytest.mark.parametrize("phase", [0.0, 1.0, 2.0, 3.0])
def test_a_critical_condition_is_in_the_picture_five_seconds_after_its_sample(
    server: Server, phase: float
) -> None:
    """Whenever the sample comes between two evaluations."""
    server.scrape(machine())
    assert server.evaluate(20.0 + phase) == []
    server.scrape(machine(up=0.0, at=server.now))
    sampled_at = server.now
    server.now += PAUSE_SECONDS
    while "gpu_lost" not in {one.kind for one in server.evaluate()}:
        server.now += PAUSE_SECONDS
        assert server.now - sampled_at <= 5.0
    (finding,) = server.findings()
    assert finding.since is not None
    assert 0 <= finding.since - sampled_at <= 5.0


def test_the_policy_reads_the_episodes_of_findings_and_nothing_after_a_failure(server: Server) -> None:
    assert server.judging.idle is None
    server.scrape(machine(*process("0", "7", idle_for=3000.0)))
    assert [finding.kind for finding in server.evaluate()] == ["held_idle"]
    moment = server.judging.idle
    assert moment is not None
    assert [episode.condition.check.kind for episode in moment.episodes] == ["held_idle"]
    assert (moment.at, moment.not_known) == (NOW, {})
    server.engine.error, server.engine.of = EngineUnreachable("refused"), CHECKS["held_idle"].promql
    server.scrape(machine(*process("0", "7", idle_for=3060.0), at=server.now))
    server.evaluate(61.0)
    assert server.kinds() == {"held_idle"}, "a finding stays for a minute"
    assert moment.not_known == {}, "what a thread has read does not change"
    assert server.judging.idle is not moment
    assert server.judging.idle is not None
    assert server.judging.idle.not_known == {"held_idle": "refused"}


def test_a_failed_check_is_known_for_a_minute_and_then_not_known(server: Server) -> None:
    server.scrape(machine(up=0.0))
    server.evaluate()
    server.engine.error, server.engine.of = EngineUnreachable("connection refused"), CHECKS["gpu_lost"].promql
    server.scrape(machine(up=0.0, at=server.now))
    server.evaluate(UNKNOWN_SECONDS / 2)
    assert server.kinds() == {"gpu_lost"}
    assert server.judging.not_known == {}
    server.evaluate(UNKNOWN_SECONDS)
    assert server.kinds() == set(), "nobody is accused from what is not known"
    assert server.judging.not_known == {"gpu_lost": "connection refused"}
    server.engine.error = None
    server.scrape(machine(up=0.0, at=server.now))
    server.evaluate(5.0)
    assert server.kinds() == {"gpu_lost"}
    assert server.judging.not_known == {}


@pytest.mark.parametrize("error", [EngineError("no"), TypeError("a defect of ours")])
def test_a_check_that_fails_takes_no_other_down(server: Server, error: Exception) -> None:
    server.engine.error, server.engine.of = error, CHECKS["recovery_action"].promql
    server.scrape(machine(up=0.0))
    assert {one.kind for one in server.evaluate()} == {"gpu_lost"}
    ((kind, reason),) = server.judging.not_known.items()
    assert kind == "recovery_action"
    assert str(error) in reason


def test_checks_that_wait_for_a_slow_engine_expire(server: Server) -> None:
    """Also those that were not tried since: each query of a hanging engine takes ten seconds."""

    class Slow(EngineError):
        pass

    server.scrape(machine(up=0.0))
    server.evaluate()
    server.engine.error = Slow("no answer in time")
    server.now += 100.0
    asyncio.run(server.judging.evaluate_due())
    assert server.judging.open_now() == []
    assert "gpu_lost" in server.judging.not_known


def test_findings_body_says_what_is_not_known(server: Server) -> None:
    server.engine.error, server.engine.of = EngineUnreachable("connection refused"), CHECKS["gpu_lost"].promql
    server.scrape(machine())
    server.evaluate()
    live = LiveFleet(server.samples.read, "test", judge=server.judge, clock=lambda: server.now)
    body = asyncio.run(live.findings_body(gzipped=False))
    assert b'"not_known":[{"kind":"gpu_lost","reason":"connection refused"}]' in body


def test_a_node_that_comes_back_is_not_down(server: Server) -> None:
    up = ("up", {"instance": "n1:9400"}, 1.0)
    server.scrape([*machine(), up])
    server.evaluate(300.0)
    server.scrape([("up", {"instance": "n1:9400"}, 0.0)])
    assert {one.kind for one in server.evaluate(15.0)} == {"node_down"}
    server.scrape([*machine(at=server.now), up])
    assert server.evaluate(15.0) == []


def lost_at(index: str, name: str = "n1") -> Condition:
    return Condition(CHECKS["gpu_lost"], gpu_labels(index, name), 0.0)


def test_a_condition_that_flickers_keeps_its_beginning_and_one_that_returns_later_does_not() -> None:
    episodes = Judgement()
    episodes.update("gpu_lost", [], NOW)
    for second in range(10, 600, 10):
        held = [lost_at("0")] if second % 20 == 10 else []
        episodes.update("gpu_lost", held, NOW + second)
        begins = [one.since for one in episodes.open_now()]
        assert begins == ([NOW + 10] if held else []), "while it does not hold it is no finding"
    again = NOW + 600 + KEEP_SECONDS
    for at in np.arange(NOW + 600, again, 60.0):
        episodes.update("gpu_lost", [], float(at))
    episodes.update("gpu_lost", [lost_at("0")], again)
    assert [one.since for one in episodes.open_now()] == [again]


def test_samples_that_come_late_date_an_episode_anew() -> None:
    """An agent that sends what it kept: the condition is first seen when the newest sample arrives."""
    episodes = Judgement()
    episodes.update("gpu_lost", [], NOW - 60)
    episodes.update("gpu_lost", [lost_at("0")], NOW)
    began: dict[SubjectKey, float] = {}
    for in_history, since in ((None, NOW), (NOW - 30, NOW), (NOW - 3000, NOW - 3000), (NOW - 1200, NOW - 1200)):
        if in_history is not None:
            began[lost_at("0").subject] = in_history
        assert [one.since for one in episodes.open_now(began)] == [since]


def test_nothing_is_judged_while_the_past_is_filled_in(server: Server) -> None:
    """The samples of now are stored after those of the past: until then every check would see none."""
    filled_until_ms: list[int | None] = [int((NOW - 3600) * 1000)]
    ledger = FindingLedger(server.engine, filled_until_ms=lambda: filled_until_ms[0])
    judging = Judging(server.engine, ledger, clock=lambda: server.now)
    asyncio.run(judging.evaluate_due())
    assert judging.open_now() == []
    assert judging.not_known["gpu_metrics_missing"] == NOT_EVALUATED
    asyncio.run(asyncio.wait_for(judging.wait_for_first(), 1.0))
    filled_until_ms[0] = None
    server.scrape(machine(up=0.0))
    asyncio.run(judging.evaluate_due())
    (lost,) = judging.open_now()
    assert (lost.condition.subject.kind, lost.since) == ("gpu_lost", None), "since when only the history says"
    assert judging.not_known == {}


def test_a_reading_that_shows_work_ends_an_accusation_at_once(server: Server) -> None:
    """The check is evaluated twice a minute; the picture beside it has changed before."""
    idle = machine(*process("0", "7", idle_for=3000.0), *process("0", "8", idle_for=3000.0))
    works = machine(*process("0", "7", idle_for=3001.0), *process("0", "8"))
    server.scrape(idle)
    server.evaluate()

    def kinds(samples: list[Sample]) -> list[str]:
        return [one.kind for one in server.judge.judge(by_node(samples), NOTHING_MISSING, server.now).findings]

    assert kinds(idle) == ["held_idle"]
    assert kinds(works) == []
    assert kinds(idle) == ["held_idle"], "it is the evaluation that ends the episode"


def made(*conditions: Condition, nodes: Iterable[Sample] = ()) -> list[Finding]:
    gone = Missing(nodes={"n1:9400": Gone(NOW - 60)})
    down = any(one.check.kind == "node_down" for one in conditions)
    maker = FindingMaker(sort_samples(nodes, NOW).nodes, gone if down else NOTHING_MISSING)
    return maker.make([OpenEpisode(one, NOW - 60) for one in conditions])


def condition(kind: str, **labels: str) -> Condition:
    return Condition(CHECKS[kind], labels, 1.0)


def test_what_a_finding_of_another_subject_explains() -> None:
    known = [*node("n1"), *gpu("0"), *node("n2"), *gpu("0", "n2")]
    down = condition("node_down", instance="n1:9400", job="gpus")
    kinds = [one.kind for one in made(down, lost_at("0"), lost_at("0", "n2"), nodes=known)]
    assert kinds == ["node_down", "gpu_lost"], "the GPU of the other node is lost all the same"
    of_slurm = condition("slurm_nodes_down", node="n1")
    other = condition("slurm_nodes_down", node="n2")
    found = made(down, of_slurm, other, nodes=known)
    assert [(one.kind, one.node) for one in found] == [("node_down", "n1"), ("slurm_nodes_down", "n2")]
    slurm = condition("slurm_down", instance="head:9400")
    stuck = condition("slurm_queue_stuck", instance="head:9400")
    assert [one.kind for one in made(slurm, other, stuck, nodes=known)] == ["slurm_down"]


def test_a_node_that_is_down_does_not_hide_that_slurm_does_not_answer() -> None:
    down = condition("node_down", instance="n1:9400", job="gpus")
    slurm = condition("slurm_down", instance="head:9400")
    assert [one.kind for one in made(down, slurm)] == ["node_down", "slurm_down"]
    own = condition("slurm_down", instance="n1:9400")
    assert [one.kind for one in made(down, own)] == ["node_down"], "its agent is the one that reads Slurm"


def test_two_xids_of_one_gpu_and_two_links_have_different_findings() -> None:
    links = [condition("nvlink_down", **gpu_labels("0"), link=link) for link in "12"]
    xids = [condition("xid_application", **gpu_labels("0"), xid=xid) for xid in ("13", "31")]
    found = made(*links, *xids, nodes=[*node(), *gpu("0")])
    assert len({one.id for one in found}) == len(found)


def test_a_board_that_is_split_has_its_problem_once() -> None:
    instance = {"instance": "n1:9400", "gpu": "0_7_0", "uuid": "MIG-7"}
    board: list[Sample] = [
        *node(),
        *gpu("0"),
        ("gpuscope_mig_info", {**instance, "parent_uuid": "GPU-n1-0", "profile": "1g.10gb"}, 1.0),
        of_gpu("0", "row_remap_failed", 1.0),
    ]
    found = made(Condition(CHECKS["row_remap_failed"], gpu_labels("0"), 1.0), nodes=board)
    assert [(one.kind, one.uuids) for one in found] == [("row_remap_failed", ("GPU-n1-0",))]
