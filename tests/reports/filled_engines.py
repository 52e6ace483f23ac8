"""Engines that hold a given history, for tests of reports, findings and receipts.

`ENGINES` are the parameters of a test: the embedded store, Prometheus, and, slow, VictoriaMetrics, a newer
Prometheus, Thanos and Mimir. Each gives a function that makes a client: a connection belongs to one event loop.
"""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from gpuscope.base.http_config import HttpConfig
from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.engines.http_connection import EngineConnection
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store
from gpuscope.model.series import Series
from tests.engines import (
    Shared,
    engine,
    running_mimir,
    running_prometheus,
    running_thanos,
    running_victoria_metrics,
)
from tests.promql.prometheus import fill
from tests.store.support import HandClock, timed_tick
from tests.waiting import wait_for

NewEngine = Callable[[], QueryEngine]
Fill = Callable[[Sequence[Series], Path], AbstractContextManager[NewEngine]]
BATCH = 50_000


@contextmanager
def embedded(history: Sequence[Series], folder: Path) -> Iterator[NewEngine]:
    store = Store(folder, clock=HandClock(max(int(one.timestamps[-1]) for one in history)))
    try:
        target = store.target("t")
        ids = store.resolve(target, [one.labels for one in history]).tolist()
        samples = [
            (number, at, value)
            for number, one in zip(ids, history, strict=True)
            for at, value in zip(one.timestamps.tolist(), one.values.tolist(), strict=True)
        ]
        samples.sort(key=lambda one: one[1])
        for begin in range(0, len(samples), BATCH):
            store.append(timed_tick(target, samples[begin : begin + BATCH]))
        yield lambda: EmbeddedEngine(store, Engine(store))
    finally:
        store.close()


@contextmanager
def prometheus(history: Sequence[Series], folder: Path) -> Iterator[NewEngine]:
    with running_prometheus() as url:
        fill(url, history)
        yield lambda: HttpEngine(EngineConnection(url))


@contextmanager
def newer_prometheus(history: Sequence[Series], folder: Path) -> Iterator[NewEngine]:
    with running_prometheus(program=engine("prometheus-3.14")) as url:
        fill(url, history)
        yield lambda: HttpEngine(EngineConnection(url))


@contextmanager
def victoria_metrics(history: Sequence[Series], folder: Path) -> Iterator[NewEngine]:
    with running_victoria_metrics(flags=["-search.latencyOffset=0s"]) as url:
        fill(url, history)
        # It shows samples only after a flush.
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=30).close()
        yield lambda: HttpEngine(EngineConnection(url))


@contextmanager
def thanos(history: Sequence[Series], folder: Path) -> Iterator[NewEngine]:
    with running_thanos() as shared:
        yield _fill_shared(shared, history)


@contextmanager
def mimir(history: Sequence[Series], folder: Path) -> Iterator[NewEngine]:
    # Histories of a fixed date are older than what it looks for in its ingesters otherwise.
    limits: dict[str, float | str] = {
        "ingestion_rate": 1e7,
        "ingestion_burst_size": 1e8,
        "query_ingesters_within": "0s",
    }
    with running_mimir(limits=limits) as shared:
        yield _fill_shared(shared, history)


def _fill_shared(shared: Shared, history: Sequence[Series]) -> NewEngine:
    headers = shared.headers("tests")
    write = urllib.parse.urlsplit(shared.write)
    fill(f"{write.scheme}://{write.netloc}", history, path=write.path, more_headers=headers)
    edges = min(history, key=lambda one: one.timestamps[0]), max(history, key=lambda one: one.timestamps[-1])
    for edge in edges:
        # Thanos' querier learns every few seconds from when to when a receiver has samples.
        wait_for(partial(_is_visible, shared, headers, edge), f"{edge.labels} to be visible")
    http = HttpConfig().with_headers(*headers.items())
    return lambda: HttpEngine(EngineConnection(shared.query, http))


def _is_visible(shared: Shared, headers: Mapping[str, str], series: Series) -> bool:
    """Whether both ends of the series are found."""
    name = dict(series.labels)["__name__"]
    matchers = ",".join(f'{label}="{value}"' for label, value in series.labels if label != "__name__")
    for at_ms in (series.timestamps[0], series.timestamps[-1]):
        query = urllib.parse.urlencode(
            {"query": f'last_over_time({{__name__="{name}",{matchers}}}[1m])', "time": f"{at_ms / 1000}"}
        )
        request = urllib.request.Request(f"{shared.query}/api/v1/query?{query}", headers=dict(headers))
        with urllib.request.urlopen(request, timeout=60) as answer:
            if not json.load(answer)["data"]["result"]:
                return False
    return True


ENGINES = [
    pytest.param(embedded, id="embedded"),
    pytest.param(prometheus, id="prometheus", marks=pytest.mark.engine("prometheus")),
    pytest.param(
        victoria_metrics,
        id="victoria-metrics",
        marks=[pytest.mark.slow, pytest.mark.engine("victoria-metrics")],
    ),
    pytest.param(
        newer_prometheus, id="prometheus-3.14", marks=[pytest.mark.slow, pytest.mark.engine("prometheus")]
    ),
    pytest.param(thanos, id="thanos", marks=[pytest.mark.slow, pytest.mark.engine("thanos")]),
    pytest.param(mimir, id="mimir", marks=[pytest.mark.slow, pytest.mark.engine("mimir")]),
]
