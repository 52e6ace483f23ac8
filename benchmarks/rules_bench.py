"""Measures rule evaluation: 500 rules over 60,000 series, and whether it keeps its schedule beside 8 clients.

The store is in process. 100 nodes × 600 series have ten minutes of samples at 15 s; each rule reads one metric
of all nodes (1,000 series). CPU is that of the evaluation thread and the store's writer; a round is one
evaluation of all rules, due each 15 s. The second part runs 60 rules in real time and shows how late their
groups start, alone and while eight threads run range queries.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpuscope.base.clock import SystemClock
from gpuscope.history.promql import Engine
from gpuscope.history.store import Store, Tick
from gpuscope.judge.rules.alert_state import Alert
from gpuscope.judge.rules.alert_templates import load_templates
from gpuscope.judge.rules.evaluated_rules import AlertContext
from gpuscope.judge.rules.rule_group import RuleEnvironment, RuleGroup
from gpuscope.judge.rules.rule_io import EvaluatorQueries, StoreWriter
from gpuscope.judge.rules.rule_runner import RuleRunner
from gpuscope.judge.rules.rule_spec import SECOND_NS, GroupSpec, RuleSpec
from gpuscope.model.series import Labels

NODES = 100
METRICS = 60
GPUS = 10
STEP_SECONDS = 15
TICKS = 40
RULES_PER_GROUP = 20
LATENESS_INTERVAL_SECONDS = 5
FORMS = (
    ("alert", "m{0} > 1e9"),
    ("alert", "m{0} > 90 and on (instance, gpu) m{1} > 1e9"),
    ("alert", "rate(m{0}[5m]) > 1e9"),
    ("alert", "avg_over_time(m{0}[5m]) > 1e9"),
    ("alert", "sum by (instance) (m{0}) > 1e9"),
    ("alert", "max by (instance) (m{0}) / 100 > 0.999"),
    ("record", "sum by (instance) (m{0})"),
    ("record", "avg(m{0})"),
    ("alert", "absent(m{0})"),
    ("alert", "m{0} == 0 unless on (instance) m{1} > 1"),
)


class NoAlerts:
    def take(self, alerts: Sequence[Alert]) -> None:
        """Sending is not measured."""


def node_labels(node: int) -> list[Labels]:
    return [
        (("__name__", f"m{metric}"), ("gpu", str(gpu)), ("instance", f"node{node:03d}:9400"))
        for metric in range(METRICS)
        for gpu in range(GPUS)
    ]


class Fleet:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._random = np.random.default_rng(1)
        self._targets = [store.target(f"node{node}") for node in range(NODES)]
        self._ids = [store.resolve(target, node_labels(node)) for node, target in enumerate(self._targets)]

    def write(self, at_ms: int) -> None:
        futures = [
            self._store.submit(Tick(target, at_ms, ids, self._random.integers(0, 100, len(ids)).astype(float)))
            for target, ids in zip(self._targets, self._ids, strict=True)
        ]
        for future in futures:
            future.result()


def rule_groups(count: int, interval_seconds: int) -> list[GroupSpec]:
    rules = []
    for number in range(count):
        kind, form = FORMS[number % len(FORMS)]
        name = f"rule{number}" if kind == "alert" else f"record:{number}"
        expression = form.format(number % METRICS, (number + 7) % METRICS)
        rules.append(
            RuleSpec(name, kind == "alert", expression, (("severity", "warn"),), for_ns=60 * SECOND_NS)
        )
    return [
        GroupSpec(f"g{at}", "rules.yml", interval_seconds * SECOND_NS, tuple(rules[at : at + RULES_PER_GROUP]))
        for at in range(0, count, RULES_PER_GROUP)
    ]


def environment(store: Store) -> RuleEnvironment:
    context = AlertContext(load_templates(), {}, "http://localhost:9470")
    return RuleEnvironment(
        EvaluatorQueries(Engine(store)), StoreWriter(store), NoAlerts(), context, SystemClock()
    )


def measure_rounds(store: Store, fleet: Fleet, rules: int, rounds: int, start: int) -> None:
    groups = [
        RuleGroup(spec, environment(store), is_restored=True) for spec in rule_groups(rules, STEP_SECONDS)
    ]
    cpu: list[float] = []
    wall: list[float] = []
    for number in range(rounds):
        at = start + number * STEP_SECONDS
        fleet.write(at * 1000)
        before, began = time.process_time(), time.perf_counter()
        for group in groups:
            group.evaluate((at + 1) * SECOND_NS)
        cpu.append(time.process_time() - before)
        wall.append(time.perf_counter() - began)
    failed = sum(group.failures for group in groups)
    middle = statistics.median(cpu)
    print(
        f"{rules} rules over {NODES * METRICS * GPUS} series: {middle:.2f} s CPU per round "
        f"({middle / rules * 1000:.2f} ms per rule), {statistics.median(wall):.2f} s elapsed, "
        f"= {middle / STEP_SECONDS:.1%} of a core at {STEP_SECONDS} s (budget 20 %); {failed} failed"
    )


@contextmanager
def querying(store: Store, clients: int) -> Iterator[None]:
    stop = threading.Event()

    def ask(number: int) -> None:
        engine = Engine(store)
        while not stop.is_set():
            now = int(time.time() * 1000)
            engine.range(f"sum by (instance) (m{number})", now - 600_000, now, 15_000)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def measure_lateness(store: Store, rules: int, clients: int, seconds: float) -> None:
    late: list[float] = []

    class LateGroups(RuleRunner):
        def note_lateness(self) -> None:
            for group in self.groups:
                if group.last_slot_ns and group.evaluated_at_ns:
                    late.append((group.evaluated_at_ns - group.last_slot_ns) / 1e6)

    runner = LateGroups(rule_groups(rules, LATENESS_INTERVAL_SECONDS), environment(store))
    end = time.monotonic() + seconds
    with querying(store, clients):
        while time.monotonic() < end:
            time.sleep(runner.run_due())
            runner.note_lateness()
    missed = sum(group.missed for group in runner.groups)
    iterations = sum(group.iterations for group in runner.groups)
    ordered = sorted(late)
    interval = LATENESS_INTERVAL_SECONDS
    print(
        f"{rules} rules each {interval} s beside {clients} clients: {iterations} evaluations of "
        f"groups, {missed} missed, late by {statistics.median(ordered):.0f} ms (median), "
        f"{ordered[int(0.99 * len(ordered))]:.0f} ms (p99)"
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rules", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=15.0, help="of the second part")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="rules-bench-") as folder, Store(Path(folder)) as store:
        store.start()
        fleet = Fleet(store)
        now = int(time.time())
        begin = now - (TICKS + args.rounds) * STEP_SECONDS
        for tick in range(TICKS):
            fleet.write((begin + tick * STEP_SECONDS) * 1000)
        measure_rounds(store, fleet, args.rules, args.rounds, begin + TICKS * STEP_SECONDS)
        for clients in (0, 8):
            measure_lateness(store, 60, clients, args.seconds)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
