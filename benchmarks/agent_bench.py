"""Compares the agent with other exporters on one fake driver library: eight busy H100, four processes each.

`python -m benchmarks.agent_bench --processes 8 --alone` measures the agent's budget: 64 GPU processes.

Prints Markdown tables: cost of a scrape, cost of sampling (with and without the latency of a real driver),
memory, cold start; then the agent's memory over many cycles. Values are the minimum of several runs, because
other programs use the machine too.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.driver_time import driver_time
from benchmarks.exporters import (
    PROCESSES_EACH,
    Exporter,
    NotAvailableError,
    busy_machine,
    gpuscope,
    nvidia_gpu_exporter,
    nvitop_exporter,
    started,
)
from benchmarks.measure import MIB, cpu_percent, cpu_seconds, rss_bytes, sample_count, scrape, table
from tests.fake_nvml.build import Unavailable
from tests.fake_nvml.driver import FakeDriver
from tests.integration.soak import soaking

AS_PROMETHEUS = {
    "Accept": "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
    "Accept-Encoding": "gzip",
}
SCRAPES = 500
FRESH_SCRAPES = 20
FRESH_SECONDS = 1.05  # each scrape gets a new snapshot, at varying moments of the cycle
SETTLE_SECONDS = 12.0  # every tier has been read, and the ten-second tier twice


@dataclass(frozen=True, slots=True)
class Cost:
    """The cost of one exporter: for each number the minimum over the runs, for memory the maximum."""

    samples: int
    start: float
    start_cpu: float
    p50: float
    p95: float
    cpu_a_scrape: float
    fresh_p50: float
    fresh_p95: float
    sampling_percent: float
    scraped_percent: float
    rss: int

    def best(self, other: Cost) -> Cost:
        least = (min(getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return replace(Cost(*least), rss=max(self.rss, other.rss))


def measure(exporter: Exporter, driver: FakeDriver, seconds: float) -> Cost:
    with started(exporter, driver.env) as run:
        pid = run.process.pid
        start_cpu = cpu_seconds(pid)
        time.sleep(SETTLE_SECONDS)
        sampling = cpu_percent(pid, seconds)
        scrape(run.port, 20)  # warm-up
        before = cpu_seconds(pid)
        hot = scrape(run.port, SCRAPES)
        cpu_a_scrape = (cpu_seconds(pid) - before - hot.elapsed * sampling / 100) / SCRAPES
        scrape(run.port, 1, headers=AS_PROMETHEUS)
        before = cpu_seconds(pid)
        fresh = scrape(run.port, FRESH_SCRAPES, every=FRESH_SECONDS, headers=AS_PROMETHEUS)
        scraped = 100 * (cpu_seconds(pid) - before) / fresh.elapsed
        return Cost(
            sample_count(hot.body), run.seconds_to_first_scrape, start_cpu, hot.p50, hot.p95,
            max(0.0, cpu_a_scrape), fresh.p50, fresh.p95, sampling, scraped, rss_bytes(pid),
        )  # fmt: skip


def exporters(folder: Path, *, alone: bool) -> Iterator[Exporter]:
    yield gpuscope()
    if alone:
        return
    for peer in (nvitop_exporter, lambda: nvidia_gpu_exporter(folder)):
        try:
            yield peer()
        except NotAvailableError as reason:
            print(f"not measured: {reason}\n", flush=True)


ROWS = (
    ("samples per scrape", "samples", "{:.0f}", 1),
    ("/metrics p50, ms", "p50", "{:.2f}", 1e3),
    ("/metrics p95, ms", "p95", "{:.2f}", 1e3),
    ("CPU per scrape, ms", "cpu_a_scrape", "{:.2f}", 1e3),
    ("as Prometheus scrapes, new snapshot each time: p50, ms", "fresh_p50", "{:.2f}", 1e3),
    ("the same, p95, ms", "fresh_p95", "{:.2f}", 1e3),
    ("sampling, % of a core", "sampling_percent", "{:.2f}", 1),
    ("sampling and a scrape a second, % of a core", "scraped_percent", "{:.2f}", 1),
    ("resident memory, MiB", "rss", "{:.1f}", 1 / MIB),
    ("start to first scrape with GPUs, s", "start", "{:.2f}", 1),
    ("CPU until then, s", "start_cpu", "{:.2f}", 1),
)


def report(title: str, costs: dict[str, Cost]) -> None:
    ours, *peers = costs
    head = [title, ours, *(column for peer in peers for column in (peer, "ratio"))]
    rows = []
    for label, name, style, scale in ROWS:
        mine = getattr(costs[ours], name)
        row = [label, style.format(mine * scale)]
        for peer in peers:
            theirs = getattr(costs[peer], name)
            row += [style.format(theirs * scale), f"{theirs / mine:.1f}×" if mine else "-"]
        rows.append(row)
    print(table(head, rows) + "\n", flush=True)


def compare(folder: Path, seconds: float, runs: int, processes_each: int, *, alone: bool) -> None:
    with busy_machine(folder, processes_each) as driver:
        measured = list(exporters(folder, alone=alone))
        for title in ("no driver latency", "realistic driver latency"):
            if title.startswith("realistic"):
                driver.realistic_latency()
            costs: dict[str, Cost] = {}
            for _ in range(runs):  # in turns, so that load of the machine affects all of them
                for exporter in measured:
                    cost = measure(exporter, driver, seconds)
                    known = costs.get(exporter.name)
                    costs[exporter.name] = cost if known is None else known.best(cost)
            report(title, costs)
            report_driver_time(title, costs[measured[0].name], driver)


def report_driver_time(title: str, ours: Cost, driver: FakeDriver) -> None:
    library = driver_time(driver)
    theirs = 100 * library.cpu_seconds_per_second
    print(
        f"{title}: of the agent's {ours.sampling_percent:.2f} % of a core, {theirs:.2f} % is the library's own "
        f"time for {library.calls_per_second:.0f} calls a second; "
        f"{ours.sampling_percent - theirs:.2f} % is the agent's.\n",
        flush=True,
    )


def soak(folder: Path, cycles: int, most_seconds: float) -> None:
    """Print the memory at twenty points; at the time limit print how many cycles are missing."""
    began = time.monotonic()
    print("| cycles, everything coming and going | resident memory, MiB |\n|---|---|", flush=True)
    with soaking(FakeDriver(folder / "soak"), folder) as run:
        while run.cycles < cycles and time.monotonic() - began < most_seconds:
            memory = run.run(max(1, cycles // 20))
            print(f"| {run.cycles:,} | {memory / MIB:.2f} |", flush=True)
    if run.cycles < cycles:
        print(f"\nstopped at the time limit, {cycles - run.cycles:,} cycles short", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0, help="duration of the measurement of sampling")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--processes", type=int, default=PROCESSES_EACH, help="processes on each GPU")
    parser.add_argument("--alone", action="store_true", help="measure only the agent")
    parser.add_argument("--cycles", type=int, default=100_000, help="cycles of the soak test; 0: none")
    parser.add_argument("--soak-only", action="store_true", help="measure only memory over many cycles")
    parser.add_argument("--soak-seconds", type=float, default=600.0, help="time limit of the soak test")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)  # the soak test breaks the driver thousands of times on purpose
    with tempfile.TemporaryDirectory() as folder:
        try:
            if not chosen.soak_only:
                compare(Path(folder), chosen.seconds, chosen.runs, chosen.processes, alone=chosen.alone)
            if chosen.cycles:
                soak(Path(folder), chosen.cycles, chosen.soak_seconds)
        except Unavailable as missing:
            print(f"not measured: {missing}")


if __name__ == "__main__":
    main()
