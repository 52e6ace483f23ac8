"""Compares the embedded store, Prometheus and VictoriaMetrics with the same day of data.

Each gets 2,000 series × 24 h at 15 s, then the same queries over HTTP from one client, in turns. Prints
milliseconds, ratios to Prometheus, bytes per sample, ingestion by remote write and memory; then, for the
embedded store only, a month of 8 GPUs and a start with 60,000 series. Takes about four minutes; a missing
engine is reported and skipped. VictoriaMetrics runs without its result cache, because the others have none.
"""

from __future__ import annotations

import argparse
import gzip
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from benchmarks.measure import MIB, cpu_seconds, rss_bytes, table
from benchmarks.query_data import (
    HOUR_MS,
    STEP_MS,
    Fleet,
    fill_many,
    fill_month,
    fill_store,
    make_fleet,
    send,
    settle,
    tick_requests,
    write_requests,
)
from tests.engines import engine, running
from tests.ports import free_port

OURS, PROMETHEUS, VICTORIA = "gpuscope", "Prometheus", "VictoriaMetrics"
INGEST_TICKS = 100


@dataclass(slots=True)
class Server:
    """A running engine and the benchmark's connection to it."""

    name: str
    port: int
    pid: int
    data: Path
    connection: http.client.HTTPConnection = field(init=False)

    def __post_init__(self) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)

    def request(self, path: str, parameters: dict[str, str], *, plain: bool = False) -> tuple[float, bytes]:
        """Return seconds and response: compressed, as Grafana, browsers and Go's client request it, or
        plain."""
        parameters = parameters | ({"nocache": "1"} if self.name == VICTORIA else {})
        target = f"{path}?{urlencode(parameters)}"
        before = time.perf_counter()
        self.connection.request("GET", target, headers={} if plain else {"Accept-Encoding": "gzip"})
        answer = self.connection.getresponse()
        body = answer.read()
        spent = time.perf_counter() - before
        if answer.headers.get("content-encoding") == "gzip":
            body = gzip.decompress(body)
        if answer.status != 200:
            raise RuntimeError(f"{self.name}: {answer.status} {body[:300]!r}")
        return spent, body

    def disk_bytes(self) -> int:
        return sum(one.stat().st_blocks * 512 for one in self.data.rglob("*") if one.is_file())


@contextmanager
def server(name: str, data: Path) -> Iterator[Server]:
    port = free_port()
    address = f"127.0.0.1:{port}"
    config = data.parent / "empty.yml"
    config.write_text("global: {scrape_interval: 1h}\n")
    commands: dict[str, list[str | Path]] = {
        OURS: [sys.executable, "-m", "gpuscope", "server", "--data", data, "--listen", address],
        PROMETHEUS: [
            *([engine("prometheus")] if name == PROMETHEUS else []),
            f"--config.file={config}",
            f"--storage.tsdb.path={data}",
            f"--web.listen-address={address}",
            "--web.enable-remote-write-receiver",
            "--log.level=warn",
        ],
        VICTORIA: [
            *([engine("victoria-metrics")] if name == VICTORIA else []),
            f"-storageDataPath={data}",
            f"-httpListenAddr={address}",
            "-retentionPeriod=100y",
            "-loggerLevel=WARN",
        ],
    }
    ready = "/health" if name == VICTORIA else "/-/ready"
    with running(commands[name], f"http://{address}{ready}") as process:
        yield Server(name, port, process.pid, data)


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    what: str
    path: str
    parameters: dict[str, str]
    runs: int = 15
    plain: bool = False


def queries(end_ms: int) -> list[Query]:
    end = end_ms // 1000

    def instant(name: str, what: str, query: str, runs: int = 15) -> Query:
        return Query(name, what, "/api/v1/query", {"query": query, "time": str(end)}, runs)

    def day(name: str, what: str, query: str, step: str, runs: int = 15) -> Query:
        span = {"start": str(end - 86_400), "end": str(end), "step": step}
        return Query(name, what, "/api/v1/query_range", {"query": query, **span}, runs)

    some = 'instance=~"node0[0-7]:9400"'
    raw = instant("q1", "one series, raw, 1 h", 'gpu_utilization{instance="node03:9400",gpu="2"}[1h]', 100)
    return [
        raw,
        replace(raw, what="the same, not compressed", plain=True),
        day("q2", "8 series, 24 h @ 60 s", 'gpu_power_watts{instance="node03:9400"}', "60s"),
        day("q3", "`avg by` node of 200 series, 24 h @ 5 min", "avg by (instance) (gpu_utilization)", "5m"),
        day(
            "q3b",
            "the same of `avg_over_time[5m]`",
            "avg by (instance) (avg_over_time(gpu_utilization[5m]))",
            "5m",
        ),
        instant("q4", "latest of all series", '{__name__=~"gpu_.+"}'),
        day(
            "q5",
            "`rate[5m]` of 64 counters, 24 h @ 60 s",
            f"rate(gpu_energy_joules_total{{{some}}}[5m])",
            "60s",
        ),
    ]


def shape(body: bytes) -> tuple[int, int]:
    """Return the number of series and of points in a response."""
    result: list[dict[str, Any]] = json.loads(body)["data"]["result"]
    return len(result), sum(len(one.get("values", (0,))) for one in result)


def percentiles(spent: Sequence[float]) -> tuple[float, float]:
    return 1000 * statistics.median(spent), 1000 * statistics.quantiles(spent, n=20, method="inclusive")[-1]


@dataclass(frozen=True, slots=True)
class Timing:
    """Milliseconds; `cpu` is the engine's CPU time per response."""

    best: float
    p50: float
    p95: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.best:.1f} / {self.p50:.1f} / {self.p95:.1f}, {self.cpu:.1f}"


def measure(servers: Sequence[Server], query: Query) -> dict[str, Timing]:
    spent: dict[str, list[float]] = {one.name: [] for one in servers}
    used = dict.fromkeys(spent, 0.0)
    for _ in range(query.runs):  # in turns: other load of the machine affects all alike
        for one in servers:
            before = cpu_seconds(one.pid)
            spent[one.name].append(one.request(query.path, query.parameters, plain=query.plain)[0])
            used[one.name] += cpu_seconds(one.pid) - before
    return {
        name: Timing(1000 * min(some), *percentiles(some), 1000 * used[name] / query.runs)
        for name, some in spent.items()
    }


def compare(servers: Sequence[Server], queries: Sequence[Query]) -> str:
    rows = []
    for query in queries:
        shapes = {
            one.name: shape(one.request(query.path, query.parameters, plain=query.plain)[1]) for one in servers
        }
        found = measure(servers, query)
        base = found.get(PROMETHEUS)
        ours = found[OURS]
        ratio = f"{ours.best / base.best:.2f} / {ours.p50 / base.p50:.2f}" if base else "-"
        rows.append([query.name, query.what, *map(str, found.values()), ratio])
        print(f"{query.name}: {ratio}; series, points {shapes}", file=sys.stderr, flush=True)
    head = [f"{one.name}: best / p50 / p95, CPU, ms" for one in servers]
    return table(["", "query", *head, "gpuscope / Prometheus, best / p50"], rows)


def peers() -> list[str]:
    """Return the other engines on this machine."""
    found = []
    for name, program in ((PROMETHEUS, "prometheus"), (VICTORIA, "victoria-metrics")):
        try:
            engine(program)
        except pytest.skip.Exception as why:
            print(f"skipped: {why}", file=sys.stderr)
            continue
        found.append(name)
    return found


def day(folder: Path, fleet: Fleet) -> None:
    before = time.monotonic()
    fill_store(folder / OURS, fleet)
    print(f"filled the embedded store in {time.monotonic() - before:.0f} s", file=sys.stderr, flush=True)
    with ExitStack() as stack:
        servers = [stack.enter_context(server(OURS, folder / OURS))]
        for name in peers():
            one = stack.enter_context(server(name, folder / name))
            spent = send(one.port, write_requests(fleet))
            if name == VICTORIA:  # new samples become visible only after some time
                one.request("/internal/force_flush", {})
            print(f"filled {name} in {spent:.0f} s", file=sys.stderr, flush=True)
            servers.append(one)
        print(compare(servers, queries(fleet.end_ms)), "\n", flush=True)
        memory = [f"{rss_bytes(one.pid) / MIB:.0f} MiB" for one in servers]
        disk = [f"{one.disk_bytes() / fleet.samples:.2f}" for one in servers]
        rows = [["RSS after the queries", *memory], ["disk, B/sample, with 2 h of log", *disk]]
        rows.append(["remote write, samples/s", *ingest(folder, [one.name for one in servers], fleet)])
        later = [_disk_later(one, fleet) for one in servers]
    later[0] = f"{settle(folder / OURS, fleet.end_ms) / fleet.samples:.2f}"
    rows.insert(2, ["disk, B/sample, a day later", *later])
    print(table(["", *(one.name for one in servers)], rows), "\n", flush=True)


def _disk_later(one: Server, fleet: Fleet) -> str:
    """Return the size after sealing, merging and compacting, as far as the engine supports it."""
    if one.name == VICTORIA:
        one.request("/internal/force_merge", {})
        return f"{one.disk_bytes() / fleet.samples:.2f}"
    blocks = [folder.parent for folder in one.data.glob("*/meta.json")]
    samples = sum(json.loads((b / "meta.json").read_text())["stats"]["numSamples"] for b in blocks)
    size = sum(path.stat().st_blocks * 512 for b in blocks for path in b.rglob("*") if path.is_file())
    return f"{size / samples:.2f} (its blocks)" if samples else "-"


def ingest(folder: Path, names: Sequence[str], fleet: Fleet) -> Iterator[str]:
    """Send requests with one sample per series to an empty engine."""
    bodies = list(tick_requests(fleet, INGEST_TICKS))
    for name in names:
        with server(name, folder / f"{name}-ingest") as one:
            spent = send(one.port, iter(bodies))
            yield f"{INGEST_TICKS * sum(len(node) for node in fleet.labels) / spent:,.0f}"


def month(folder: Path) -> None:
    end_ms = time.time_ns() // 1_000_000
    samples = fill_month(folder / "month", end_ms, 30)
    end = end_ms // 1000
    rows = []
    with server(OURS, folder / "month") as one:
        for what, query in (
            ("8 GPUs, 30 d @ 1 h", "gpu_utilization"),
            ("the same of `avg_over_time[1h]`", "avg_over_time(gpu_utilization[1h])"),
        ):
            parameters = {"query": query, "start": str(end - 30 * 86_400), "end": str(end), "step": "1h"}
            first, _ = one.request("/api/v1/query_range", parameters)
            found = measure([one], Query("", what, "/api/v1/query_range", parameters))
            rows.append([what, f"{1000 * first:.0f}", str(found[OURS])])
        size = f"{one.disk_bytes() / samples:.2f}"
    print(
        table([f"a month of one node ({size} B/sample)", "first, ms", "then best / p50 / p95, CPU, ms"], rows),
        "\n",
        flush=True,
    )


def cold_start(folder: Path) -> None:
    """Measure the time from the command to the first query response."""
    data = folder / "many"
    fill_many(data, time.time_ns() // 1_000_000)
    empty, full = (_start_seconds(folder / name) for name in ("nothing", "many"))
    print(
        table(
            ["start to first answer", "empty store", "60,000 series × 30 min in the log"],
            [["seconds", *(f"{statistics.median(some):.2f}" for some in (empty, full))]],
        ),
        flush=True,
    )


def _start_seconds(data: Path) -> list[float]:
    spent = []
    for _ in range(5):
        port = free_port()
        command = [sys.executable, "-m", "gpuscope", "server", f"--data={data}", f"--listen=127.0.0.1:{port}"]
        before = time.perf_counter()
        process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        try:
            _first_answer(port)
            spent.append(time.perf_counter() - before)
        finally:
            process.terminate()
            process.wait()
    return spent


def _first_answer(port: int) -> None:
    for _ in range(3000):
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/api/v1/query?query=count(metric_1)")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.01)
        finally:
            connection.close()
    raise RuntimeError("the server does not start")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=25)
    parser.add_argument("--hours", type=int, default=24)
    parser.add_argument("--only", choices=("day", "month", "start"))
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as name:
        folder = Path(name)
        if chosen.only in (None, "day"):
            ticks = chosen.hours * HOUR_MS // STEP_MS
            day(folder, make_fleet(chosen.nodes, ticks, time.time_ns() // 1_000_000))
        if chosen.only in (None, "month"):
            month(folder)
        if chosen.only in (None, "start"):
            cold_start(folder)


if __name__ == "__main__":
    main()
