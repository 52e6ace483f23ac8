"""Measures one server with a fleet: 100 targets × 600 series every 15 s, without and with 8 query clients.

One process simulates the 100 exporters and records when each is scraped, so that delays are measured from the
outside: the difference between the scrape intervals of a target and 15 s. Then measures `up --demo`. Takes
about two and a half minutes; `--soak 70` measures the fleet for 70 minutes instead, in which every head is
sealed several times.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.parse import urlencode

from benchmarks.measure import MIB, cpu_seconds, rss_bytes, table, wait_for_demo_history
from benchmarks.simulated_nodes import exporter_process, serve_until_closed
from tests.engines import running
from tests.ports import free_port

TARGETS, SERIES, EVERY = 100, 600, 15
CLIENTS = 8
GPUS = 8
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
DASHBOARD = (
    ("/api/v1/query_range", "avg by (instance) (metric_3)", "15s"),
    ("/api/v1/query_range", "sum by (gpu) (rate(metric_40_total[1m]))", "15s"),
    ("/api/v1/query", '{__name__=~"metric_1.", gpu="0"}', ""),
    ("/api/v1/query", "topk(5, metric_7)", ""),
    ("/api/v1/series", "metric_3", ""),
)


def exposition(node: int, tick: int) -> bytes:
    """60 % constant series; the others change, a few of them are counters."""
    lines = []
    for number in range(SERIES):
        metric, gpu = divmod(number, GPUS)
        name = f"metric_{metric}_total" if metric % 10 == 0 else f"metric_{metric}"
        if not gpu:
            kind = "counter" if metric % 10 == 0 else "gauge"
            lines += [f"# HELP {name} What number {metric} measures.", f"# TYPE {name} {kind}"]
        moving = metric % 10 == 0 or number % 10 > 6
        value = number + (tick * (node + gpu + 1) if moving else 0)
        lines.append(f'{name}{{gpu="{gpu}",uuid="GPU-{node:08x}-{gpu:04x}"}} {value}')
    return "\n".join((*lines, "")).encode()


def play_exporters(pipe: Connection) -> None:
    """Serves all targets on one port, by path; sends the list of (path, time) on request."""
    scrapes: list[tuple[str, float]] = []
    ticks: dict[str, int] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                path = request.split(b" ", 2)[1].decode()
                scrapes.append((path, time.monotonic()))
                ticks[path] = ticks.get(path, 0) + 1
                body = exposition(int(path.rpartition("/")[2]), ticks[path])
                writer.write(HEAD % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    asyncio.run(serve_until_closed(answer, pipe, scrapes))


def config_text(port: int) -> str:
    # One port and a path per target: 100 ports would test the kernel, not the server.
    labels = [f'__metrics_path__: "/{number}", instance: "node{number:03d}"' for number in range(TARGETS)]
    groups = "\n".join(f'      - {{targets: ["127.0.0.1:{port}"], labels: {{{one}}}}}' for one in labels)
    return f"""\
global: {{scrape_interval: {EVERY}s, scrape_timeout: 10s}}
scrape_configs:
  - job_name: gpu
    static_configs:
{groups}
"""


def scrape_delays(scrapes: Sequence[tuple[str, float]]) -> list[float]:
    """Return for each two consecutive scrapes of a target the deviation from the interval, in ms."""
    by_target: dict[str, list[float]] = {}
    for path, at in scrapes:
        by_target.setdefault(path, []).append(at)
    return [
        1000 * abs(later - earlier - EVERY)
        for times in by_target.values()
        for earlier, later in pairwise(times)
    ]


class Client(threading.Thread):
    """Sends dashboard queries one after another until stopped."""

    def __init__(self, port: int, stop: threading.Event) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._stop_asking = stop
        self.latencies: list[float] = []

    def run(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=60)
        number = 0
        while not self._stop_asking.is_set():
            path, query, step = DASHBOARD[number % len(DASHBOARD)]
            number += 1
            now = time.time()
            parameters = {"match[]": query} if path.endswith("series") else {"query": query}
            if step:
                parameters |= {"start": str(now - 300), "end": str(now), "step": step}
            before = time.perf_counter()
            connection.request("GET", f"{path}?{urlencode(parameters)}")
            answer = connection.getresponse()
            answer.read()
            self.latencies.append(time.perf_counter() - before)
            if answer.status != 200:
                raise RuntimeError(f"{query}: {answer.status}")
            self._stop_asking.wait(0.1)  # like a person with an open page, not a load generator
        connection.close()


def observe(pid: int, pipe: Connection, seconds: float) -> list[str]:
    """Measure CPU, memory and scrape delays for some seconds; return table cells."""
    pipe.send(True)
    pipe.recv()
    began, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    spent = cpu_seconds(pid) - before
    elapsed = time.monotonic() - began
    pipe.send(True)
    scrapes = pipe.recv()
    delays = scrape_delays(scrapes)
    p50, p99 = statistics.median(delays), statistics.quantiles(delays, n=100, method="inclusive")[-1]
    return [
        f"{100 * spent / elapsed:.1f} %",
        f"{rss_bytes(pid) / MIB:.0f} MiB",
        f"{len(scrapes) / elapsed:.2f}",
        f"{p50:.0f} / {p99:.0f} / {max(delays):.0f}",
    ]


@contextmanager
def fleet_server(folder: Path) -> Iterator[tuple[int, int, Connection]]:
    """Start a server that scrapes all targets; yield its PID, its port, and the exporters' pipe."""
    port = free_port()
    with exporter_process(play_exporters) as (exporter_port, pipe):
        config = folder / "prometheus.yml"
        config.write_text(config_text(exporter_port))
        command: list[str | Path] = [
            sys.executable, "-m", "gpuscope", "server",
            "--config", config, "--data", folder / "fleet", "--listen", f"127.0.0.1:{port}",
        ]  # fmt: skip
        with running(command, f"http://127.0.0.1:{port}/-/ready") as process:
            time.sleep(EVERY + 3)  # the first scrape of each target creates its series
            yield process.pid, port, pipe


HEADINGS = ["CPU of one core", "RSS", "scrapes/s", "scrape delay p50/p99/max, ms"]


def fleet(folder: Path, seconds: float) -> None:
    with fleet_server(folder) as (pid, port, pipe):
        rows = [["no queries", *observe(pid, pipe, seconds), "-"]]
        stop = threading.Event()
        clients = [Client(port, stop) for _ in range(CLIENTS)]
        for one in clients:
            one.start()
        cells = observe(pid, pipe, seconds)
        stop.set()
        for one in clients:
            one.join()
        latencies = [1000 * spent for one in clients for spent in one.latencies]
        p95 = statistics.quantiles(latencies, n=20)[-1]
        query_rate = f"{len(latencies) / seconds:.0f}/s, {statistics.median(latencies):.0f} / {p95:.0f} ms"
        rows.append([f"{CLIENTS} clients", *cells, query_rate])
    head = [f"{TARGETS} × {SERIES} @ {EVERY} s", *HEADINGS, "queries, p50/p95"]
    print(table(head, rows), "\n", flush=True)


def soak(folder: Path, minutes: int) -> None:
    rows = []
    with fleet_server(folder) as (pid, _, pipe):
        for after in range(10, minutes + 1, 10):
            rows.append([f"minute {after - 10} to {after}", *observe(pid, pipe, 600)])
            print(rows[-1], file=sys.stderr, flush=True)
    print(table([f"{TARGETS} × {SERIES} @ {EVERY} s", *HEADINGS], rows), flush=True)


def demo(folder: Path, seconds: float) -> None:
    port = free_port()
    command: list[str | Path] = [
        sys.executable, "-m", "gpuscope", "up", "--demo",
        "--data", folder / "demo", "--listen", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with running(command, f"http://127.0.0.1:{port}/-/ready") as process:
        wait_for_demo_history(port)
        time.sleep(10)
        before = cpu_seconds(process.pid)
        time.sleep(seconds)
        spent = cpu_seconds(process.pid) - before
        cells = [f"{100 * spent / seconds:.1f} %", f"{rss_bytes(process.pid) / MIB:.0f} MiB"]
    print(
        table(["`up --demo`, 4 nodes × 8 GPUs", "CPU of one core", "RSS"], [["no queries", *cells]]),
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--only", choices=("fleet", "demo"))
    parser.add_argument("--soak", type=int, metavar="MINUTES")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as name:
        if chosen.soak:
            soak(Path(name), chosen.soak)
            return
        if chosen.only in (None, "fleet"):
            fleet(Path(name), chosen.seconds)
        if chosen.only in (None, "demo"):
            demo(Path(name), min(30.0, chosen.seconds))


if __name__ == "__main__":
    main()
