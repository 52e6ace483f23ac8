"""Compares wide queries, thousands of series with few points, in the embedded store and in Prometheus.

1,000 nodes × 8 GPUs × 12 metrics at 15 s, each node with its own scrape times, seven minutes until now. Both
engines get the same samples and the same queries: one client in turns, then eight clients one engine after the
other. A cold query is the first one of its selection; the first query after a start is measured, too. Prints
milliseconds, ratios to Prometheus, and the budgets; `--nodes 100` for a short run.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import re
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlencode

import numpy as np

from benchmarks.budgets import BudgetRow, report
from benchmarks.measure import MIB, cpu_seconds, machine, rss_bytes, table
from benchmarks.query_bench import OURS, PROMETHEUS, Query, Server, measure, peers, percentiles, server
from benchmarks.query_data import STEP_MS, Fleet, fill_store, send, tick_requests
from gpuscope.model.series import Labels

GPUS = 8
TICKS = 28
CLIENTS = 8
PAUSE_SECONDS = 0.1
"""Between two queries of a client: like an open page, not a load generator."""
GAUGES = tuple(f"metric_1{number}" for number in range(10))
METRICS = (*GAUGES, "energy_total", "gpu_info")


def labels_of(node: int) -> list[Labels]:
    """Return the label sets of one node: metric by metric, GPU by GPU."""
    found: list[Labels] = []
    for metric in METRICS:
        for gpu in range(GPUS):
            extra = (("model", f"H{node % 3}00"), ("node", f"node{node:04d}")) if metric == "gpu_info" else ()
            pairs = (
                ("__name__", metric),
                ("gpu", str(gpu)),
                ("instance", f"node{node:04d}:9400"),
                ("job", "gpu"),
                *extra,
                ("uuid", f"GPU-{node * GPUS + gpu:08x}-1f2e"),
            )
            found.append(pairs)
    return found


def make_wide_fleet(nodes: int, end_ms: int) -> Fleet:
    rng = np.random.default_rng(18)
    values = []
    for _ in range(nodes):
        gauges = np.round(rng.random((TICKS, len(GAUGES) * GPUS)), 4)
        energy = np.cumsum(rng.integers(1_000, 9_000, (TICKS, GPUS)), axis=0).astype(np.float64)
        values.append(np.hstack((gauges, energy, np.ones((TICKS, GPUS)))))
    offsets = -rng.integers(100, STEP_MS - 100, (nodes, 1)) + rng.integers(-3, 4, (nodes, TICKS))
    times = end_ms - STEP_MS * np.arange(TICKS - 1, -1, -1)[None, :] + offsets
    return Fleet(times, values, [labels_of(node) for node in range(nodes)])


def queries(end_ms: int, runs: int) -> list[Query]:
    end = end_ms // 1000

    def instant(name: str, query: str) -> Query:
        return Query(name, f"`{query}`", "/api/v1/query", {"query": query, "time": str(end)}, runs)

    def short(name: str, query: str) -> Query:
        span = {"start": str(end - 300), "end": str(end), "step": "15s"}
        return Query(name, f"`{query}`, 5 min @ 15 s", "/api/v1/query_range", {"query": query, **span}, runs)

    x = GAUGES[3]
    join = f"{x} * on (uuid) group_left (node, model) gpu_info"
    span = {"start": str(end - 300), "end": str(end)}
    return [
        short("avg", f"avg by (instance) ({x})"),
        short("rate", "sum by (gpu) (rate(energy_total[1m]))"),
        short("raw", x),
        instant("regex", '{__name__=~"metric_1.", gpu="0"}'),
        instant("topk", f"topk(5, {x})"),
        instant("filter", f"{x} > 0.95"),
        instant("join", join),
        short("join, range", join),
        instant("and", f"count by (instance) ({x} and on (uuid) {GAUGES[4]})"),
        Query("series", f"/series `{x}`", "/api/v1/series", {"match[]": x}, runs),
        Query("series, span", f"/series `{x}`, 5 min", "/api/v1/series", {"match[]": x, **span}, runs),
        Query("values", "/label/instance/values", "/api/v1/label/instance/values", {}, runs),
        instant("live", '{__name__=~"metric_1[0-6]"}'),
        instant("rules", f"max by (instance) ({x}) > 0.99 and on (instance) min by (instance) ({x}) < 0.01"),
    ]


DASHBOARD = ("avg", "rate", "regex", "topk", "series")
METADATA = ("series", "series, span", "values")
MAX_RATIO, MAX_METADATA_RATIO, MAX_COLD_RATIO = 0.8, 1.0, 3.0
"""Of the p50 of one client to Prometheus'; of the CPU time of a cold query to that of the same query warm."""
COLD_RUNS = 5
SETTLE_SECONDS = 5.0
"""After a start, which has work of its own."""


def fill(servers: Sequence[Server], fleet: Fleet) -> None:
    for one in servers:
        if one.name != OURS:
            spent = send(one.port, tick_requests(fleet, TICKS))
            print(f"filled {one.name} in {spent:.0f} s", file=sys.stderr, flush=True)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one request, in milliseconds."""

    wall: float
    cpu: float


def cost_of(one: Server, query: Query) -> Cost:
    before = cpu_seconds(one.pid)
    seconds = one.request(query.path, query.parameters)[0]
    return Cost(1000 * seconds, 1000 * (cpu_seconds(one.pid) - before))


def as_new_selection(query: Query, number: int) -> Query:
    """Return the same query with a matcher that no query had yet and that every series satisfies."""
    matcher = f'job!="{query.name} {number}"'

    def change(text: str) -> str:
        text = re.sub(rf"\b({'|'.join(METRICS)})\b", rf"\1{{{matcher}}}", text)
        return text.replace("{__name__", f"{{{matcher}, __name__")

    texts = {name: change(text) for name, text in query.parameters.items() if name in ("query", "match[]")}
    return replace(query, parameters=query.parameters | texts)


def cold_cost(one: Server, query: Query) -> Cost | None:
    """Return the median cost of the first query of a selection; None for a request that selects nothing."""
    costs = []
    for number in range(COLD_RUNS):
        changed = as_new_selection(query, number)
        if changed == query:
            return None
        costs.append(cost_of(one, changed))
    return sorted(costs, key=lambda cost: cost.cpu)[len(costs) // 2]


def start_cost(data: Path, query: Query, starts: int) -> Cost:
    """Return the cost of the first query after a start: the lowest of some starts."""
    found = []
    for _ in range(starts):
        with server(OURS, data) as one:
            time.sleep(SETTLE_SECONDS)
            found.append(cost_of(one, query))
    return min(found, key=lambda cost: cost.cpu)


def one_client(
    servers: Sequence[Server], chosen: Sequence[Query], started: Cost | None
) -> tuple[str, list[BudgetRow]]:
    rows, budgets, colds = [], [], []
    for query in chosen:
        for one in servers:
            one.request(query.path, query.parameters)
        cost = cold_cost(servers[0], query)
        found = measure(servers, query)
        ours, theirs = found[OURS], found.get(PROMETHEUS)
        ratio = cpu = first = "-"
        if theirs:
            ratio, cpu = f"{ours.p50 / theirs.p50:.2f}", f"{ours.cpu / theirs.cpu:.2f}"
            limit = MAX_METADATA_RATIO if query.name in METADATA else MAX_RATIO
            budgets.append(BudgetRow(f"{query.what}: p50 / Prometheus'", ours.p50 / theirs.p50, limit))
        if query is chosen[0] and started is not None:
            colds.append(
                BudgetRow(f"{query.what}: after a start / warm, CPU", started.cpu / ours.cpu, MAX_COLD_RATIO)
            )
        if cost is not None:
            first = f"{cost.wall:.0f}, {cost.cpu:.0f}, {cost.cpu / ours.cpu:.1f} ×"
            colds.append(BudgetRow(f"{query.what}: cold / warm, CPU", cost.cpu / ours.cpu, MAX_COLD_RATIO))
        rows.append([query.what, first, *map(str, found.values()), ratio, cpu])
        print(f"{query.name:14} p50 ratio {ratio}, CPU ratio {cpu}, cold {first}, {ours}", file=sys.stderr)
    head = [f"{one.name}: best / p50 / p95, CPU, ms" for one in servers]
    text = table(["one client", "cold: ms, CPU, ratio to warm", *head, "p50 ratio", "CPU ratio"], rows)
    return text, budgets + colds


class Client(threading.Thread):
    """Asks the dashboard's queries in turn until told to stop."""

    def __init__(self, port: int, number: int, chosen: Sequence[Query], stop: threading.Event) -> None:
        super().__init__()
        self._port, self._number, self._queries, self._stop_asking = port, number, chosen, stop
        self.seconds: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        number = self._number
        while not self._stop_asking.is_set():
            query = self._queries[number % len(self._queries)]
            number += 1
            before = time.perf_counter()
            connection.request(
                "GET", f"{query.path}?{urlencode(query.parameters)}", headers={"Accept-Encoding": "gzip"}
            )
            answer = connection.getresponse()
            body = answer.read()
            self.seconds.append(time.perf_counter() - before)
            if answer.status != 200:
                raise RuntimeError(f"{query.name}: {answer.status} {gzip.decompress(body)[:200]!r}")
            self._stop_asking.wait(PAUSE_SECONDS)
        connection.close()


def eight_clients(
    servers: Sequence[Server], chosen: Sequence[Query], seconds: float
) -> tuple[str, list[BudgetRow]]:
    rows = []
    rates: dict[str, float] = {}
    p95s: dict[str, float] = {}
    for one in servers:
        stop = threading.Event()
        clients = [Client(one.port, number, chosen, stop) for number in range(CLIENTS)]
        before = cpu_seconds(one.pid)
        began = time.monotonic()
        for client in clients:
            client.start()
        stop.wait(seconds)
        stop.set()
        for client in clients:
            client.join()
        elapsed = time.monotonic() - began
        spent = [second for client in clients for second in client.seconds]
        p50, p95 = percentiles(spent)
        cpu = 1000 * (cpu_seconds(one.pid) - before) / len(spent)
        rates[one.name], p95s[one.name] = len(spent) / elapsed, p95
        rows.append([one.name, f"{len(spent) / elapsed:.1f}", f"{p50:.0f} / {p95:.0f}", f"{cpu:.1f}"])
        print(f"{CLIENTS} clients, {one.name}: {rows[-1][1]} q/s, {p50:.0f}/{p95:.0f}", file=sys.stderr)
    text = table([f"{CLIENTS} clients", "queries/s", "p50 / p95, ms", "CPU per query, ms"], rows)
    if PROMETHEUS not in rates:
        return text, []
    return text, [
        BudgetRow(
            f"{CLIENTS} clients, nothing scraped: queries/s / Prometheus'",
            rates[OURS] / rates[PROMETHEUS],
            1.0,
            at_least=True,
        ),
        BudgetRow(f"{CLIENTS} clients, nothing scraped: p95 / Prometheus'", p95s[OURS] / p95s[PROMETHEUS], 1.0),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--runs", type=int, default=15, help="times each query is asked")
    parser.add_argument("--seconds", type=float, default=20.0, help="how long eight clients ask each engine")
    parser.add_argument("--alone", action="store_true", help="only the embedded store")
    parser.add_argument(
        "--starts", type=int, default=2, help="for the first query after a start; 0: not measured"
    )
    parser.add_argument("--only", default="", help="names of the queries, separated by `;`")
    given = parser.parse_args()
    fleet = make_wide_fleet(given.nodes, time.time_ns() // 1_000_000)
    chosen = queries(fleet.end_ms, given.runs)
    asked = [one for one in chosen if not given.only or one.name in given.only.split(";")]
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        fill_store(folder / OURS, fleet)
        started = start_cost(folder / OURS, asked[0], given.starts) if given.starts else None
        others = [one for one in ([] if given.alone else peers()) if one == PROMETHEUS]
        servers = [stack.enter_context(server(one, folder / one)) for one in (OURS, *others)]
        fill(servers, fleet)
        time.sleep(SETTLE_SECONDS)
        print(machine(), f"{given.nodes} nodes, {fleet.samples // TICKS} series\n", flush=True)
        text, budgets = one_client(servers, asked, started)
        print(text, "\n", flush=True)
        if given.seconds:
            dashboard = [one for one in chosen if one.name in DASHBOARD]
            text, more = eight_clients(servers, dashboard, given.seconds)
            budgets += more
            print(text, "\n", flush=True)
        memory = [f"{one.name} {rss_bytes(one.pid) / MIB:.0f} MiB" for one in servers]
        print("RSS afterwards:", ", ".join(memory), flush=True)
        report(budgets)


if __name__ == "__main__":
    main()
