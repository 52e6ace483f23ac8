"""The agent against its peers on the same fake driver library: eight busy H100 with four processes each.

Prints Markdown tables: what a scrape costs, what sampling costs (with and without the time a real driver
takes), memory, cold start; then the agent's memory over many cycles. Best of several runs, because machines
are shared: what a thing costs is the least it was seen to cost.
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
    Exporter,
    NotHere,
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
FRESH_SECONDS = 1.05  # each finds a new snapshot, and not always at the same moment of the cycle
SETTLE_SECONDS = 12.0  # until every tier was read, and the second reading of the ten-second tier is over


@dataclass(frozen=True, slots=True)
class Cost:
    """What one exporter was seen to cost; the least over the runs, each number by itself, but of memory the
    most: a busy machine makes things slow, never small."""

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
        scrape(run.port, 20)  # whatever is made when it is first asked for
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


def exporters(folder: Path) -> Iterator[Exporter]:
    yield gpuscope()
    for peer in (nvitop_exporter, lambda: nvidia_gpu_exporter(folder)):
        try:
            yield peer()
        except NotHere as reason:
            print(f"not measured: {reason}\n", flush=True)


ROWS = (
    ("samples a scrape", "samples", "{:.0f}", 1),
    ("/metrics p50, ms", "p50", "{:.2f}", 1e3),
    ("/metrics p95, ms", "p95", "{:.2f}", 1e3),
    ("CPU a scrape, ms", "cpu_a_scrape", "{:.2f}", 1e3),
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


def compare(folder: Path, seconds: float, runs: int) -> None:
    with busy_machine(folder) as driver:
        measured = list(exporters(folder))
        for title in ("no driver latency", "realistic driver latency"):
            if title.startswith("realistic"):
                driver.realistic_latency()
            costs: dict[str, Cost] = {}
            for _ in range(runs):  # one after the other, so that a busy moment of the machine hits all of them
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
    """Memory at twenty marks, each printed as it is reached; at the time limit it says how far it came."""
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
    parser.add_argument("--seconds", type=float, default=20.0, help="how long sampling is watched")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cycles", type=int, default=100_000, help="of the soak")
    parser.add_argument("--soak-only", action="store_true", help="memory over many cycles, nothing else")
    parser.add_argument("--soak-seconds", type=float, default=600.0, help="when the soak stops at the latest")
    chosen = parser.parse_args()
    logging.disable(logging.WARNING)  # the soak breaks the driver on purpose, thousands of times
    with tempfile.TemporaryDirectory() as folder:
        try:
            if not chosen.soak_only:
                compare(Path(folder), chosen.seconds, chosen.runs)
            soak(Path(folder), chosen.cycles, chosen.soak_seconds)
        except Unavailable as missing:
            print(f"not measured: {missing}")


if __name__ == "__main__":
    main()
