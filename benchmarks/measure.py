"""Measures a running process from the outside: CPU, memory, and latency of scrapes.

CPU time comes from the kernel's per-process clock, in nanoseconds; /proc counts in ticks of 10 ms, which is too
coarse. Living children are included; the time of a child that has ended is not.
"""

from __future__ import annotations

import http.client
import os
import platform
import statistics
import time
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

MIB = 1 << 20


def machine() -> str:
    """Return one line that describes machine, Python version and date."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if line.startswith("model name")
        ),
        platform.machine(),
    )
    today = datetime.now(UTC).date().isoformat()
    return f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, {today}"


def family_of(pid: int) -> list[int]:
    """Return the process and its living descendants."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):  # the process ended meanwhile
                continue
    found = [pid]
    for member in found:  # grows during the iteration
        found += [child for child, parent in parents.items() if parent == member]
    return found


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of the process and its living descendants."""
    total = 0.0
    for member in family_of(pid):
        try:
            total += time.clock_gettime((~member << 3) | 2)  # Linux: the CPU clock of another process
        except OSError:
            continue
    return total


def cpu_percent(pid: int, seconds: float) -> float:
    """Return the percentage of one core over the next `seconds`."""
    began, before = time.monotonic(), cpu_seconds(pid)
    time.sleep(seconds)
    return 100 * (cpu_seconds(pid) - before) / (time.monotonic() - began)


def rss_bytes(pid: int) -> int:
    """Resident memory of the process and its living descendants, shared pages counted in each."""
    pages = 0
    for member in family_of(pid):
        try:
            pages += int(Path(f"/proc/{member}/statm").read_text().split()[1])
        except OSError:
            continue
    return pages * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class Scrapes:
    """Latencies of several scrapes, in seconds, and the last response."""

    latencies: Sequence[float]
    body: bytes
    elapsed: float

    @property
    def p50(self) -> float:
        return statistics.median(self.latencies)

    @property
    def p95(self) -> float:
        return statistics.quantiles(self.latencies, n=20, method="inclusive")[-1]


def scrape(
    port: int,
    count: int,
    *,
    path: str = "/metrics",
    every: float = 0.0,
    headers: Mapping[str, str] | None = None,
    timeout: float = 30.0,
) -> Scrapes:
    """Scrape `count` times over one connection, as Prometheus does."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    latencies, body = [], b""
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, began + number * every - time.perf_counter()))
        before = time.perf_counter()
        connection.request("GET", path, headers=dict(headers or {}))
        answer = connection.getresponse()
        body = answer.read()
        latencies.append(time.perf_counter() - before)
        if answer.status != 200:
            raise RuntimeError(f"status {answer.status}: {body[:200]!r}")
    connection.close()
    return Scrapes(latencies, body, time.perf_counter() - began)


def sample_count(exposition: bytes) -> int:
    return sum(bool(line) and not line.startswith(b"#") for line in exposition.split(b"\n"))


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table with aligned columns."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |" for row in (head, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def wait_for_demo_history(port: int, seconds: float = 600.0) -> None:
    """`up --demo` answers before its history is complete; filling it would be measured too."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            if b"\ngpuscope_demo_history_ratio 1\n" in answer.read():
                return
        time.sleep(0.5)
    raise RuntimeError(f"the simulated history on port {port} is not complete after {seconds:.0f} s")
