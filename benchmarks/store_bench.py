"""Measures the store in process: bytes per sample, ingestion, cold start, read times. Takes about a minute.

Two data sets: a day of 25 nodes × 8 GPUs × 10 metrics at 15 s (noisy on purpose: random PCIe increments hardly
compress), and half an hour of 100 nodes × 600 series, mostly constants. Prints a table; times are medians of a
few runs on this machine, so compare ratios, not milliseconds.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from gpuscope.history.store import Store, StoreOptions, Tick
from gpuscope.model.series import Labels, Matcher, MatchOp

START = 1_700_000_000_000
STEP = 15_000
METRICS = (
    "utilization",
    "memory_utilization",
    "temperature",
    "memory_temperature",
    "power_watts",
    "energy_joules_total",
    "memory_used_bytes",
    "clock_hertz",
    "pcie_bytes_total",
    "info",
)


class BenchClock:
    def __init__(self) -> None:
        self.time = START

    def now_ms(self) -> int:
        return self.time

    def monotonic_ms(self) -> int:
        return self.now_ms()


def node_matrix(rng: np.random.Generator, gpus: int, ticks: int) -> np.ndarray:
    """Return values of one node, as (ticks, gpus × metrics)."""
    busy = np.repeat(rng.random((ticks // 240 + 1, gpus)) < 0.6, 240, axis=0)[:ticks]
    walk = np.cumsum(rng.integers(-4, 5, (ticks, gpus)), axis=0)
    util = np.where(busy, np.clip(80 + walk % 21, 0, 100), 0.0)
    memory_util = np.rint(util * 0.6 + rng.integers(0, 4, util.shape) * busy)
    temperature = np.rint(35 + util * 0.4 + np.cumsum(rng.integers(-1, 2, util.shape), axis=0) % 5)
    power = np.round(70 + util * 6 + rng.normal(0, 8, util.shape), 3)
    columns = [
        util,
        memory_util,
        temperature,
        temperature + 8 + rng.integers(0, 2, util.shape),
        power,
        np.rint(np.cumsum(power * 15_000, axis=0)) / 1000,
        (rng.integers(0, 3, util.shape).cumsum(axis=0) % 70_000) * 2.0**20,
        np.where(busy, rng.choice([1980, 1965, 1950, 1935, 1980], util.shape), 345) * 1e6,
        np.cumsum(rng.integers(0, 2**33, util.shape), axis=0).astype(float),
        np.ones_like(util),
    ]
    return np.ascontiguousarray(np.stack(columns, axis=2).reshape(ticks, gpus * len(METRICS)))


def labels(node: int, gpus: int) -> Iterator[Labels]:
    for gpu in range(gpus):
        for metric in METRICS:
            yield (
                ("__name__", f"gpu_{metric}"),
                ("gpu", str(gpu)),
                ("instance", f"node{node:02d}:9400"),
                ("job", "gpu"),
                ("uuid", f"GPU-{node:08x}-{gpu:04x}"),
            )


def timed(work: Callable[[], object], runs: int = 7) -> str:
    """Return median milliseconds of wall-clock and CPU time; on a busy machine use the latter."""
    wall, cpu = [], []
    for _ in range(runs):
        before, used = time.perf_counter(), time.thread_time()
        work()
        wall.append((time.perf_counter() - before) * 1000)
        cpu.append((time.thread_time() - used) * 1000)
    return f"{statistics.median(wall):.1f} ms ({statistics.median(cpu):.1f} CPU)"


def rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def name_is(metric: str) -> Matcher:
    return Matcher("__name__", MatchOp.EQUAL, f"gpu_{metric}")


def day(folder: Path, nodes: int, ticks: int) -> Iterator[tuple[str, str]]:
    rng = np.random.default_rng(4)
    clock = BenchClock()
    data = [node_matrix(rng, 8, ticks) for _ in range(nodes)]
    jitter = rng.integers(-3, 4, (nodes, ticks)) + rng.integers(0, STEP, (nodes, 1))
    base = rss_mib()
    with Store(folder, StoreOptions(max_ahead_ms=10**9), clock) as store:
        targets = [store.target(f"gpu/node{node}") for node in range(nodes)]
        series = [store.resolve(target, labels(node, 8)) for node, target in enumerate(targets)]
        store.start()
        spent = sealing = 0.0
        cpu = time.process_time()
        for tick in range(ticks):
            before = time.perf_counter()
            clock.time = START + tick * STEP
            futures = [
                store.submit(Tick(targets[n], clock.time + int(jitter[n, tick]), series[n], data[n][tick]))
                for n in range(nodes)
            ]
            for future in futures:
                future.result()
            spent += time.perf_counter() - before
            if tick % 120 == 119:
                before = time.perf_counter()
                store.maintain()
                sealing += time.perf_counter() - before
        cpu = time.process_time() - cpu
        samples = nodes * 80 * ticks
        yield "samples", f"{samples:,}"
        yield "ingest, acknowledged", f"{samples / spent / 1e6:.2f} M samples/s"
        yield "sealing for the day", f"{sealing:.1f} s"
        yield "ingest and sealing", f"{samples / cpu / 1e6:.2f} M samples per CPU second"
        yield "memory over the data itself", f"{rss_mib() - base:.0f} MiB"
        end = clock.time
        yield from fetches(store, end, "2 h chunks")
        store.seal()
        store.compact()
        yield "after seal", f"{store.stats().file_bytes / samples:.3f} B/sample, labels included"
        clock.time += 30 * 3600 * 1000
        before = time.perf_counter()
        store.maintain()
        yield "merge to 24 h", f"{time.perf_counter() - before:.1f} s"
        store.compact()
        yield (
            "after merge and compaction",
            f"{store.stats().file_bytes / samples:.3f} B/sample, labels included",
        )
        yield from fetches(store, end, "24 h chunks")


def fetches(store: Store, end: int, what: str) -> Iterator[tuple[str, str]]:
    one = [name_is("utilization"), Matcher("uuid", MatchOp.EQUAL, "GPU-00000003-0002")]
    node = [name_is("power_watts"), Matcher("instance", MatchOp.EQUAL, "node03:9400")]
    day_start = end - 24 * 3600 * 1000

    def cold(matchers: list[Matcher], start: int) -> Callable[[], object]:
        def run() -> object:
            store.reader.cache.clear()
            return store.select(matchers, start, end)

        return run

    yield f"q1 one series 1 h, {what}", timed(cold(one, end - 3600_000))
    yield f"q2 8 series 24 h, {what}", timed(cold(node, day_start))
    yield (
        f"q3 200 series 24 h, {what}",
        f"{timed(cold([name_is('utilization')], day_start))} cold, "
        f"{timed(lambda: store.select([name_is('utilization')], day_start, end))} cached",
    )
    yield f"q4 latest of all, {what}", timed(lambda: store.latest([], end - 300_000, end))
    yield f"q4 by select, {what}", timed(lambda: store.select([], end - 300_000, end))


def burst(folder: Path, nodes: int, ticks: int) -> Iterator[tuple[str, str]]:
    rng = np.random.default_rng(5)
    clock = BenchClock()
    base = rss_mib()
    values = rng.integers(0, 100, (8, 600)).astype(float)
    values[:, :360] = values[0, :360]
    with Store(folder, StoreOptions(max_ahead_ms=10**9), clock) as store:
        store.start()
        targets = [store.target(f"gpu/node{node}") for node in range(nodes)]
        before = time.perf_counter()
        series = [
            store.resolve(
                target,
                [
                    (
                        ("__name__", f"metric_{i // 8}"),
                        ("gpu", str(i % 8)),
                        ("instance", f"node{node}:9400"),
                        ("job", "gpu"),
                    )
                    for i in range(600)
                ],
            )
            for node, target in enumerate(targets)
        ]
        yield "resolve 60k new label sets", f"{time.perf_counter() - before:.2f} s"
        before = time.perf_counter()
        for tick in range(ticks):
            clock.time = START + tick * STEP
            futures = [
                store.submit(Tick(target, clock.time + node, series[node], values[tick % 8]))
                for node, target in enumerate(targets)
            ]
            for future in futures:
                future.result()
        spent = time.perf_counter() - before
        yield "burst ingest", f"{nodes * 600 * ticks / spent / 1e6:.2f} M samples/s"
        stats = store.stats()
        yield "burst heads", f"{stats.head_bytes / 2**20:.0f} MiB reserved, process +{rss_mib() - base:.0f} MiB"
        yield (
            "burst latest of all",
            timed(lambda: store.latest([], clock.time - 300_000, clock.time + 1000), 3),
        )
    before = time.perf_counter()
    with Store(folder, clock=clock) as store:
        yield "cold start with 60k series and full heads", f"{time.perf_counter() - before:.2f} s"
        before = time.perf_counter()
        store.seal()
        yield "seal all 60k", f"{time.perf_counter() - before:.1f} s"
        store.compact()
        size = store.stats().file_bytes
        yield "burst after seal", f"{size / (nodes * 600 * ticks):.2f} B/sample, labels included"
    before = time.perf_counter()
    with Store(folder, clock=clock):
        yield "cold start, sealed", f"{time.perf_counter() - before:.2f} s"


def month(folder: Path, days: int) -> Iterator[tuple[str, str]]:
    """Thirty days of one node's 8 GPUs: the queries of the page when it shows a month."""
    rng = np.random.default_rng(6)
    clock = BenchClock()
    ticks = days * 5760
    power = np.round(300 + rng.normal(0, 20, (ticks, 8)), 3)
    with Store(folder, StoreOptions(max_ahead_ms=10**9, retention_ms=10**12, queue_ticks=4096), clock) as store:
        target = store.target("gpu/node")
        names = [(("__name__", "gpu_power_watts"), ("gpu", str(gpu))) for gpu in range(8)]
        series = store.resolve(target, names)
        store.start()
        for tick in range(ticks):
            clock.time = START + tick * STEP
            future = store.submit(Tick(target, clock.time, series, power[tick]))
            if tick % 1440 == 1439:
                future.result()
                store.maintain()
        future.result()
        store.maintain()

        def cold() -> object:
            store.reader.cache.clear()
            return store.select([name_is("power_watts")], START, clock.time)

        spent = timed(cold)
        blocks = store.stats().blocks
    yield f"{days} days of 8 series, {blocks} blocks", f"{spent} for {8 * ticks:,} samples, cold"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=25)
    parser.add_argument("--ticks", type=int, default=5760)
    parser.add_argument("--burst-nodes", type=int, default=100)
    parser.add_argument("--days", type=int, default=30)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for what, value in day(Path(folder) / "day", chosen.nodes, chosen.ticks):
            print(f"{what:<46} {value}", flush=True)
        for what, value in month(Path(folder) / "month", chosen.days):
            print(f"{what:<46} {value}", flush=True)
        for what, value in burst(Path(folder) / "burst", chosen.burst_nodes, 120):
            print(f"{what:<46} {value}", flush=True)


if __name__ == "__main__":
    main()
