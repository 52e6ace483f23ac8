"""Measures one server with 1,000 simulated nodes × 600 series every 15 s, and Prometheus with the same nodes.

Both scrape at the same time, so that other programs on the machine disturb both alike, and both evaluate the
shipped rules every 15 s. Rows: nobody asks; eight clients with five dashboard queries; then, for gpuscope,
clients and 20 viewers of the live picture together. Scrape delays are measured by the nodes; pauses by garbage
collection in the server. `--nodes 100` for a short run, `--soak 30` for memory over half an hour.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.gc_watch import read_pauses
from benchmarks.live_viewer import LiveViewer
from benchmarks.measure import MIB, cpu_seconds, machine, rss_bytes, table
from benchmarks.simulated_nodes import EVERY_SECONDS, scrape_config, simulated_nodes
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
def scraping(name: str, folder: Path, nodes_port: int, nodes: int) -> Iterator[Scraping]:
    port = free_port()
    prefix = name.lower()
    config = folder / f"{prefix}.yml"
    rules = f"rule_files: [{RULES}/gpuscope-*.yml]" if name == PROMETHEUS else ""
    config.write_text(scrape_config(nodes_port, nodes, prefix, rules))
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
def asking(port: int, clients: int, viewers: int) -> Iterator[tuple[list[QueryClient], list[LiveViewer]]]:
    """Run clients with dashboard queries, and viewers of the live picture."""
    stop = threading.Event()
    asked = [QueryClient(port, dashboard_request, PAUSE_SECONDS, stop) for _ in range(clients)]
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


def observe(engines: Sequence[Scraping], pipe: Connection, seconds: float) -> dict[str, list[str]]:
    """Measure for some seconds; return table cells by engine."""
    pipe.send(True)
    pipe.recv()
    began, before = time.monotonic(), [cpu_seconds(one.pid) for one in engines]
    time.sleep(seconds)
    spent = [cpu_seconds(one.pid) - was for one, was in zip(engines, before, strict=True)]
    elapsed = time.monotonic() - began
    pipe.send(True)
    scrapes = pipe.recv()
    cells: dict[str, list[str]] = {}
    for one, cpu in zip(engines, spent, strict=True):
        delays = delays_ms(scrapes, one.prefix)
        p99 = statistics.quantiles(delays, n=100, method="inclusive")[-1] if len(delays) > 1 else 0.0
        count = sum(path.startswith(b"/%b/" % one.prefix.encode()) for path, _ in scrapes)
        cells[one.name] = [
            f"{100 * cpu / elapsed:.1f} %",
            f"{rss_bytes(one.pid) / MIB:.0f} MiB",
            f"{count / elapsed:.1f}",
            f"{statistics.median(delays):.0f} / {p99:.0f} / {max(delays):.0f}" if delays else "-",
        ]
    return cells


def latencies(clients: Sequence[QueryClient | LiveViewer], seconds: float) -> str:
    spent = [1000 * one for client in clients for one in client.seconds]
    if len(spent) < 2:
        return "-"
    p95 = statistics.quantiles(spent, n=20, method="inclusive")[-1]
    return f"{len(spent) / seconds:.1f}/s, {statistics.median(spent):.0f} / {p95:.0f}"


def pauses_text(path: Path, since: int) -> tuple[str, int]:
    """Return number and longest of the pauses from the `since`-th on, and the number of all."""
    pauses = read_pauses(path)
    fresh = pauses[since:]
    if not fresh:
        return "none", len(pauses)
    longest, cpu = max(ms for ms, _ in fresh), max(cpu for _, cpu in fresh)
    return f"{len(fresh)}, {longest:.0f} ms, {cpu:.0f} ms", len(pauses)


HEADINGS = [
    "CPU of one core", "RSS", "scrapes/s", "scrape delay p50 / p99 / max, ms",
    "queries: rate, p50 / p95, ms", "live events: rate, interval p50 / p95, ms",
    "gc pauses ≥ 1 ms: number, longest, most CPU",
]  # fmt: skip


class ScaleRun:
    """Engines that scrape, and the rows measured so far."""

    def __init__(self, engines: Sequence[Scraping], pipe: Connection, pauses: Path, seconds: float) -> None:
        self._engines, self._pipe, self._pauses, self._seconds = engines, pipe, pauses, seconds
        self._pause_count = len(read_pauses(pauses))
        self.rows: list[list[str]] = []

    def add(self, what: str, asked: Scraping | None = None, clients: int = 0, viewers: int = 0) -> None:
        """Measure all engines while clients ask one of them; add a row for it, or for each if nobody asks."""
        if asked is None:
            cells = observe(self._engines, self._pipe, self._seconds)
            queries = live = "-"
        else:
            with asking(asked.port, clients, viewers) as (askers, watchers):
                cells = observe(self._engines, self._pipe, self._seconds)
            queries, live = latencies(askers, self._seconds), latencies(watchers, self._seconds)
        pauses, self._pause_count = pauses_text(self._pauses, self._pause_count)
        for one in self._engines if asked is None else [asked]:
            own = pauses if one.name == OURS else "-"
            self.rows.append([f"{one.name}: {what}", *cells[one.name], queries, live, own])
            print(self.rows[-1], file=sys.stderr, flush=True)


def run(nodes: int, seconds: float, settle: float, alone: bool, viewers: int) -> str:
    names = [OURS] if alone or isinstance(find_engine("prometheus"), str) else [OURS, PROMETHEUS]
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        port, pipe = stack.enter_context(simulated_nodes())
        engines = [stack.enter_context(scraping(one, folder, port, nodes)) for one in names]
        time.sleep(settle)
        measured = ScaleRun(engines, pipe, folder / "pauses", seconds)
        measured.add("nobody asks")
        for one in engines:
            measured.add("8 clients", one, clients=8)
        measured.add(f"8 clients, {viewers} viewers", engines[0], clients=8, viewers=viewers)
        return table([f"{nodes} × 600 @ {EVERY_SECONDS} s, shipped rules", *HEADINGS], measured.rows)


def soak(nodes: int, minutes: float, viewers: int) -> str:
    """Measure gpuscope alone with everything on, ten rows over the time."""
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        port, pipe = stack.enter_context(simulated_nodes())
        engine = stack.enter_context(scraping(OURS, folder, port, nodes))
        time.sleep(EVERY_SECONDS + 5)
        each = 60 * minutes / 10
        measured = ScaleRun([engine], pipe, folder / "pauses", each)
        for number in range(10):
            began = number * each / 60
            measured.add(f"minute {began:.0f} to {began + each / 60:.0f}", engine, clients=8, viewers=viewers)
        return table([f"{nodes} × 600, everything on", *HEADINGS], measured.rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each measurement")
    parser.add_argument("--settle", type=float, default=60.0, help="from the start to the first measurement")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--alone", action="store_true", help="without Prometheus")
    parser.add_argument("--soak", type=float, metavar="MINUTES", help="only memory over time")
    given = parser.parse_args()
    print(machine(), flush=True)
    if given.soak:
        print(soak(given.nodes, given.soak, given.viewers), flush=True)
    else:
        print(run(given.nodes, given.seconds, given.settle, given.alone, given.viewers), flush=True)


if __name__ == "__main__":
    main()
