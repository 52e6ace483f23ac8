"""Measures what 20 viewers of 8,000 GPUs cost a server: its CPU, and the bytes that each viewer gets.

`gpuscope server` scrapes 1,000 simulated nodes of eight GPUs every 15 s; then 20 clients read the event stream
of the live picture, each over its own connection. Their cost is the server's CPU time with them minus the mean
of its CPU times before and after. The first picture, for which the history is queried and which every viewer
gets whole, is not part of the rate.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.live_viewer import LiveViewer
from benchmarks.measure import MIB, cpu_percent, machine, rss_bytes, table
from benchmarks.simulated_nodes import EVERY_SECONDS, GPUS, scrape_config, simulated_nodes
from tests.engines import running
from tests.ports import free_port

CPU_BUDGET_PERCENT = 15.0
TRAFFIC_BUDGET_KB = 50.0
SETTLING_SECONDS = 3.0 * EVERY_SECONDS
"""Every node has been scraped twice, and the first scrapes, which make the series, are over."""
MAX_WAIT_SECONDS = 300.0
STEADY_EVENTS = 4
"""The first picture costs so much that the next comes late; after some updates the pace is the usual one."""
TICKS = 40


@dataclass(frozen=True)
class WatchedServer:
    """A server under measurement."""

    port: int
    pid: int


@contextmanager
def running_server(nodes: int) -> Iterator[WatchedServer]:
    """Start a server that scrapes the nodes; yield it when it has settled."""
    with (
        tempfile.TemporaryDirectory(prefix="gpuscope-bench-") as folder,
        simulated_nodes(TICKS) as (nodes_port, _),
    ):
        config, port = Path(folder) / "prometheus.yml", free_port()
        config.write_text(scrape_config(nodes_port, nodes, "viewers"))
        address = f"127.0.0.1:{port}"
        command: list[str | Path] = [
            sys.executable, "-m", "gpuscope", "server", "--config", config, "--data", f"{folder}/data",
            "--listen", address,
        ]  # fmt: skip
        with running(command, f"http://{address}/-/ready") as process:
            time.sleep(SETTLING_SECONDS)
            yield WatchedServer(port, process.pid)


@dataclass(frozen=True)
class Watching:
    """What was measured while the viewers watched."""

    cpu_percent: float
    first_picture_seconds: float
    first_picture_bytes: float
    bytes_per_second: float
    seconds_between_events: Sequence[float]


def watch(server: WatchedServer, viewers: int, seconds: float) -> Watching:
    stop = threading.Event()
    threads = [LiveViewer(server.port, stop) for _ in range(viewers)]
    for one in threads:
        one.start()
    try:
        waited = _wait_for_events(threads, 1)
        _wait_for_events(threads, STEADY_EVENTS)
        first = [(one.bytes_received, len(one.seconds)) for one in threads]
        began = time.monotonic()
        percent = cpu_percent(server.pid, seconds)
        elapsed = time.monotonic() - began
        received = [one.bytes_received - was for one, (was, _) in zip(threads, first, strict=True)]
        between = [each for one, (_, was) in zip(threads, first, strict=True) for each in one.seconds[was:]]
    finally:
        stop.set()
        for one in threads:
            one.join()
    mean_size = statistics.mean(size for size, _ in first)
    return Watching(percent, waited, mean_size, max(received) / elapsed, between)


def _wait_for_events(threads: Sequence[LiveViewer], count: int) -> float:
    """Seconds until every viewer has so many events."""
    began = time.monotonic()
    while not all(len(one.seconds) >= count for one in threads):
        if time.monotonic() - began > MAX_WAIT_SECONDS:
            raise RuntimeError(f"a viewer has fewer than {count} events after {MAX_WAIT_SECONDS:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - began


def measure(nodes: int, viewers: int, seconds: float) -> tuple[str, bool]:
    """Return the table, and whether the budgets were kept."""
    with running_server(nodes) as server:
        before = cpu_percent(server.pid, seconds / 2)
        watching = watch(server, viewers, seconds)
        memory = rss_bytes(server.pid)
        time.sleep(EVERY_SECONDS)
        after = cpu_percent(server.pid, seconds / 2)
    cost = watching.cpu_percent - (before + after) / 2
    traffic = watching.bytes_per_second / 1000
    p95 = statistics.quantiles(watching.seconds_between_events, n=20, method="inclusive")[-1]
    rows = [
        ("without viewers before and after, % of a core", f"{before:.1f} and {after:.1f}", ""),
        (f"with {viewers} viewers, % of a core", f"{watching.cpu_percent:.1f}", ""),
        ("the viewers, % of a core", f"{cost:.1f}", f"≤ {CPU_BUDGET_PERCENT:.0f}"),
        ("the viewer that got most, kB/s", f"{traffic:.1f}", f"≤ {TRAFFIC_BUDGET_KB:.0f}"),
        (
            "between two updates, median and p95, s",
            f"{statistics.median(watching.seconds_between_events):.2f} and {p95:.2f}",
            "",
        ),
        (
            "first picture, s; all before the measurement, kB",
            f"{watching.first_picture_seconds:.1f} and {watching.first_picture_bytes / 1000:.0f}",
            "",
        ),
        ("resident memory of the server, MiB", f"{memory / MIB:.0f}", ""),
    ]
    head = (f"{nodes:,} nodes, {nodes * GPUS:,} GPUs", "measured", "budget")
    return table(head, rows), cost <= CPU_BUDGET_PERCENT and traffic <= TRAFFIC_BUDGET_KB


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1_000)
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="with the viewers; half of it before and after"
    )
    given = parser.parse_args()
    print(machine(), flush=True)
    text, is_kept = measure(given.nodes, given.viewers, given.seconds)
    print(text, flush=True)
    if not is_kept:
        print("\nover a budget", file=sys.stderr)
    return int(not is_kept)


if __name__ == "__main__":
    sys.exit(main())
