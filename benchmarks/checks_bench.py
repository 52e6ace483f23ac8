"""Measures what the checks cost over the embedded store: two minutes of what `up` and `server` do all the time.

Simulated nodes of eight GPUs have every metric that a check reads, and are scraped every 15 seconds, a
fifteenth of them in each second. Checks are evaluated when they are due. CPU is that of the evaluating thread
in the second minute, when the caches are filled. The same expressions over Prometheus are in `scale_bench`.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.measure import machine, table
from gpuscope.agent.families import load_family
from gpuscope.base.limits import Limits
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.demo import build_demo
from gpuscope.history.promql import Engine, Vector
from gpuscope.history.promql.evaluate import Frames
from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.history.store.tick import Appended, Float64s, Int64s
from gpuscope.judge.checks.checks import CHECKED_METRICS, CHECKS
from gpuscope.judge.checks.judgement import Judgement
from gpuscope.judge.rules.alert_templates import GoTemplates
from gpuscope.judge.rules.rule_file import with_default_groups
from gpuscope.judge.rules.rule_io import EvaluatorQueries
from gpuscope.judge.rules.rule_spec import SECOND_NS
from gpuscope.model.series import Labels
from tests.fakes import make_settings

GPUS = 8
SCRAPE_SECONDS = 15
OLD_SECONDS, RECENT_SECONDS = 2_400, 720
"""The history: a scrape a minute, then one every 15 seconds, which is how long checks that are evaluated often
look back."""
MINUTE = 60
BUDGET = 0.05

Samples = dict[Labels, float]


@dataclass(frozen=True, slots=True)
class Layout:
    """The series that a node has at some of its scrapes."""

    keys: tuple[Labels, ...]
    values: Float64s


def scrape_times(now: int) -> list[int]:
    old = range(now - OLD_SECONDS, now - RECENT_SECONDS, MINUTE)
    return [*old, *range(now - RECENT_SECONDS, now + 2 * MINUTE + SCRAPE_SECONDS, SCRAPE_SECONDS)]


def node_scrapes(times: Sequence[int]) -> list[Layout]:
    """The samples of one node at each time; `node-` stands for its name."""
    node = build_demo(make_settings(source="demo", demo_nodes=1, demo_gpus=GPUS)).nodes[0]
    composer, builder = node.build_composer(), load_family("native").build(Settings())
    scrapes: list[Layout] = []
    keys: tuple[Labels, ...] = ()
    for before, at in pairwise((times[0] - MINUTE, *times)):
        snapshot = node.compose_past(composer, at, before)
        samples = {
            (("__name__", family.name), *labels.pairs): value
            for family in builder.to_families(snapshot)
            if family.name in CHECKED_METRICS
            for labels, value in family.samples
        }
        keys = keys if keys == tuple(samples) else tuple(samples)
        scrapes.append(Layout(keys, np.array([*samples.values(), 1.0])))
    return scrapes


class Fleet:
    """Nodes whose scrapes are the same but for the names of node and GPUs."""

    def __init__(self, store: Store, nodes: int, now: int) -> None:
        self._store = store
        self._times = scrape_times(now)
        self._scrapes = node_scrapes(self._times)
        self._nodes = nodes
        self._ids: dict[tuple[int, int], tuple[int, Int64s, Int64s]] = {}
        self._written = [0] * nodes

    def scrape_until(self, second: int) -> None:
        """Store what is due until then; a node's scrapes are shifted by its number."""
        stored: Future[Appended] | None = None
        for node in range(self._nodes):
            shift = node % SCRAPE_SECONDS
            while self._times[self._written[node]] + shift <= second:
                stored = self._submit(node, self._written[node], shift)
                self._written[node] += 1
        if stored is not None:
            stored.result()

    def _submit(self, node: int, number: int, shift: int) -> Future[Appended]:
        scrape = self._scrapes[number]
        target, ids, chosen = self._series(node, scrape.keys)
        return self._store.submit(
            Tick(target, (self._times[number] + shift) * 1000, ids, scrape.values[chosen])
        )

    def _series(self, node: int, keys: tuple[Labels, ...]) -> tuple[int, Int64s, Int64s]:
        known = self._ids.get((node, id(keys)))
        if known is None:
            name = f"node-{node:04d}"
            # One agent reads Slurm.
            chosen = [row for row, key in enumerate(keys) if not node or "_slurm_" not in key[0][1]]
            labels = [_labels(keys[row], name, node) for row in chosen]
            target = self._store.target(name)
            ids = self._store.resolve(target, [*labels, _labels((("__name__", "up"),), name, node)])
            known = self._ids[node, id(keys)] = target, ids, np.array([*chosen, len(keys)])
        return known


def _labels(pairs: Labels, name: str, node: int) -> Labels:
    own = [(label, f"{text[:4]}{node:04x}{text[8:]}" if label == "uuid" else text) for label, text in pairs]
    own = [(label, name if label == "node" else text) for label, text in own]
    return tuple(sorted([*own, ("instance", f"{name}:9400"), ("job", "gpu")]))


class RuleEvaluation:
    """The alerting rules that `up` has by default, at the beginning of their intervals."""

    def __init__(self, store: Store) -> None:
        self._groups = with_default_groups((), SCRAPE_SECONDS * SECOND_NS, GoTemplates(Limits()))
        self._queries = EvaluatorQueries(Engine(store), checks=[check.promql for check in CHECKS.values()])
        self.spent = 0.0

    def evaluate_due(self, second: int) -> None:
        began = time.thread_time()
        for group in self._groups:
            if second * SECOND_NS % group.interval_ns == 0:
                for rule in group.rules:
                    self._queries.instant(rule.expression, second * 1000)
        self.spent += time.thread_time() - began


class Evaluation:
    """As `Judging` does it, with the CPU of each check."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._judgement = Judgement()
        self.spent: defaultdict[str, float] = defaultdict(float)

    def evaluate_due(self, second: int) -> None:
        shared: Frames = {}
        for check in self._judgement.due(second):
            began = time.thread_time()
            vector = self._engine.instant(check.promql, second * 1000, shared=shared)
            assert isinstance(vector, Vector)
            self._judgement.apply(check, vector, second)
            self.spent[check.kind] += time.thread_time() - began


def memory_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 2**20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    nodes = parser.parse_args().nodes
    print(machine(), flush=True)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder), StoreOptions()) as store:
        store.start()
        now = int(time.time()) // MINUTE * MINUTE
        fleet = Fleet(store, nodes, now)
        fleet.scrape_until(now)
        before = memory_mib()
        evaluation = Evaluation(Engine(store, skips_unneeded=True))
        rules = RuleEvaluation(store)
        minutes: list[dict[str, float]] = []
        for begin in (now, now + MINUTE):
            evaluation.spent = defaultdict(float)
            rules.spent = 0.0
            for second in range(begin, begin + MINUTE):
                fleet.scrape_until(second)
                evaluation.evaluate_due(second)
                rules.evaluate_due(second)
            minutes.append(evaluation.spent)
        after = memory_mib()
    first, spent = minutes
    worst = sorted(spent, key=lambda kind: -spent[kind])[:12]
    rows = [
        ("of a core", f"{100 * sum(spent.values()) / MINUTE:.1f} % (budget {100 * BUDGET:g} %)"),
        ("the same, in the first minute", f"{100 * sum(first.values()) / MINUTE:.1f} %"),
        ("the shipped rules, of a core", f"{100 * rules.spent / MINUTE:.1f} %"),
        ("memory before and after, MiB", f"{before:.0f}, {after:.0f}"),
        *((f"{kind}, of a core", f"{100 * spent[kind] / MINUTE:.2f} %") for kind in worst),
    ]
    print(table((f"{nodes:,} nodes, {GPUS * nodes:,} GPUs", "measured"), rows))


if __name__ == "__main__":
    main()
