"""One `QueryEngine` interface over the embedded store, a real Prometheus and a real VictoriaMetrics: same data,
same questions, same results."""

from __future__ import annotations

import asyncio
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np
import pytest

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.engines.http_connection import EngineConnection
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.engines.query_engine import (
    EngineBadQuery,
    EngineError,
    EngineQueryError,
    EngineResultTooLarge,
    QueryEngine,
    labelled_values,
)
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store
from gpuscope.model.series import Labels, Series
from tests.engines import running_prometheus, running_victoria_metrics
from tests.promql.prometheus import fill
from tests.store.support import labels, timed_tick

T = TypeVar("T")
Ask = Callable[[Callable[[QueryEngine], Awaitable[T]]], T]

STEP_MS = 10_000
POINTS = 60
END_MS = (int(time.time()) // 60 - 2) * 60_000 + 3_000
"""Off the multiples of the step on purpose: VictoriaMetrics moves the times of a range there if it may."""
TIMES_MS = [END_MS - (POINTS - 1 - number) * STEP_MS for number in range(POINTS)]
DATA: dict[Labels, list[float]] = {
    labels("power", gpu="0", node="n1"): [float(number) for number in range(POINTS)],
    labels("power", gpu="1", node="n1"): [float(number % 7) for number in range(POINTS)],
    labels("power", gpu="0", node="n2"): [0.0] * POINTS,
    labels("busy", gpu="0", node="n1"): [1e-9 * number for number in range(POINTS)],
}


@contextmanager
def embedded(folder: Path) -> Iterator[QueryEngine]:
    store = Store(folder)
    try:
        target = store.target("t")
        ids = store.resolve(target, list(DATA)).tolist()
        samples = [
            (series, at, values[number])
            for number, at in enumerate(TIMES_MS)
            for series, values in zip(ids, DATA.values(), strict=True)
        ]
        store.append(timed_tick(target, samples))
        yield EmbeddedEngine(store, Engine(store))
    finally:
        store.close()


def _fill(url: str) -> None:
    times = np.array(TIMES_MS, np.int64)
    fill(url, [Series(one, times, np.array(values)) for one, values in DATA.items()])


@contextmanager
def prometheus(folder: Path) -> Iterator[QueryEngine]:
    with running_prometheus() as url:
        _fill(url)
        yield HttpEngine(EngineConnection(url))


@contextmanager
def victoria_metrics(folder: Path) -> Iterator[QueryEngine]:
    with running_victoria_metrics() as url:
        _fill(url)
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=10).close()
        yield HttpEngine(EngineConnection(url))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(embedded, id="embedded"),
        pytest.param(prometheus, id="prometheus", marks=pytest.mark.engine("prometheus")),
        pytest.param(victoria_metrics, id="victoria-metrics", marks=pytest.mark.engine("victoria-metrics")),
    ],
)
def ask(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ask[T]]:
    """Runs a question in one event loop, which the connection belongs to."""
    loop = asyncio.new_event_loop()
    with request.param(tmp_path_factory.mktemp("store")) as engine:
        try:
            yield lambda question: loop.run_until_complete(question(engine))
        finally:
            loop.run_until_complete(engine.close())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()


def test_an_instant_query_gives_labels_and_values_at_that_time(ask: Ask[None]) -> None:
    async def question(engine: QueryEngine) -> None:
        vector = await engine.instant("sum by (node) (power)", TIMES_MS[10])
        assert vector.time_ms == TIMES_MS[10]
        found = sorted(labelled_values(vector), key=str)
        assert found == [({"node": "n1"}, 13.0), ({"node": "n2"}, 0.0)]
        assert labelled_values(await engine.instant("power > 1e6", END_MS)) == []

    ask(question)


def test_a_scalar_is_one_series_without_labels(ask: Ask[None]) -> None:
    async def question(engine: QueryEngine) -> None:
        assert labelled_values(await engine.instant("scalar(sum(power))", TIMES_MS[0])) == [({}, 0.0)]
        assert labelled_values(await engine.instant("vector(1/0)")) == [({}, float("inf"))]

    ask(question)


def test_a_range_query_gives_arrays_on_the_requested_times(ask: Ask[None]) -> None:
    async def question(engine: QueryEngine) -> None:
        start, end = TIMES_MS[5], TIMES_MS[58]
        matrix = await engine.range('power{node="n1"}', start, end + 1, STEP_MS)
        assert matrix.times_ms.tolist() == TIMES_MS[5:59]
        assert matrix.labels == [labels("power", gpu=gpu, node="n1") for gpu in ("0", "1")]
        assert matrix.present.all()
        assert matrix.values[0].tolist() == DATA[matrix.labels[0]][5:59]
        # Where a series has no value the row is not present there.
        gaps = await engine.range('power{gpu="0", node="n1"} > 20', start, end, STEP_MS)
        assert gaps.present[0].tolist() == [at > TIMES_MS[20] for at in TIMES_MS[5:59]]
        assert (await engine.range("nothing_here", start, end, STEP_MS)).values.shape == (0, 54)

    ask(question)


def test_series_and_label_values(ask: Ask[None]) -> None:
    async def question(engine: QueryEngine) -> None:
        span = (TIMES_MS[0], END_MS)
        assert await engine.series(['power{gpu="0"}', "busy"], *span) == sorted(
            one for one in DATA if ("gpu", "0") in one
        )
        assert await engine.label_values("node", start_ms=span[0], end_ms=span[1]) == ["n1", "n2"]
        assert await engine.label_values("node", ['power{gpu="1"}', "busy"], *span) == ["n1"]
        with pytest.raises(EngineResultTooLarge):
            await engine.series(["power"], *span, max_series=2)
        with pytest.raises(EngineResultTooLarge):
            await engine.label_values("node", (), *span, max_values=1)

    ask(question)


def test_a_bad_query_is_one_error_and_the_engine_goes_on(ask: Ask[None]) -> None:
    async def question(engine: QueryEngine) -> None:
        # VictoriaMetrics answers 422 to text that it cannot parse, as to a query that fails.
        kinds = EngineQueryError if engine_is_victoria(engine) else EngineBadQuery
        for expression in ("sum(", "power{", "power[5m"):
            with pytest.raises(kinds) as caught:
                await engine.instant(expression, END_MS)
            assert caught.value.exit_code == 1
            with pytest.raises(EngineQueryError):
                await engine.range(expression, TIMES_MS[0], END_MS, STEP_MS)
        with pytest.raises(EngineError, match="range vector, not an instant vector"):
            await engine.instant("power[1m]", END_MS)
        assert len((await engine.instant("power", END_MS)).labels) == 3

    def engine_is_victoria(engine: QueryEngine) -> bool:
        return isinstance(engine, HttpEngine) and product[0] == "VictoriaMetrics"

    product: list[str] = []

    async def find_product(engine: QueryEngine) -> None:
        product.append((await engine.describe()).product)

    ask(find_product)
    ask(question)


def test_the_number_of_series_is_bounded(ask: Ask[None]) -> None:
    async def question(engine: QueryEngine) -> None:
        assert len((await engine.instant("power", END_MS, max_series=3)).labels) == 3
        with pytest.raises(EngineResultTooLarge, match="has 3 series; at most 2"):
            await engine.instant("power", END_MS, max_series=2)
        with pytest.raises(EngineResultTooLarge):
            await engine.range("power", TIMES_MS[0], END_MS, STEP_MS, max_series=2)

    ask(question)


def test_an_engine_says_what_it_is(ask: Ask[None], request: pytest.FixtureRequest) -> None:
    async def question(engine: QueryEngine) -> None:
        info = await engine.describe()
        assert info.product in ("gpuscope", "Prometheus", "VictoriaMetrics")
        assert info.version
        assert (info.retention_ms is None) == (info.product == "VictoriaMetrics")

    ask(question)
