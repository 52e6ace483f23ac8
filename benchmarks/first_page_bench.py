"""How soon `gpuscope up --demo` shows something: its page, every GPU in the live view, and the whole history.

`python -m benchmarks first_page` measures 32 GPUs; with `--nodes 125` 1,000, whose history takes minutes.
`--command` names another `gpuscope`, such as that of an environment with nothing but the wheel.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable

from benchmarks.measure import cpu_seconds, table
from tests.ports import free_port

GPUS_PER_NODE = 8
MAX_SECONDS = 1800.0


def seconds_until(started: float, is_true: Callable[[], bool], pause: float) -> float:
    while time.monotonic() - started < MAX_SECONDS:
        try:
            if is_true():
                return time.monotonic() - started
        except OSError:  # the port is not open yet
            pass
        time.sleep(pause)
    raise RuntimeError(f"it did not happen within {MAX_SECONDS:.0f} s")


def read(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
        return content


def measure(command: list[str], nodes: int, *, with_history: bool) -> list[str]:
    url = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory() as folder:
        arguments = ["up", "--demo", "--demo-nodes", str(nodes), "--data", folder]
        started = time.monotonic()
        process = subprocess.Popen(
            [*command, *arguments, "--listen", f"127.0.0.1:{port}"], stderr=subprocess.DEVNULL
        )
        try:
            page = seconds_until(started, lambda: b"<html" in read(url), 0.02)
            live = seconds_until(
                started, lambda: len(json.loads(read(f"{url}/api/live"))["gpus"]) >= GPUS_PER_NODE * nodes, 0.1
            )
            history, cpu = "", ""
            if with_history:
                done = b"\ngpuscope_demo_history_ratio 1\n"
                history = f"{seconds_until(started, lambda: done in read(f'{url}/metrics'), 0.5):.1f}"
                cpu = f"{cpu_seconds(process.pid):.0f}"
        finally:
            process.terminate()
            process.wait()
    load = f"{os.getloadavg()[0]:.0f}"
    return [f"{nodes * GPUS_PER_NODE:,}", f"{page:.1f}", f"{live:.1f}", history, cpu, load]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--command", default="")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--without-history", action="store_true")
    args = parser.parse_args()
    command = [args.command] if args.command else [sys.executable, "-m", "gpuscope"]
    rows = [measure(command, args.nodes, with_history=not args.without_history) for _ in range(args.runs)]
    headings = ["GPUs", "page, s", "all GPUs live, s", "history, s", "CPU until then, s", "load of the machine"]
    print(table(headings, rows), flush=True)


if __name__ == "__main__":
    main()
