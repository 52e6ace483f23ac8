"""Measures one server with 1,000 simulated nodes × 600 series every 15 s, and Prometheus with the same nodes.

Both scrape at the same time, so that other programs on the machine disturb both alike, and both evaluate the
shipped rules every 15 s; `--no-rules` measures scraping alone. Rows: nobody asks; eight clients with five
dashboard queries; then, for gpuscope, clients and 20 viewers of the live picture together. Scrape delays are
measured by the nodes; pauses by garbage collection in the server. `--nodes 100` for a small fleet, `--soak 65`
for memory over time.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from benchmarks.budgets import BudgetRow, report
from benchmarks.measure import machine, table
from benchmarks.scale_run import HEADINGS, OURS, PROMETHEUS, Observed, ScaleRun, check_rules, scraping
from benchmarks.scale_soak import soak
from benchmarks.simulated_nodes import EVERY_SECONDS, simulated_nodes
from tests.engines import find_engine

MAX_PAUSE_MS, MAX_DELAY_MS = 100.0, 300.0
MAX_CPU_RATIO, MAX_RSS_RATIO = 1.3, 0.8
SETTLE = 330.0
"""Seconds. In its first five minutes gpuscope judges the whole fleet every 15 s, then every five minutes."""


def run(nodes: int, seconds: float, settle: float, alone: bool, viewers: int, rules: bool) -> list[Observed]:
    names = [OURS] if alone or isinstance(find_engine("prometheus"), str) else [OURS, PROMETHEUS]
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        port, pipe = stack.enter_context(simulated_nodes())
        engines = [stack.enter_context(scraping(one, folder, port, nodes, rules)) for one in names]
        time.sleep(settle)
        for engine in engines if rules else ():
            check_rules(engine)
        measured = ScaleRun(engines, pipe, folder / "pauses")
        measured.add("nobody asks", seconds)
        if not rules:
            return measured.observed
        for one in engines:
            measured.add("8 clients", seconds, one, clients=8)
        measured.add(f"8 clients, {viewers} viewers", seconds, engines[0], clients=8, viewers=viewers)
        return measured.observed


def budgets(nodes: int, observed: Sequence[Observed]) -> list[BudgetRow]:
    """Return what is allowed beside Prometheus in the same run; without it only pauses and delays."""
    fleet = f"{nodes} nodes scraped"
    ours = [one for one in observed if one.engine == OURS]
    pause = max(one.longest_pause for one in ours)
    rows = [
        BudgetRow(f"{fleet}: longest pause by garbage collection, CPU", pause, MAX_PAUSE_MS, "ms"),
        BudgetRow(f"{fleet}, {ours[-1].what}: scrape delay p99", ours[-1].delay_p99, MAX_DELAY_MS, "ms"),
    ]
    theirs = {one.what: one for one in observed if one.engine == PROMETHEUS}
    for one in ours:
        other = theirs.get(one.what)
        if other is None:
            continue
        where = f"{fleet}, {one.what}"
        rows.append(BudgetRow(f"{where}: RSS / Prometheus'", one.rss_mib / other.rss_mib, MAX_RSS_RATIO))
        if one.queries is None or other.queries is None:
            ratio = one.cpu_percent / other.cpu_percent
            rows.append(BudgetRow(f"{where}: CPU / Prometheus'", ratio, MAX_CPU_RATIO))
        else:
            rate = one.queries.per_second / other.queries.per_second
            rows += [
                BudgetRow(f"{where}: queries/s / Prometheus'", rate, 1.0, at_least=True),
                BudgetRow(f"{where}: p95 / Prometheus'", one.queries.p95 / other.queries.p95, 1.0),
            ]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--settle", type=float, default=SETTLE, help="from the start to the first measurement")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--no-rules", action="store_true", help="only scraping: no rules, and nobody asks")
    parser.add_argument("--alone", action="store_true", help="without Prometheus")
    parser.add_argument(
        "--soak", type=float, metavar="MINUTES", help="only memory over time, with everything on"
    )
    given = parser.parse_args()
    print(machine(), flush=True)
    if given.soak:
        report(soak(given.nodes, given.soak, given.viewers))
        return
    rules = not given.no_rules
    observed = run(given.nodes, given.seconds, given.settle, given.alone, given.viewers, rules)
    what = f"{given.nodes} × 600 @ {EVERY_SECONDS} s, {'shipped' if rules else 'no'} rules"
    print(table([what, *HEADINGS], [one.cells() for one in observed]), flush=True)
    report(budgets(given.nodes, observed))


if __name__ == "__main__":
    main()
