"""A simulated history that is filled in while the live view runs: complete, continuous, and stopped at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from gpuscope.cli.wiring.demo import build_demo
from gpuscope.cli.wiring.run_agent import CollectorThreads
from gpuscope.demo import simulated_history
from gpuscope.demo.simulated_history import SimulatedHistory, history_seconds
from gpuscope.demo.simulated_node import SimulatedNode
from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Matrix, Vector
from gpuscope.history.scrape.local_feeds import SnapshotFeed
from gpuscope.history.store import Appended, Store, StoreFullError
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.thresholds import UNUSED_SECONDS
from gpuscope.judge.reports.report_range import HOUR_MS
from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.model.readings import ABSENT, Pid, Snapshot, Uuid
from tests.fakes import FakeClock, make_settings

HISTORY_SECONDS = 3600
NEVER = threading.Event()
COUNTERS = ("gpuscope_gpu_busy_seconds_total", "gpuscope_gpu_energy_joules_total", "node_cpu_seconds_total")


class StoreClock:
    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return int(self._clock.now() * 1000)

    def monotonic_ms(self) -> int:
        return self.now_ms()


class CommittingFeed(SnapshotFeed):
    """Waits until a snapshot is committed; otherwise a fast machine commits a whole past at once."""

    def submit(self, snapshot: Snapshot) -> Future[Appended]:
        storing = super().submit(snapshot)
        storing.result()
        return storing


class Rig:
    """A fleet on a clock that stands still unless a test moves it."""

    def __init__(
        self,
        store: Store,
        clock: FakeClock,
        nodes: int = 1,
        feed: type[SnapshotFeed] = SnapshotFeed,
        **settings: object,
    ) -> None:
        chosen = make_settings(source="demo", demo_nodes=nodes, demo_gpus=2, **settings)
        self.clock = clock
        self.store = store
        self.nodes = build_demo(chosen, clock).nodes
        feeds = [feed(chosen, store, node.source.name) for node in self.nodes]
        self.history = SimulatedHistory(list(zip(self.nodes, feeds, strict=True)), store, clock)

    @contextmanager
    def live(self) -> Iterator[SimulatedNode]:
        """The first node, which ticks by hand; all nodes have ticked once."""
        running = [CollectorThreads(node.collector) for node in self.nodes]
        for one in running:
            one.start_workers()
        try:
            self.tick()
            yield self.nodes[0]
        finally:
            for one in running:
                one.stop()

    def tick(self, seconds: float = 0.0) -> Snapshot:
        self.clock.pass_seconds(seconds)
        first, *_ = [node.collector.tick() for node in self.nodes]
        return first

    def ask(self, expression: str) -> list[float]:
        result = Engine(self.store).instant(expression, int(self.clock.now() * 1000))
        assert isinstance(result, Vector)
        values: list[float] = result.values.tolist()
        return values


@pytest.fixture(autouse=True)
def _an_hour_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_history, "HISTORY_SECONDS", HISTORY_SECONDS)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock(at=1_700_000_100.0)  # at a full step, so that snapshots can be counted


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    with Store(tmp_path, clock=StoreClock(clock)) as opened:
        yield opened


def test_live_snapshots_follow_the_past_and_no_counter_starts_again(store: Store, clock: FakeClock) -> None:
    rig = Rig(store, clock)
    with rig.live() as node:
        assert node.collector.snapshot.devices  # the live view does not wait for history
        assert rig.ask("up") == []  # but live snapshots before the past would break its counters
        assert rig.history.ratio() == 0.0
        rig.history.run(NEVER)
        assert rig.history.ratio() == 1.0
        for _ in range(20):
            rig.tick(5.0)
        clock.pass_seconds(5.0)
        # The first snapshot after the past still has the live counters of before; it is not stored.
        assert rig.ask("count_over_time(up[7h])") == [HISTORY_SECONDS / 60 + 19]
        for counter in COUNTERS:
            assert set(rig.ask(f"resets({counter}[7h])")) == {0.0}
        assert max(rig.ask("rate(gpuscope_gpu_busy_seconds_total[2m])")) <= 1.01


def test_a_session_is_idle_since_it_last_worked_in_the_past(store: Store, clock: FakeClock) -> None:
    started_at = clock.now()
    rig = Rig(store, clock, demo_model="rtx4090", scenario=("one-works",))
    with rig.live():
        for _ in range(10):  # after a gap nothing would be known
            rig.tick(60.0)
        rig.history.run(NEVER)
        without_past = idle_since(rig.tick(1.0))
        with_past = idle_since(rig.tick(1.0))
    assert without_past.keys() == with_past.keys()
    assert min(without_past.values()) >= started_at
    assert min(with_past.values()) < started_at - 60.0


def idle_since(snapshot: Snapshot) -> dict[tuple[Pid, Uuid], float]:
    assert snapshot.processes is not ABSENT
    return {
        (process.pid, process.gpu_uuid): process.idle_since
        for process in snapshot.processes
        if process.idle_since is not ABSENT
    }


@pytest.mark.parametrize("live_is_ahead", [True, False])
def test_every_xid_is_counted_once(store: Store, clock: FakeClock, live_is_ahead: bool) -> None:
    """Also those between the end of the past and the first live reading after it."""
    rig = Rig(store, clock, scenario=("xid79@+1m",))
    with rig.live() as node:
        if not live_is_ahead:
            clock.pass_seconds(90.0)
        rig.history.run(NEVER)
        if live_is_ahead:
            rig.tick(90.0)
        last = rig.tick(1.0)
        last = rig.tick(1.0)
        began = (node.source.read_until - 2 - HISTORY_SECONDS - 90) // 60 * 60
    happened = [int(error.code) for error in node.source.read_at(clock.now(), began).errors]
    counted = {int(total.code): total.count for total in last.errors}
    assert 79 in counted
    assert counted == {xid: happened.count(xid) for xid in set(happened)}


@pytest.fixture
def pauses_after_each_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_history, "SECONDS_BETWEEN_PAUSES", 0.0)


@pytest.mark.usefixtures("pauses_after_each_snapshot")
def test_it_stops_between_two_snapshots_and_goes_on_at_the_next_start(store: Store, clock: FakeClock) -> None:
    class StopsSoon(threading.Event):
        """Set when the first few snapshots are stored."""

        left = 5

        def wait(self, timeout: float | None = None) -> bool:
            self.left -= 1
            if self.left == 0:
                self.set()
            return self.is_set()

    rig = Rig(store, clock)
    with rig.live():
        rig.history.run(StopsSoon())
    assert 0.0 < rig.history.ratio() < 0.1
    assert rig.ask("count_over_time(up[7h])") == [5.0]

    again = Rig(store, clock)
    with again.live():
        again.history.run(NEVER)
    assert again.ask("count_over_time(up[7h])") == [HISTORY_SECONDS / 60]

    third = Rig(store, clock)  # nothing is missing: live snapshots are stored at once
    with third.live():
        third.history.run(NEVER)
        third.tick(60.0)
        third.tick(60.0)
    assert third.ask("count_over_time(up[7h])") == [HISTORY_SECONDS / 60 + 2]


def test_a_large_fleet_has_a_coarser_past_without_holes(
    store: Store, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_history, "LARGE_FLEET_NODES", 0)
    rig = Rig(store, clock)
    with rig.live():
        rig.history.run(NEVER)
    end = int(clock.now() - 150) * 1000
    for expression in ("rate(node_cpu_seconds_total[5m])", "gpuscope_gpu_power_watts"):
        found = Engine(store).range(expression, end - 3_000_000, end, 60_000)
        assert isinstance(found, Matrix)
        assert len(found.labels) >= 2
        assert np.all(found.present)
    assert rig.ask("count_over_time(up[7h])") == [HISTORY_SECONDS / 150]


def test_a_store_that_fails_costs_the_past_and_not_the_program(
    store: Store, clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = Rig(store, clock)

    def fail(feed: SnapshotFeed, snapshot: Snapshot) -> None:
        raise StoreFullError("the disk is full")

    with rig.live():
        with monkeypatch.context() as patch:
            patch.setattr(SnapshotFeed, "submit", fail)
            rig.history.run(NEVER)
        assert "gpu-a01 is incomplete: the disk is full" in caplog.text
        rig.tick(5.0)
        rig.tick(5.0)
    assert rig.ask("count_over_time(up[7h])") == [2.0]


@pytest.mark.usefixtures("pauses_after_each_snapshot")
def test_a_report_ends_where_the_past_is_complete_and_adds_up_there(store: Store, clock: FakeClock) -> None:
    """After every snapshot of every node: what is stored later is not lost."""
    rig = Rig(store, clock, nodes=2, feed=CommittingFeed)
    store.start()
    reports = []

    class AsksForReports(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            reports.append(usage_of(rig))
            return super().wait(0)

    with rig.live():
        rig.history.run(AsksForReports())
    assert len(reports) >= 2 * HISTORY_SECONDS / 60
    for report in reports:
        assert report.missing[0].key == "missing.filling"
        assert report.end_ms <= clock.now() * 1000
        assert report.invariant.lost == 0.0
        assert report.invariant.holds
        assert report.invariant.gpu_hours == pytest.approx(
            report.gpus * (report.end_ms - report.start_ms) / HOUR_MS, abs=0.05 * report.gpus
        )
        assert {one.key for one in report.missing} <= {"missing.filling", "missing.late"}
    assert reports[-1].invariant.gpu_hours > 0.8 * 4 * HISTORY_SECONDS / 3600
    assert usage_of(rig).missing == []


def usage_of(rig: Rig) -> UsageReport:
    end_ms = int(rig.clock.now() * 1000)
    question = UsageQuestion(parse_grouping("user"), end_ms - HISTORY_SECONDS * 1000, end_ms)
    return asyncio.run(usage_report(EmbeddedEngine(rig.store, Engine(rig.store)), question))


def test_nodes_are_filled_evenly_and_nothing_is_said_to_be_filled_afterwards(
    store: Store, clock: FakeClock
) -> None:
    rig = Rig(store, clock, nodes=3)
    begin_ms = store.filled_until_ms
    assert begin_ms is not None
    assert begin_ms <= (clock.now() - HISTORY_SECONDS) * 1000
    counts: list[list[float]] = []

    class CountsSamples(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            counts.append(rig.ask("count_over_time(up[7h])"))
            return super().wait(0)

    with rig.live():
        rig.history.run(CountsSamples())
    assert all(max(one) - min(one) <= 1 for one in counts if len(one) == 3)
    assert store.filled_until_ms is None


def test_progress_is_a_metric(store: Store, clock: FakeClock) -> None:
    rig = Rig(store, clock)
    (family,) = rig.history.families()
    assert (family.name, family.samples[0][1]) == ("gpuscope_demo_history_ratio", 0.0)


@pytest.mark.parametrize(
    ("nodes", "step", "hours"),
    [(1, 60, 6), (16, 60, 6), (40, 150, 6), (125, 150, 2), (250, 150, 1), (1000, 150, 1)],
)
def test_a_large_fleet_has_a_shorter_past(
    nodes: int, step: int, hours: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(simulated_history, "HISTORY_SECONDS", 6 * 3600)
    assert history_seconds(nodes, step) == hours * 3600


def test_a_state_that_lasts_longer_than_the_history_has_its_whole_age(store: Store, clock: FakeClock) -> None:
    rig = Rig(store, clock, scenario=("unused",))
    with rig.live():
        rig.history.run(NEVER)
        rig.tick(1.0)
        rig.tick(1.0)
    assert [value > UNUSED_SECONDS for value in rig.ask(CHECKS["unused"].promql)] == [True, True]
    assert rig.ask("count_over_time(gpuscope_gpus_seen[30h])")[0] <= HISTORY_SECONDS / 60 + 3, "not stored"
