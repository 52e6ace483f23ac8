"""Measures one evaluation of all checks over the embedded store: what `up` and `server` do every 15 seconds.

Simulated nodes of eight GPUs have every metric that a check reads, with samples of the last 24 minutes. CPU is
that of the evaluating thread; a check counts as often as it is evaluated. The same expressions over Prometheus
are in `scale_bench`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from benchmarks.measure import machine, table
from gpuscope.health.check import Check
from gpuscope.health.checks import CHECKED_METRICS, CHECKS
from gpuscope.metrics.families import load_family
from gpuscope.promql import Engine
from gpuscope.promql.evaluate import Frames
from gpuscope.series import Labels
from gpuscope.settings import Settings
from gpuscope.store import Store, StoreOptions, Tick
from gpuscope.wiring.demo import build_demo

GPUS = 8
EVERY_SECONDS = 60
TICKS = 24
ROUND_SECONDS = 15.0
BUDGET = 0.05


def node_ticks(now: int) -> list[dict[Labels, float]]:
    """The series of one node at each tick; `node-` stands for its name."""
    node = build_demo(Settings(source="demo", demo_nodes=1, demo_gpus=GPUS)).nodes[0]
    composer, builder = node.build_composer(), load_family("native").build(Settings())
    ticks = []
    for number in range(TICKS):
        at = now - EVERY_SECONDS * (TICKS - 1 - number)
        snapshot = node.compose_past(composer, at, at - EVERY_SECONDS)
        ticks.append(
            {
                (("__name__", family.name), *labels.pairs): value
                for family in builder.to_families(snapshot)
                if family.name in CHECKED_METRICS
                for labels, value in family.samples
            }
        )
    return ticks


def fill(store: Store, nodes: int) -> int:
    now = int(time.time())
    ticks = node_ticks(now)
    for node in range(nodes):
        name = f"node-{node:04d}"
        target, known = store.target(name), None
        for number, found in enumerate(ticks):
            # One agent reads Slurm.
            values = {key: value for key, value in found.items() if not node or "_slurm_" not in key[0][1]}
            at_ms = (now - EVERY_SECONDS * (TICKS - 1 - number)) * 1000
            if values.keys() != known:
                known = values.keys()
                labels = [_labels(pairs, name, node) for pairs in (*values, (("__name__", "up"),))]
                ids = store.resolve(target, labels)
            store.append(Tick(target, at_ms, ids, np.array([*values.values(), 1.0])))
    return now * 1000


def _labels(pairs: Labels, name: str, node: int) -> Labels:
    own = [(label, f"{text[:4]}{node:04x}{text[8:]}" if label == "uuid" else text) for label, text in pairs]
    own = [(label, name if label == "node" else text) for label, text in own]
    return tuple(sorted([*own, ("instance", f"{name}:9400"), ("job", "gpu")]))


def measure(engine: Engine, checks: Iterable[Check], at_ms: int) -> dict[str, float]:
    """Seconds by kind. Checks that are due together share what they have in common: those of a rarer interval
    are measured with all others."""
    shared: Frames = {}
    spent = {}
    for check in checks:
        began = time.thread_time()
        engine.instant(check.promql, at_ms, shared=shared)
        spent[check.kind] = time.thread_time() - began
    return spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    nodes = parser.parse_args().nodes
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), StoreOptions()) as store:
        store.start()
        at_ms = fill(store, nodes)
        engine = Engine(store, skips_unneeded=True)
        by_urgency = sorted(CHECKS.values(), key=lambda check: check.every_seconds)
        for _ in range(2):  # the second round finds the caches as they are in operation
            spent = measure(engine, by_urgency, at_ms)
    share = sum(seconds / CHECKS[kind].every_seconds for kind, seconds in spent.items())
    worst = sorted(spent, key=lambda kind: -spent[kind] / CHECKS[kind].every_seconds)[:12]
    rows = [
        ("all checks once, CPU, s", f"{sum(spent.values()):.2f}"),
        ("of a core", f"{100 * share:.1f} % (budget {100 * BUDGET:g} %)"),
        *(
            (f"{kind}, every {CHECKS[kind].every_seconds:g} s", f"{1000 * spent[kind]:.0f} ms")
            for kind in worst
        ),
    ]
    print(table((f"{nodes:,} nodes, {GPUS * nodes:,} GPUs", "measured"), rows))


if __name__ == "__main__":
    main()
