"""Measures the cost of the page's live view: 20 viewers of 32 GPUs, and one response for 1,000 GPUs.

python -m benchmarks.live_bench [--viewers 20] [--seconds 20]

The viewers query `gpuscope up --demo` each second over separate connections, as browsers do. Their cost is the
server's CPU time with them minus the lower of its CPU times before and after. The large response is created in
this process from a simulated fleet whose values change between responses. Budget: 5 % of a core.
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from benchmarks.measure import Scrapes, cpu_percent, cpu_seconds, scrape, table, wait_for_demo_history
from gpuscope.cli.wiring.demo import build_demo
from gpuscope.serve.live.collector_samples import CollectorSamples
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.live_fleet import LiveFleet
from tests.fakes import make_settings

BUDGET_PERCENT = 5.0
MAX_START_SECONDS = 120.0
BROWSER = {"accept-encoding": "gzip, deflate, br"}
SETTLING_SECONDS = 8.0
MOMENTS = 3
ANSWERS = 15


@contextmanager
def running_up(port: int) -> Iterator[int]:
    """Start `gpuscope up --demo` with four nodes of eight GPUs; yield its PID when it responds."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "gpuscope", "up", "--demo", "--demo-nodes", "4", "--data", folder]
        process = subprocess.Popen([*command, "--listen", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL)
        try:
            _wait_until_it_answers(process, port)
            wait_for_demo_history(port)
            yield process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


def _wait_until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + MAX_START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        try:
            scrape(port, 1, path="/api/live")
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise RuntimeError(f"`gpuscope up --demo` on port {port} does not answer")


def watched(port: int, pid: int, viewers: int, seconds: int) -> tuple[float, list[Scrapes]]:
    """Return the percentage of a core with `viewers`, and the responses."""

    def look(number: int) -> Scrapes:
        time.sleep(number / viewers)  # viewers do not start at the same moment
        return scrape(port, seconds, path="/api/live", every=1.0, headers=BROWSER)

    began, before = time.monotonic(), cpu_seconds(pid)
    with ThreadPoolExecutor(viewers) as pool:
        responses = list(pool.map(look, range(viewers)))
    return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began), responses


def viewers_rows(port: int, viewers: int, seconds: int) -> tuple[list[Sequence[str]], float]:
    with running_up(port) as pid:
        time.sleep(SETTLING_SECONDS)
        before = cpu_percent(pid, seconds / 2)
        during, responses = watched(port, pid, viewers, seconds)
        after = cpu_percent(pid, seconds / 2)
    latencies = [latency for one in responses for latency in one.latencies]
    percent = during - min(before, after)
    rows: list[Sequence[str]] = [
        ("without viewers before and after, % of a core", f"{before:.1f} and {after:.1f}"),
        (f"with {viewers} viewers, % of a core", f"{during:.1f}"),
        ("the viewers, % of a core", f"{percent:.1f}"),
        ("response p50, ms", f"{1e3 * statistics.median(latencies):.1f}"),
        ("response p95, ms", f"{1e3 * statistics.quantiles(latencies, n=20, method='inclusive')[-1]:.1f}"),
        ("response, compressed, kB", f"{len(responses[0].body) / 1e3:.1f}"),
    ]
    return rows, percent


def answer_row(nodes: int) -> Sequence[str]:
    """Measure the CPU time of one new response: samples, states, findings, JSON and gzip."""
    demo = build_demo(make_settings(source="demo", demo_nodes=nodes, demo_gpus=8))
    now = int(time.time())
    past = []
    for node in demo.nodes:
        composer = node.build_composer()
        past.append([node.compose_past(composer, at, at - 1) for at in range(now - MOMENTS, now)])
    own, judge = CollectorSamples(demo.collectors), FleetJudge()  # a server has one judge

    async def answers() -> tuple[list[float], int, int]:
        times = []
        for number in range(1 + ANSWERS):
            for collector, snapshots in zip(demo.collectors, past, strict=True):
                collector.snapshot = snapshots[number % MOMENTS]
            live = LiveFleet(own.read, "benchmark", judge=judge)
            before = time.process_time()
            gzipped = await live.body(gzipped=True)
            times.append(1e3 * (time.process_time() - before))
        return (
            times[1:],
            len(await live.body(gzipped=False)),
            len(gzipped),
        )  # the first one also caches the labels

    times, plain, gzipped = asyncio.run(answers())
    milliseconds = f"{min(times):.1f}", f"{statistics.median(times):.1f}"
    return (f"{8 * nodes:,}", *milliseconds, f"{plain / 1e3:.0f}", f"{gzipped / 1e3:.1f}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measures the cost of the live view.")
    parser.add_argument("--viewers", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=20)
    parser.add_argument("--port", type=int, default=19479)
    options = parser.parse_args()
    rows, percent = viewers_rows(options.port, options.viewers, options.seconds)
    print(table(("live view each second, 32 GPUs", "measured"), rows), flush=True)
    head = ("GPUs", "CPU per response, best, ms", "median, ms", "JSON, kB", "compressed, kB")
    print("\n" + table(head, [answer_row(4), answer_row(125)]))
    if percent > BUDGET_PERCENT:
        print(f"\nover the budget of {BUDGET_PERCENT:.0f} % of a core", file=sys.stderr)
    return int(percent > BUDGET_PERCENT)


if __name__ == "__main__":
    sys.exit(main())
