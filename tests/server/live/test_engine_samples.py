"""The live picture's samples from an engine: how many requests it takes, and that no value is too old."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.engines.query_engine import EngineUnreachable
from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Vector
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.judge.checks.facts import Sample
from gpuscope.model.series import STALE_NAN_BITS, Labels
from gpuscope.serve.live.fleet_samples import LIVE_METRICS, SLOW_METRICS
from gpuscope.serve.live.stored_samples import (
    FAST_QUERY,
    MAX_NODES_PER_QUERY,
    SLOW_QUERY,
    SLOW_SECONDS,
    EngineSamples,
)

UP, MEMORY = "gpuscope_gpu_up", "gpuscope_process_memory_bytes"
INFO, TOTAL = "gpuscope_gpu_info", "gpuscope_gpu_memory_total_bytes"
STALE = float(np.array([STALE_NAN_BITS], dtype=np.int64).view(np.float64)[0])


class StoreClock:
    def now_ms(self) -> int:
        return 2_000_000

    def monotonic_ms(self) -> int:
        return self.now_ms()


class RecordingEngine(EmbeddedEngine):
    """Remembers what it was asked; answers at the time of the last scrape."""

    queries: list[str]
    at_ms = 0
    is_failing = False

    async def instant(
        self,
        expression: str,
        at_ms: int | None = None,
        *,
        max_series: int | None = None,
        timeout_seconds: float | None = None,
    ) -> Vector:
        self.queries.append(expression)
        if self.is_failing and expression != FAST_QUERY:
            raise EngineUnreachable("gone")
        return await super().instant(expression, self.at_ms)


class ScrapedFleet:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._series: dict[str, list[Labels]] = {}
        self.engine = RecordingEngine(store, Engine(store))
        self.engine.queries = []
        self.now = 100.0
        self.samples = EngineSamples(self.engine, lambda: self.now)

    def scrape(self, node: str, *, gpus: int = 1, pids: tuple[int, ...] = (), total: float = 80.0) -> None:
        values: dict[Labels, float] = {}
        for gpu in range(gpus):
            labels = {"instance": node, "uuid": f"{node}-{gpu}", "gpu": str(gpu)}
            for name, value in ((UP, 1.0), (INFO, 1.0), (TOTAL, total)):
                values[tuple(sorted({"__name__": name, **labels}.items()))] = value
            for pid in pids:
                values[tuple(sorted({"__name__": MEMORY, **labels, "pid": str(pid)}.items()))] = 5.0
        ended = dict.fromkeys(set(self._series.get(node, ())) - values.keys(), STALE)
        self._series[node] = list(values)
        target, both = self._store.target(node), {**values, **ended}
        self.engine.at_ms = max(self.engine.at_ms, 1_000_000) + 1000
        ids = self._store.resolve(target, both)
        self._store.append(Tick(target, self.engine.at_ms, ids, np.array(list(both.values()))))

    def read(self, after_seconds: float = 0.0) -> tuple[list[Sample], list[str]]:
        """The samples, and the queries for them."""
        self.now += after_seconds
        self.engine.queries = []
        found = asyncio.run(self.samples.read())()
        assert all(labels["instance"] == node for node, some in found.items() for _, labels, _ in some)
        return [sample for some in found.values() for sample in some], self.engine.queries


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[ScrapedFleet]:
    with Store(tmp_path, StoreOptions(), StoreClock()) as store:
        store.start()
        yield ScrapedFleet(store)


def of_metric(samples: list[Sample], metric: str) -> dict[str, float]:
    return {labels["uuid"]: value for name, labels, value in samples if name == metric}


def test_every_live_metric_is_in_one_query() -> None:
    fast, slow = (re.findall(r"(?:gpuscope|node)_\w+", query) for query in (FAST_QUERY, SLOW_QUERY))
    assert sorted([*fast, *slow]) == sorted(LIVE_METRICS)
    assert set(slow) == SLOW_METRICS


def test_slow_metrics_are_not_asked_for_again_within_their_period(fleet: ScrapedFleet) -> None:
    fleet.scrape("a", total=80.0)
    first, queries = fleet.read()
    assert queries == [FAST_QUERY, SLOW_QUERY]
    fleet.scrape("a", total=40.0)
    second, queries = fleet.read(after_seconds=SLOW_SECONDS - 0.1)
    assert queries == [FAST_QUERY]
    assert of_metric(first, TOTAL) == of_metric(second, TOTAL) == {"a-0": 80.0}
    third, queries = fleet.read(after_seconds=0.1)
    assert queries == [FAST_QUERY, SLOW_QUERY]
    assert of_metric(third, TOTAL) == {"a-0": 40.0}


@pytest.mark.parametrize("change", [{"gpus": 1}, {"gpus": 2, "pids": (7,)}, {"gpus": 2, "pids": (7, 8, 9)}])
def test_a_node_that_changed_is_read_again_and_no_other(fleet: ScrapedFleet, change: dict[str, object]) -> None:
    fleet.scrape("a.b", gpus=2, pids=(7, 8))
    fleet.scrape("axb")
    fleet.read()
    fleet.scrape("a.b", total=40.0, **change)  # type: ignore[arg-type]
    fleet.scrape("axb", total=40.0)
    samples, queries = fleet.read(after_seconds=1.0)
    assert len(queries) == 2
    assert r'instance=~"a\\.b"' in queries[1]
    gpus = [f"a.b-{gpu}" for gpu in range(int(str(change["gpus"])))]
    assert of_metric(samples, TOTAL) == {"axb-0": 80.0, **dict.fromkeys(gpus, 40.0)}
    assert len(samples) == len({(name, *sorted(labels.items())) for name, labels, _ in samples})


def test_many_nodes_that_changed_are_read_with_all_others(fleet: ScrapedFleet) -> None:
    fleet.scrape("stays", total=80.0)
    fleet.read()
    for number in range(MAX_NODES_PER_QUERY + 1):
        fleet.scrape(f"node{number}")
    samples, queries = fleet.read(after_seconds=1.0)
    assert queries == [FAST_QUERY, SLOW_QUERY]
    assert len(of_metric(samples, INFO)) == MAX_NODES_PER_QUERY + 2


@pytest.mark.parametrize("after_seconds", [1.0, SLOW_SECONDS])
def test_after_a_failure_slow_metrics_are_asked_for_again(fleet: ScrapedFleet, after_seconds: float) -> None:
    fleet.scrape("a")
    fleet.read()
    fleet.scrape("a", gpus=2)
    fleet.engine.is_failing = True
    with pytest.raises(EngineUnreachable):
        fleet.read(after_seconds)
    fleet.engine.is_failing = False
    samples, _ = fleet.read(after_seconds=0.1)
    assert len(of_metric(samples, INFO)) == 2


def test_labels_of_a_series_are_the_same_object_in_every_look(fleet: ScrapedFleet) -> None:
    """Also after another series was added, which changes the store's selection."""
    fleet.scrape("a", pids=(1,))
    before = {id(labels) for _, labels, _ in fleet.read()[0]}
    fleet.scrape("b", pids=(1,))
    after = {id(labels) for _, labels, _ in fleet.read(after_seconds=1.0)[0]}
    assert len(before) == 4
    assert before < after
