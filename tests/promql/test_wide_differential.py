"""Compares wide queries over the real store with a real Prometheus on the same data, with 1 to 20,000 series.

Every node has its own scrape times; some series begin late, end with a staleness marker, or miss scrapes; the
oldest samples of some nodes are sealed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gpuscope.history.promql import Engine
from gpuscope.history.store import Store, Tick
from gpuscope.model.series import STALE_NAN_BITS, Labels, Matcher, MatchOp
from tests.engines import running_prometheus
from tests.promql.prometheus import Question, difference, fill

GPUS = 4
METRICS = ("x", "y", "energy_total", "info", "z")
PER_NODE = GPUS * len(METRICS)
TICKS = 26
STEP_MS = 15_000
NOW_MS = time.time_ns() // 1_000_000 // 1000 * 1000
STALE = np.int64(STALE_NAN_BITS).view(np.float64)
SIZES = [1, 20, 1_000, pytest.param(20_000, marks=pytest.mark.slow)]

INSTANTS = (
    "x",
    '{__name__=~"x|y|z", gpu="0"}',
    "topk(5, x)",
    "x > 0.9",
    "x * on (uuid) group_left (model) info",
    "count by (instance) (x and on (uuid) y)",
    "x unless on (uuid) y",
    "x or y",
    "max by (instance) (x) > 0.9 and on (instance) min by (instance) (x) < 0.5",
    'label_replace(x, "node", "$1", "instance", "node(.*)")',
    "timestamp(x)",
    "sum(rate(energy_total[1m]))",
    "count(count_over_time(x[5m]) < 20)",
)
RANGES = (
    "x",
    "avg by (instance) (x)",
    "sum by (gpu) (rate(energy_total[1m]))",
    "x * on (uuid) group_left info",
)


def node_labels(node: int) -> list[Labels]:
    return [
        (
            ("__name__", metric),
            ("gpu", str(gpu)),
            ("instance", f"node{node}"),
            *((("model", f"M{node % 3}"),) if metric == "info" else ()),
            ("uuid", f"GPU-{node}-{gpu}"),
        )
        for metric in METRICS
        for gpu in range(GPUS)
    ]


def fill_node(store: Store, node: int, count: int) -> None:
    """Write one node's scrapes, of its first `count` series."""
    rng = np.random.default_rng(node)
    target = store.target(f"node{node}")
    ids = store.resolve(target, node_labels(node)[:count])
    offset = int(rng.integers(0, STEP_MS))
    energy = np.cumsum(rng.integers(1, 9, TICKS)).astype(float)
    for tick in range(TICKS):
        values = np.round(rng.random(count), 3)
        values[2 * GPUS : 3 * GPUS] = energy[tick]
        present = rng.random(count) > (0.1 if node % 5 == 0 else 0.0)
        if node % 7 == 3 and tick == TICKS - 2:
            values[:GPUS] = STALE
        if node % 4 == 1:
            present[3 * GPUS :] &= tick > 5  # these begin late
        at = NOW_MS - (TICKS - tick) * STEP_MS + offset
        if present.any():
            store.append(Tick(target, at, ids[present], values[present]))


@pytest.fixture(params=SIZES, scope="module")
def wide(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Engine, str]]:
    series: int = request.param
    folder: Path = tmp_path_factory.mktemp("wide")
    with Store(folder) as store, running_prometheus() as url:
        nodes = -(-series // PER_NODE)
        for node in range(nodes):
            if node == nodes // 2:
                store.seal()  # of the nodes so far everything is in blocks
            fill_node(store, node, min(PER_NODE, series - node * PER_NODE))
        everything = store.select([Matcher("__name__", MatchOp.REGEX, ".+")], 0, NOW_MS + 10**6)
        assert len(everything) == series
        fill(url, everything)
        yield Engine(store), url


@pytest.mark.parametrize("expr", INSTANTS)
def test_instant_queries(wide: tuple[Engine, str], expr: str) -> None:
    assert difference(Question(expr, NOW_MS - 20_000), *wide) is None


@pytest.mark.parametrize("expr", RANGES)
def test_range_queries(wide: tuple[Engine, str], expr: str) -> None:
    assert difference(Question(expr, NOW_MS - 300_000, NOW_MS, STEP_MS), *wide) is None
