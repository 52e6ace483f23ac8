"""Simulated nodes of eight GPUs with 600 series each, served by one process under a path per node.

All nodes repeat the text of one demo node with their own UUIDs and names, at 15 s per scrape; the process
records when each path is scraped. So a fleet of 1,000 nodes costs its host little: a few replacements in a text
per scrape. Values repeat after `TICKS` scrapes.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import re
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import TypeVar

from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.demo import build_demo
from gpuscope.model.exposition.text import encode_text
from tests.fakes import make_settings

T = TypeVar("T")
AnswerConnection = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

GPUS = 8
EVERY_SECONDS = 15
TICKS = 160
"""Forty minutes at 15 s."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %d\r\n\r\n"
_LEFT_OUT = re.compile(
    r"gpuscope_(gpu_nvlink_(errors|link|up)|gpu_p2p|gpu_violation|gpu_ecc_location|gpu_row_remap_banks"
    r"|gpu_temperature_threshold|gpu_clock_max|gpu_profiled|gpu_power_limit|owner_|process_(encoder|decoder)"
    r"|gpu_power_(average|instant)|gpu_(ofa|jpeg|encoder|decoder)|gpu_fp|gpu_integer|gpu_bar1|gpu_fabric"
    r"|slurm_|job_|gpu_unallocated|gpu_compute_mode|gpu_mig_pending|gpu_memory_reserved|process_memory_ratio)"
)
"""Of the native family's series; the rest is about as much as dcgm-exporter gives for eight GPUs."""
_UUID = re.compile(rb"GPU-([0-9a-f]{8})(?=-[0-9a-f]{4}-)")
_NODE = b"gpu-a01"


@dataclass(frozen=True, slots=True)
class NodeTexts:
    """The text of one node at each tick, cut where a node's number is put in."""

    parts: list[list[bytes]]

    def body(self, node: int, tick: int) -> bytes:
        return (b"%06x" % node).join(self.parts[tick % len(self.parts)])

    def bodies(self, node: bytes) -> list[bytes]:
        """Return the text at each tick, with a given name for the node's number."""
        return [node.join(parts) for parts in self.parts]


def make_texts(ticks: int = TICKS) -> NodeTexts:
    demo = build_demo(make_settings(source="demo", demo_nodes=1, demo_gpus=GPUS))
    node = demo.nodes[0]
    composer = node.build_composer()
    builder = load_family("native").build(Settings())
    now = int(time.time())
    parts = []
    for tick in range(ticks):
        at = now + tick * EVERY_SECONDS
        snapshot = node.compose_past(composer, at, at - EVERY_SECONDS)
        families = [one for one in builder.to_families(snapshot) if not _LEFT_OUT.match(one.name)]
        text = encode_text(families).replace(_NODE, b"node-\0")
        # A UUID's first two digits stay: they tell the GPUs of a node apart.
        parts.append(_UUID.sub(lambda found: b"GPU-" + found.group(1)[:2] + b"\0", text).split(b"\0"))
    return NodeTexts(parts)


def serve_nodes(pipe: Connection, ticks: int) -> None:
    """Serve `/NUMBER` for all nodes on one port; send the list of (path, time) on request."""
    texts = make_texts(ticks)
    scrapes: list[tuple[bytes, float]] = []
    counts: dict[bytes, int] = {}

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while request := await reader.readuntil(b"\r\n\r\n"):
                path = request.split(b" ", 2)[1]
                scrapes.append((path, time.monotonic()))
                counts[path] = counts.get(path, -1) + 1
                body = texts.body(int(path.rpartition(b"/")[2]), counts[path])
                writer.write(HEAD % len(body) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    asyncio.run(serve_until_closed(answer, pipe, scrapes))


async def serve_until_closed(answer: AnswerConnection, pipe: Connection, scrapes: list[T]) -> None:
    """Sends the port, then, at each true message, the scrapes since the last one; ends at a false message."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=4096)
    pipe.send(server.sockets[0].getsockname()[1])
    loop = asyncio.get_running_loop()
    while await loop.run_in_executor(None, pipe.recv):
        pipe.send(list(scrapes))
        scrapes.clear()


def simulated_nodes(ticks: int = TICKS) -> AbstractContextManager[tuple[int, Connection]]:
    return exporter_process(serve_nodes, ticks)


@contextmanager
def exporter_process(serve: Callable[..., None], *arguments: object) -> Iterator[tuple[int, Connection]]:
    """Yield the port, and the pipe that returns the scrapes since the last request."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there, *arguments), daemon=True)
    process.start()
    try:
        yield here.recv(), here
    finally:
        here.send(False)
        process.join()


def scrape_config(port: int, nodes: int, prefix: str, extra: str = "") -> str:
    """Return a configuration for Prometheus or gpuscope. The prefix of the paths tells whose scrapes are whose:
    one port and a path per node, because 1,000 ports would test the kernel."""
    groups = "\n".join(
        f'      - {{targets: ["127.0.0.1:{port}"],'
        f' labels: {{__metrics_path__: "/{prefix}/{node}", instance: "node{node:04d}"}}}}'
        for node in range(nodes)
    )
    return f"""\
global: {{scrape_interval: {EVERY_SECONDS}s, scrape_timeout: 10s, evaluation_interval: 15s}}
{extra}
scrape_configs:
  - job_name: gpu
    static_configs:
{groups}
"""
