"""Measures ingestion: text and remote write on one core, and a fleet of 100 targets × 600 series.

Rates are per CPU second, the best of several runs, because other programs use the machine too. Remote write
over HTTP is compared with a real Prometheus if available: the same requests, one after the other. The fleet is
scraped by a real `gpuscope server` at its normal interval, without and with query clients. Takes a little over
a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import json
import multiprocessing
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

import cramjam
import pytest

from benchmarks.measure import MIB, cpu_percent, cpu_seconds, rss_bytes, table
from gpuscope.history.remote_write.codec import WriteDecoder, encode_labels, encode_samples
from gpuscope.history.remote_write.receiver import Receiver
from gpuscope.history.remote_write.sender import HEADERS
from gpuscope.history.scrape.config import ScrapeJob
from gpuscope.history.scrape.fetch import Fetched
from gpuscope.history.scrape.ingest import TargetIngester
from gpuscope.history.scrape.target import ScrapeTarget
from gpuscope.history.scrape.target_appender import TargetAppender
from gpuscope.history.store import Store
from gpuscope.model.exposition.parser import SeriesCache
from tests.engines import engine, running
from tests.ports import free_port

SERIES = 600
INTERVAL = 15.0
GPUS = 10
CLIENTS = 8
Labels = tuple[tuple[str, str], ...]


def series(node: int) -> list[Labels]:
    """Return a node's series with the agent's labels, without `instance` and `job`."""
    return [
        (
            ("__name__", f"gpuscope_gpu_metric_{number // GPUS}_ratio"),
            ("gpu", str(number % GPUS)),
            ("uuid", f"GPU-{node:08x}-0000-4000-8000-{number % GPUS:012x}"),
        )
        for number in range(SERIES)
    ]


def exposition(node: int, step: int) -> str:
    lines = []
    for number, labels in enumerate(series(node)):
        name, *rest = labels
        if number % GPUS == 0:
            lines.append(f"# HELP {name[1]} A number.\n# TYPE {name[1]} gauge")
        pairs = ",".join(f'{key}="{value}"' for key, value in rest)
        lines.append(f"{name[1]}{{{pairs}}} {(number * 7919 + step * 31) % 100_000 / 1000}")
    return "\n".join(lines) + "\n"


def requests(nodes: int, steps: int, begin_ms: int) -> list[bytes]:
    """As Prometheus sends them: one sample per series, 2,000 series per request."""
    target = [
        [encode_labels([*labels, ("instance", f"n{node}:9400"), ("job", "gpu")]) for labels in series(node)]
        for node in range(nodes)
    ]
    samples = [
        (
            labels,
            begin_ms + int(step * INTERVAL * 1000) + 37 * node,
            (number * 7919 + step * 31) % 100_000 / 1000,
        )
        for step in range(steps)
        for node in range(nodes)
        for number, labels in enumerate(target[node])
    ]
    batches = [samples[at : at + 2000] for at in range(0, len(samples), 2000)]
    return [bytes(cramjam.snappy.compress_raw(encode_samples(batch))) for batch in batches]


def best(runs: int, work: Callable[[], int]) -> float:
    """Return samples per CPU second; `work` returns the number of samples."""
    rates = []
    for _ in range(runs):
        began = time.process_time()
        count = work()
        rates.append(count / (time.process_time() - began))
    return max(rates)


def text_rates(folder: Path) -> Iterator[tuple[str, float]]:
    texts = [exposition(0, step) for step in range(50)]
    ids: dict[object, int] = {}
    cache = SeriesCache(lambda pairs: ids.setdefault(pairs, len(ids)))
    yield "text: parse", best(5, lambda: sum(cache.parse(text).samples for text in texts))
    bodies = [Fetched(text.encode(), False) for text in texts]
    with Store(folder / "text") as store:
        store.start()
        labels = (("instance", "n0:9400"), ("job", "gpu"))
        target = ScrapeTarget(ScrapeJob("gpu"), "http://n0:9400/metrics", labels, {}, INTERVAL, 10.0)
        ingester = TargetIngester(target, TargetAppender(store, target.name, dict(labels)))
        clock = iter(range(time.time_ns() // 1_000_000 - 3_600_000, 2**62, 1000))

        def take() -> int:
            futures = [ingester.ingest(body, next(clock), time.monotonic()).stored for body in bodies]
            return sum(future.result().accepted for future in futures)

        yield "text: parse, label, store", best(5, take)


def write_rates(folder: Path) -> Iterator[tuple[str, float]]:
    batches = requests(20, 24, time.time_ns() // 1_000_000 - 600_000)
    bodies = [bytes(cramjam.snappy.decompress_raw(batch)) for batch in batches[:12]]
    counter = iter(range(2**62))
    decoder = WriteDecoder(lambda labels: next(counter))
    yield "remote write: decode", best(5, lambda: sum(len(decoder.decode(body).series) for body in bodies))
    with Store(folder / "write") as store:
        store.start()
        receiver = Receiver(store)
        parts = [batches[at : at + len(batches) // 4] for at in range(0, len(batches), len(batches) // 4)]
        rounds = iter(parts)
        yield (
            "remote write: unpack, decode, store",
            best(4, lambda: sum(receiver.take(batch, "bench").accepted for batch in next(rounds))),
        )


@contextmanager
def our_server(folder: Path, *flags: str) -> Iterator[tuple[str, int]]:
    address = f"127.0.0.1:{free_port()}"
    command = [sys.executable, "-m", "gpuscope", "server", "--listen", address, "--data", str(folder), *flags]
    with running(command, f"http://{address}/-/ready") as process:
        yield f"http://{address}", process.pid


@contextmanager
def prometheus(folder: Path) -> Iterator[tuple[str, int]]:
    folder.mkdir()
    (folder / "prometheus.yml").write_text("global: {scrape_interval: 1h}\n")
    address = f"127.0.0.1:{free_port()}"
    command: list[str | Path] = [
        engine("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
        "--web.enable-remote-write-receiver",
        "--log.level=warn",
    ]
    with running(command, f"http://{address}/-/ready") as process:
        yield f"http://{address}", process.pid


def over_http(url: str, pid: int, batches: Sequence[bytes]) -> tuple[float, float]:
    """Return samples per second of wall-clock time and of the receiver's CPU time."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    cpu, began = cpu_seconds(pid), time.perf_counter()
    for batch in batches:
        connection.request("POST", "/api/v1/write", batch, dict(HEADERS))
        answer = connection.getresponse()
        message = answer.read()
        if answer.status // 100 != 2:
            raise RuntimeError(f"{url}: {answer.status} {message[:200]!r}")
    connection.close()
    samples = 2000 * len(batches)
    return samples / (time.perf_counter() - began), samples / (cpu_seconds(pid) - cpu)


def http_rows(folder: Path) -> Iterator[list[str]]:
    batches = requests(20, 40, time.time_ns() // 1_000_000 - 900_000)
    warm, measured = batches[:12], batches[12:]
    peers: list[tuple[str, Callable[[], object]]] = [("gpuscope", lambda: our_server(folder / "http"))]
    try:
        engine("prometheus")
        peers.append(("Prometheus", lambda: prometheus(folder / "prometheus")))
    except pytest.skip.Exception as missing:
        print(f"skipped: {missing}\n")
    for name, start in peers:
        with start() as (url, pid):  # type: ignore[attr-defined]
            over_http(url, pid, warm)
            wall, cpu = over_http(url, pid, measured)
        yield [name, f"{wall:,.0f}", f"{cpu:,.0f}"]


def serve_fleet(port: int, nodes: int) -> None:
    """A process that simulates every target, by IP address; values change with each scrape."""
    variants = [[exposition(node, step).encode() for step in range(4)] for node in range(nodes)]
    scrape_counts = [0] * nodes

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        node = int(writer.get_extra_info("sockname")[0].rpartition(".")[2]) % nodes
        try:
            while True:
                await reader.readuntil(b"\r\n\r\n")
                scrape_counts[node] += 1
                body = variants[node][scrape_counts[node] % 4]
                head = f"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        server = await asyncio.start_server(answer, "0.0.0.0", port)  # all of 127.0.0.0/8
        await server.serve_forever()

    asyncio.run(serve())


def ask_for_ever(url: str, stop: threading.Event) -> None:
    """A client with an open dashboard: repeats a range query of one metric of the whole fleet."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc)
    while not stop.is_set():
        now = time.time()
        query = f"query=avg+by(gpu)(gpuscope_gpu_metric_7_ratio)&start={now - 60}&end={now}&step=5"
        connection.request("GET", f"/api/v1/query_range?{query}")
        connection.getresponse().read()
    connection.close()


def late_seconds(url: str, seconds: float) -> float:
    """Return the largest deviation of a scrape from its schedule."""
    with urllib.request.urlopen(f"{url}/api/v1/query?query=up[{round(seconds + INTERVAL)}s]") as answer:
        rows = json.load(answer)["data"]["result"]
    gaps = [later[0] - sooner[0] for row in rows for sooner, later in pairwise(row["values"])]
    return max((abs(gap - INTERVAL) for gap in gaps), default=float("nan"))


def fleet_rows(folder: Path, nodes: int, seconds: float) -> Iterator[list[str]]:
    port = free_port()
    fleet = multiprocessing.get_context("spawn").Process(target=serve_fleet, args=(port, nodes), daemon=True)
    fleet.start()
    targets = folder / "targets.json"
    targets.write_text(json.dumps([{"targets": [f"127.0.0.{node + 1}:{port}" for node in range(nodes)]}]))
    try:
        flags = ("--targets", str(targets), "--scrape-interval", f"{INTERVAL:g}s")
        with our_server(folder / "fleet", *flags) as (url, pid):
            time.sleep(INTERVAL + 1)  # one scrape of every target: new series cost more than existing ones
            for clients in (0, CLIENTS):
                stop = threading.Event()
                asking = [threading.Thread(target=ask_for_ever, args=(url, stop)) for _ in range(clients)]
                for thread in asking:
                    thread.start()
                percent = cpu_percent(pid, seconds)
                stop.set()
                for thread in asking:
                    thread.join()
                yield [
                    f"{nodes} × {SERIES} @ {INTERVAL:g} s" + (f", {clients} clients" if clients else ""),
                    f"{_value(url, 'sum(up)'):g}",
                    f"{percent:.1f} %",
                    f"{rss_bytes(pid) / MIB:.0f}",
                    f"{late_seconds(url, seconds):.2f} s",
                ]
    finally:
        fleet.terminate()
        fleet.join()


def _value(url: str, expression: str) -> float:
    with urllib.request.urlopen(f"{url}/api/v1/query?query={expression}") as answer:
        return float(json.load(answer)["data"]["result"][0]["value"][1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=INTERVAL, help="duration of the fleet measurement")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ingest-") as name:
        folder = Path(name)
        rates = [*text_rates(folder), *write_rates(folder)]
        rows = [[what, f"{rate:,.0f}"] for what, rate in rates]
        print(table(["in one process", "samples per CPU second"], rows), flush=True)
        head = ["remote write over HTTP", "samples per second", "per CPU second"]
        print("\n" + table(head, list(http_rows(folder))), flush=True)
        head = ["fleet", "targets up", "of a core", "RSS MiB", "largest scrape delay"]
        print("\n" + table(head, list(fleet_rows(folder, args.targets, args.seconds))))


if __name__ == "__main__":
    main()
