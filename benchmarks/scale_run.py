"""Engines that scrape simulated nodes while clients and viewers ask, for `scale_bench` and its soak."""

from __future__ import annotations

import http.client
import re
import statistics
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.gc_watch import read_pauses
from benchmarks.live_viewer import LiveViewer
from benchmarks.measure import MIB, cpu_seconds, rss_bytes
from benchmarks.simulated_nodes import EVERY_SECONDS, scrape_config
from tests.engines import find_engine, running
from tests.ports import free_port

OURS, PROMETHEUS = "gpuscope", "Prometheus"
RULES = Path(__file__).parents[1] / "deploy/prometheus/rules"
PAUSE_SECONDS = 0.1
"""Between two queries of a client: like an open page, not a load generator."""
DASHBOARD = (
    ("/api/v1/query_range", "avg by (instance) (gpuscope_gpu_utilization_ratio)", "15s"),
    ("/api/v1/query_range", "sum by (gpu) (rate(gpuscope_gpu_energy_joules_total[1m]))", "15s"),
    ("/api/v1/query", '{__name__=~"gpuscope_gpu_memory_.*", gpu="0"}', ""),
    ("/api/v1/query", "topk(5, gpuscope_gpu_power_watts)", ""),
    ("/api/v1/series", "gpuscope_gpu_power_watts", ""),
)


@dataclass(frozen=True, slots=True)
class Scraping:
    """An engine that scrapes the nodes under `/PREFIX/`."""

    name: str
    prefix: str
    port: int
    pid: int


@contextmanager
def scraping(name: str, folder: Path, nodes_port: int, nodes: int, rules: bool = True) -> Iterator[Scraping]:
    port = free_port()
    prefix = name.lower()
    config = folder / f"{prefix}.yml"
    rule_files = f"rule_files: [{RULES}/gpuscope-*.yml]" if rules else ""
    config.write_text(scrape_config(nodes_port, nodes, prefix, rule_files))
    address = f"127.0.0.1:{port}"
    command: list[str | Path] = [
        sys.executable, "-m", "benchmarks.gc_watch", folder / "pauses", "server",
        "--config", config, "--data", folder / prefix, "--listen", address,
    ]  # fmt: skip
    if name == PROMETHEUS:
        command = [
            str(find_engine("prometheus")), f"--config.file={config}", f"--storage.tsdb.path={folder / prefix}",
            f"--web.listen-address={address}", "--log.level=warn",
        ]  # fmt: skip
    with running(command, f"http://{address}/-/ready") as process:
        yield Scraping(name, prefix, port, process.pid)


class QueryClient(threading.Thread):
    """Sends requests one after another until stopped."""

    def __init__(self, port: int, requests: Callable[[int], str], pause: float, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port, self._requests, self._pause, self._stop_asking = port, requests, pause, stop
        self.seconds: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=120)
        number = 0
        while not self._stop_asking.is_set():
            path = self._requests(number)
            number += 1
            before = time.perf_counter()
            connection.request("GET", path, headers={"Accept-Encoding": "gzip"})
            answer = connection.getresponse()
            answer.read()
            self.seconds.append(time.perf_counter() - before)
            if answer.status != 200:
                raise RuntimeError(f"{path}: {answer.status}")
            self._stop_asking.wait(self._pause)
        connection.close()


def dashboard_request(number: int) -> str:
    path, query, step = DASHBOARD[number % len(DASHBOARD)]
    now = time.time()
    parameters = {"match[]": query} if path.endswith("series") else {"query": query}
    if step:
        parameters |= {"start": f"{now - 300:.3f}", "end": f"{now:.3f}", "step": step}
    return f"{path}?{urlencode(parameters)}"


@contextmanager
def asking(
    port: int, clients: int, viewers: int, pause: float = PAUSE_SECONDS
) -> Iterator[tuple[list[QueryClient], list[LiveViewer]]]:
    """Run clients with dashboard queries, and viewers of the live picture."""
    stop = threading.Event()
    asked = [QueryClient(port, dashboard_request, pause, stop) for _ in range(clients)]
    watched = [LiveViewer(port, stop) for _ in range(viewers)]
    for one in (*asked, *watched):
        one.start()
    try:
        yield asked, watched
    finally:
        stop.set()
        for one in (*asked, *watched):
            one.join()


def delays_ms(scrapes: Sequence[tuple[bytes, float]], prefix: str) -> list[float]:
    """Return for each two consecutive scrapes of a node the deviation from the interval."""
    by_path: dict[bytes, list[float]] = {}
    for path, at in scrapes:
        if path.startswith(b"/%b/" % prefix.encode()):
            by_path.setdefault(path, []).append(at)
    return [
        1000 * abs(later - earlier - EVERY_SECONDS)
        for times in by_path.values()
        for earlier, later in pairwise(times)
    ]


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of the answers to clients, or of the times between a viewer's pictures, in milliseconds."""

    per_second: float
    p50: float
    p95: float

    def __str__(self) -> str:
        return f"{self.per_second:.1f}/s, {self.p50:.0f} / {self.p95:.0f}"


def latencies(clients: Sequence[QueryClient | LiveViewer], seconds: float) -> Latencies | None:
    spent = [1000 * one for client in clients for one in client.seconds]
    if len(spent) < 2:
        return None
    p95 = statistics.quantiles(spent, n=20, method="inclusive")[-1]
    return Latencies(len(spent) / seconds, statistics.median(spent), p95)


@dataclass(frozen=True, slots=True)
class Observed:
    """What one engine did for some seconds."""

    what: str
    engine: str
    cpu_percent: float
    """Of one core."""
    rss_mib: float
    scrapes_per_second: float
    delays_ms: Sequence[float]
    queries: Latencies | None
    live: Latencies | None
    pauses: Sequence[tuple[float, float]]
    """By garbage collection: milliseconds, and those of CPU time."""

    @property
    def delay_p99(self) -> float:
        if len(self.delays_ms) < 2:
            return 0.0
        return statistics.quantiles(self.delays_ms, n=100, method="inclusive")[-1]

    @property
    def longest_pause(self) -> float:
        """Milliseconds of CPU time: other programs make a pause longer that is not the collector's."""
        return max((cpu for _, cpu in self.pauses), default=0.0)

    def cells(self) -> list[str]:
        delays = "-"
        if self.delays_ms:
            median, longest = statistics.median(self.delays_ms), max(self.delays_ms)
            delays = f"{median:.0f} / {self.delay_p99:.0f} / {longest:.0f}"
        pauses = "-"
        if self.engine == OURS:
            longest = max((ms for ms, _ in self.pauses), default=0.0)
            pauses = f"{len(self.pauses)}, {longest:.0f} ms, {self.longest_pause:.0f} ms"
        return [
            f"{self.engine}: {self.what}",
            f"{self.cpu_percent:.1f} %",
            f"{self.rss_mib:.0f} MiB",
            f"{self.scrapes_per_second:.1f}",
            delays,
            "-" if self.queries is None else str(self.queries),
            "-" if self.live is None else str(self.live),
            pauses,
        ]


HEADINGS = [
    "CPU of one core", "RSS", "scrapes/s", "scrape delay p50 / p99 / max, ms",
    "queries: rate, p50 / p95, ms", "live events: rate, interval p50 / p95, ms",
    "gc pauses ≥ 1 ms: number, longest, most CPU",
]  # fmt: skip


class ScaleRun:
    """Engines that scrape, and what was observed so far."""

    def __init__(self, engines: Sequence[Scraping], pipe: Connection, pauses: Path) -> None:
        self._engines, self._pipe, self._pauses = engines, pipe, pauses
        self._pause_count = len(read_pauses(pauses))
        self.observed: list[Observed] = []

    def add(
        self, what: str, seconds: float, asked: Scraping | None = None, clients: int = 0, viewers: int = 0
    ) -> None:
        """Observe all engines while clients ask one of them; keep that one's numbers, or those of all if nobody
        asks."""
        if asked is None:
            self.observe(what, seconds, self._engines)
            return
        with asking(asked.port, clients, viewers) as (askers, watchers):
            self.observe(what, seconds, [asked], askers, watchers)

    def observe(
        self,
        what: str,
        seconds: float,
        engines: Sequence[Scraping],
        askers: Sequence[QueryClient] = (),
        watchers: Sequence[LiveViewer] = (),
    ) -> None:
        """Observe some engines; clients and viewers run already, and count from now on."""
        for asker in askers:
            asker.seconds = []
        for watcher in watchers:
            watcher.seconds = []
        self._pipe.send(True)
        self._pipe.recv()
        began, before = time.monotonic(), [cpu_seconds(one.pid) for one in engines]
        time.sleep(seconds)
        spent = [cpu_seconds(one.pid) - was for one, was in zip(engines, before, strict=True)]
        elapsed = time.monotonic() - began
        self._pipe.send(True)
        scrapes = self._pipe.recv()
        pauses = read_pauses(self._pauses)
        for one, cpu in zip(engines, spent, strict=True):
            found = Observed(
                what,
                one.name,
                100 * cpu / elapsed,
                rss_bytes(one.pid) / MIB,
                sum(path.startswith(b"/%b/" % one.prefix.encode()) for path, _ in scrapes) / elapsed,
                delays_ms(scrapes, one.prefix),
                latencies(askers, elapsed),
                latencies(watchers, elapsed),
                pauses[self._pause_count :] if one.name == OURS else (),
            )
            self.observed.append(found)
            print(found.cells(), file=sys.stderr, flush=True)
        self._pause_count = len(pauses)


def heads_sealed(port: int) -> int:
    """Return how many heads gpuscope has sealed since its start."""
    return int(own_metric(port, "gpuscope_store_seals_total"))


def own_metric(port: int, name: str) -> float:
    """Return the sum of a metric's series in an engine's own `/metrics`."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
        found = re.findall(rf"^{name}(?:{{.*}})? (\S+)".encode(), answer.read(), re.MULTILINE)
    if not found:
        raise RuntimeError(f"{name} is not in /metrics")
    return sum(map(float, found))


def check_rules(engine: Scraping) -> None:
    """An engine without rules would be compared with one that has some."""
    if own_metric(engine.port, "prometheus_rule_evaluations_total") < 1:
        raise RuntimeError(f"{engine.name} evaluates no rules")
