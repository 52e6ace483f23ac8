"""Plays the remote write of many agents into an engine for a minute: 5,000 nodes × 600 series every 15 s.

Each simulated agent sends its samples in one request per 15 s, at its own moment of the interval, over a common
pool of connections. Prints what the engine took, its CPU and memory, and then the cost of the page over it:
`gpuscope server --store` with one viewer of the live picture. `--engine` is victoria-metrics, prometheus, mimir
or gpuscope; `--agents 1000` for less memory (Prometheus needs 3 to 4 kB per series).
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import cramjam

from benchmarks.measure import MIB, cpu_seconds, family_of, machine, rss_bytes, scrape, table
from benchmarks.simulated_nodes import EVERY_SECONDS, make_texts
from gpuscope.history.remote_write.codec import encode_labels, encode_samples
from gpuscope.model.exposition.parser import parse_once
from tests.engines import engine, running, running_mimir
from tests.ports import free_port

CONNECTIONS = 64
MAX_ATTEMPTS = 3
MAX_LOOK_SECONDS = 300.0
TENANT = "X-Scope-OrgID"
MIMIR_LIMITS = {"max_global_series_per_user": 0, "ingestion_rate": 1e9, "ingestion_burst_size": 10**9}
"""Its defaults are for a small tenant: 150,000 series, 10,000 samples per second."""
_MARK = "@@@@@@"
"""As long as the number that replaces it, so that the lengths in the message stay right."""


@dataclass(frozen=True, slots=True)
class Target:
    """An engine that takes remote write and answers queries."""

    name: str
    pid: int
    write_url: str
    query_url: str


@contextmanager
def running_engine(name: str, folder: Path) -> Iterator[Target]:
    address = f"127.0.0.1:{free_port()}"
    base = f"http://{address}"
    empty = folder / "empty.yml"
    empty.write_text("global: {scrape_interval: 1h}\n")
    data = folder / "data"
    if name == "mimir":
        before = set(family_of(os.getpid()))
        with running_mimir(data=data, limits=MIMIR_LIMITS) as shared:
            (pid,) = set(family_of(os.getpid())) - before
            yield Target(name, pid, shared.write, shared.query)
        return
    commands: dict[str, list[str | Path]] = {
        "prometheus": [
            "--config.file=" + str(empty), f"--storage.tsdb.path={data}", f"--web.listen-address={address}",
            "--web.enable-remote-write-receiver", "--log.level=warn",
        ],
        "victoria-metrics": [
            f"-storageDataPath={data}", f"-httpListenAddr={address}", "-loggerLevel=WARN",
        ],
    }  # fmt: skip
    if name == "gpuscope":
        command: list[str | Path] = [
            sys.executable,
            "-m",
            "gpuscope",
            "server",
            "--data",
            data,
            "--listen",
            address,
        ]
        command += ["--max-series", "10000000"]
    else:
        command = [engine(name), *commands[name]]
    ready = "/health" if name == "victoria-metrics" else "/-/ready"
    with running(command, base + ready) as process:
        yield Target(name, process.pid, f"{base}/api/v1/write", base)


class AgentRequests:
    """The write requests of all agents, made from the samples of one."""

    def __init__(self, ticks: int) -> None:
        self._texts = [
            [(pairs, value) for pairs, _, value in parse_once(body.decode())]
            for body in make_texts(ticks).bodies(_MARK.encode())
        ]
        self._parts: dict[int, list[bytes]] = {}

    @property
    def samples(self) -> int:
        return len(self._texts[0])

    def body(self, agent: int, tick: int, at_ms: int) -> bytes:
        if tick not in self._parts:
            self._parts = {tick: self._make(tick, at_ms)}
        return bytes(cramjam.snappy.compress_raw((b"%06x" % agent).join(self._parts[tick])))

    def _make(self, tick: int, at_ms: int) -> list[bytes]:
        parts: list[bytes] = []
        for pairs, value in self._texts[tick % len(self._texts)]:
            labels = sorted((*pairs, ("instance", f"node-{_MARK}"), ("job", "gpu")))
            parts.append(encode_samples([(encode_labels(labels), at_ms, value)]))
        return b"".join(parts).split(_MARK.encode())


@dataclass(slots=True)
class Sent:
    seconds: list[float] = field(default_factory=list)
    refused: dict[int, int] = field(default_factory=dict)
    late: list[float] = field(default_factory=list)


class Sender:
    """One connection that sends requests; opened again when the engine has closed it."""

    def __init__(self, url: str) -> None:
        self._url = urlsplit(url)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def send(self, body: bytes) -> int:
        """Return the response's status."""
        head = (
            f"POST {self._url.path} HTTP/1.1\r\nHost: {self._url.netloc}\r\n"
            f"Content-Type: application/x-protobuf\r\nContent-Encoding: snappy\r\n"
            f"X-Prometheus-Remote-Write-Version: 0.1.0\r\n{TENANT}: bench\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        for _ in range(MAX_ATTEMPTS):
            if self._streams is None:
                self._streams = await asyncio.open_connection(self._url.hostname, self._url.port)
            reader, writer = self._streams
            try:
                writer.write(head.encode() + body)
                answer = (await reader.readuntil(b"\r\n\r\n")).lower().split(b"\r\n")
                for line in answer:
                    if line.startswith(b"content-length:"):
                        await reader.readexactly(int(line.partition(b":")[2]))
            except (asyncio.IncompleteReadError, ConnectionError):
                self.close()
                continue
            if b"connection: close" in answer:
                self.close()
            return int(answer[0].split(b" ", 2)[1])
        raise RuntimeError(f"{self._url.netloc} closes every connection")

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def play(target: Target, requests: AgentRequests, agents: int, seconds: float) -> Sent:
    """Send each agent's samples every 15 s, agent after agent."""
    sent = Sent()
    queue: asyncio.Queue[tuple[int, int, float] | None] = asyncio.Queue(4 * CONNECTIONS)
    began = time.monotonic()
    wall_ms = time.time_ns() // 1_000_000

    async def work() -> None:
        sender = Sender(target.write_url)
        while (job := await queue.get()) is not None:
            agent, tick, due = job
            body = requests.body(agent, tick, wall_ms + 1000 * EVERY_SECONDS * tick)
            before = time.monotonic()
            status = await sender.send(body)
            sent.seconds.append(time.monotonic() - before)
            sent.late.append(before - began - due)
            if status >= 300:
                sent.refused[status] = sent.refused.get(status, 0) + 1
        sender.close()

    async def feed() -> None:
        for tick in range(max(1, round(seconds / EVERY_SECONDS))):
            for agent in range(agents):
                due = EVERY_SECONDS * (tick + agent / agents)
                await asyncio.sleep(max(0.0, began + due - time.monotonic()))
                await queue.put((agent, tick, due))
        for _ in range(CONNECTIONS):
            await queue.put(None)

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(work())
        tasks.create_task(feed())
    return sent


def write_row(target: Target, agents: int, seconds: float) -> list[str]:
    requests = AgentRequests(max(1, round(seconds / EVERY_SECONDS)))
    began, before = time.monotonic(), cpu_seconds(target.pid)
    sent = asyncio.run(play(target, requests, agents, seconds))
    elapsed = time.monotonic() - began
    cpu = (cpu_seconds(target.pid) - before) / elapsed
    p99 = statistics.quantiles(sent.seconds, n=100, method="inclusive")[-1]
    late = statistics.quantiles(sent.late, n=100, method="inclusive")[-1]
    accepted = len(sent.seconds) - sum(sent.refused.values())
    return [
        f"{agents:,} agents into {target.name}",
        f"{agents * requests.samples:,}",
        f"{accepted * requests.samples / elapsed:,.0f}",
        f"{sum(sent.refused.values())}",
        f"{1000 * statistics.median(sent.seconds):.1f} / {1000 * p99:.0f}",
        f"{1000 * late:.0f}",
        f"{100 * cpu:.0f} %",
        f"{rss_bytes(target.pid) / MIB:,.0f} MiB",
    ]


def page_row(target: Target, looks: int) -> list[str]:
    """Measure the live picture of `gpuscope server --store` over the engine."""
    port = free_port()
    command: list[str | Path] = [
        sys.executable, "-m", "gpuscope", "server", "--store", target.query_url, "--store-tenant", "bench",
        "--listen", f"127.0.0.1:{port}",
    ]  # fmt: skip
    with running(command, f"http://127.0.0.1:{port}/-/ready") as process:
        began = time.monotonic()
        gzipped = {"accept-encoding": "gzip"}
        first = scrape(port, 1, path="/api/live", headers=gzipped, timeout=MAX_LOOK_SECONDS)
        before = cpu_seconds(process.pid)
        then = scrape(port, looks, path="/api/live", every=1.0, headers=gzipped, timeout=MAX_LOOK_SECONDS)
        cpu = (cpu_seconds(process.pid) - before) / then.elapsed
        return [
            f"page over {target.name}",
            f"{time.monotonic() - began - then.elapsed:.1f} s",
            f"{1000 * then.p50:.0f} / {1000 * then.p95:.0f}",
            f"{len(first.body) / 1e6:.2f}",
            f"{100 * cpu:.0f} %",
            f"{rss_bytes(process.pid) / MIB:,.0f} MiB",
        ]


def run(name: str, agents: int, seconds: float, looks: int) -> Iterator[str]:
    with (
        tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as folder,
        running_engine(name, Path(folder)) as target,
    ):
        head = ["remote write", "series", "samples/s", "refused", "request p50 / p99, ms", "late p99, ms"]
        yield table([*head, "CPU of one core", "RSS"], [write_row(target, agents, seconds)])
        if looks:
            head = ["live picture", "first", "then p50 / p95, ms", "MB", "CPU of one core", "RSS"]
            yield "\n" + table(head, [page_row(target, looks)])


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", default="victoria-metrics")
    parser.add_argument("--agents", type=int, default=5_000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--looks", type=int, default=15, help="requests of the live picture; 0: no page")
    given = parser.parse_args(arguments)
    print(machine(), flush=True)
    for text in run(given.engine, given.agents, given.seconds, given.looks):
        print(text, flush=True)


if __name__ == "__main__":
    main()
