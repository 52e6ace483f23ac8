"""The cost of `gpuscope top` and the time of `gpuscope snapshot`, in a real pseudo-terminal.

`top` runs on the fake driver with 8 GPUs and 64 processes at 1 s, and on a server with 1,000 GPUs at 2 s. It is
measured after a warm-up: share of a core, peak memory, bytes written per second, time and CPU time to the first
screen, and how long a key takes to be answered.

    python -m benchmarks.terminal_bench [--seconds 20]
"""

from __future__ import annotations

import argparse
import fcntl
import os
import pty
import select
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from benchmarks.measure import MIB, cpu_seconds
from tests.fake_nvml.driver import FakeDriver, Process
from tests.terminal.fake_server import Answer, fake_server
from tests.terminal.scene import fleet

WARM_UP_SECONDS = 5.0
GPUS, PROCESSES = 8, 64
FLEET_NODES = 125
ROWS, COLUMNS = 40, 120


class Terminal:
    """A program in a pseudo-terminal."""

    def __init__(self, argv: Sequence[str], env: Mapping[str, str]) -> None:
        self.started_at = time.monotonic()
        self.pid, self.handle = pty.fork()
        if self.pid == 0:
            os.execvpe(argv[0], list(argv), {**os.environ, **env, "TERM": "xterm-256color"})
        fcntl.ioctl(self.handle, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    def read(self, seconds: float, until: bytes = b"") -> bytes:
        """What it writes for so long, or until the text appears."""
        text, deadline = b"", time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0 and not (until and until in text):
            if select.select([self.handle], [], [], left)[0]:
                try:
                    text += os.read(self.handle, 1 << 16)
                except OSError:  # the program has ended
                    break
        return text

    def answer_seconds(self, key: bytes, until: bytes) -> float:
        began = time.monotonic()
        os.write(self.handle, key)
        self.read(5.0, until)
        return time.monotonic() - began

    def close(self) -> None:
        os.write(self.handle, b"q")
        self.read(3.0)
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        os.close(self.handle)


def measure_top(
    name: str,
    options: Sequence[str],
    env: Mapping[str, str],
    seconds: float,
    first_text: bytes = b"Quit",
    numbers_text: bytes = b"H100",
) -> None:
    terminal = Terminal([sys.executable, "-m", *options], env)
    try:
        shown = terminal.read(20.0, first_text)
        first_frame, first_cpu = time.monotonic() - terminal.started_at, cpu_seconds(terminal.pid)
        if numbers_text not in shown:
            terminal.read(20.0, numbers_text)
        first_numbers = time.monotonic() - terminal.started_at
        terminal.read(WARM_UP_SECONDS)
        before, began = cpu_seconds(terminal.pid), time.monotonic()
        written = len(terminal.read(seconds))
        elapsed = time.monotonic() - began
        share = (cpu_seconds(terminal.pid) - before) / elapsed
        keys = [terminal.answer_seconds(key, b"\x1b[") for key in (b"\x1b[B", b"s", b"\x1b[6~", b"I") * 3]
        status = Path(f"/proc/{terminal.pid}/status").read_text()
        peak = int(status.partition("VmHWM:")[2].split()[0]) * 1024
    finally:
        terminal.close()
    cells = (
        name,
        f"{share * 100:.1f} %",
        f"{peak / MIB:.0f} MiB",
        f"{written / elapsed:.0f} B/s",
        f"{first_frame:.2f} s ({first_cpu:.2f} s CPU)",
        f"{first_numbers:.2f} s",
        f"{statistics.median(keys) * 1000:.0f} ms",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


@contextmanager
def sleepers(count: int) -> Iterator[list[int]]:
    running = [subprocess.Popen(["sleep", "600"]) for _ in range(count)]
    try:
        yield [process.pid for process in running]
    finally:
        for process in running:
            process.kill()
            process.wait()


def measure_snapshot(name: str, options: Sequence[str], env: Mapping[str, str], runs: int = 5) -> None:
    times, cpu = [], []
    for _ in range(runs):
        began, used = time.monotonic(), os.times()
        subprocess.run(
            [sys.executable, "-m", "gpuscope", "snapshot", *options],
            env={**os.environ, **env},
            check=True,
            stdout=subprocess.DEVNULL,
        )
        times.append(time.monotonic() - began)
        now = os.times()
        cpu.append(now.children_user + now.children_system - used.children_user - used.children_system)
    print(f"| {name} | {min(times):.2f} s | {statistics.median(times):.2f} s | {min(cpu):.2f} s |", flush=True)


@contextmanager
def agent(env: Mapping[str, str]) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "gpuscope", "agent"], env={**os.environ, **env}, stderr=subprocess.DEVNULL
    )
    try:
        time.sleep(4.0)
        yield
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=20.0)
    seconds = parser.parse_args().seconds
    with tempfile.TemporaryDirectory() as folder, sleepers(PROCESSES) as pids:
        driver = FakeDriver(Path(folder) / "state")
        driver.gpus(GPUS)
        for gpu in range(GPUS):
            driver.set(gpu, util=60 + gpu, memory_used=40 << 30, power_mw=400_000)
            mine = pids[gpu::GPUS]
            driver.processes(gpu, [Process(pid, memory=1 << 30, share=0.1) for pid in mine])
        print("| top | CPU | peak memory | written | first frame | first numbers | key (median) |")
        print("|---|---|---|---|---|---|---|", flush=True)
        measure_top(
            f"{GPUS} GPUs, {PROCESSES} processes, 1 s", ["gpuscope", "top", "--direct"], driver.env, seconds
        )
        measure_top(
            "nvitop, the same at 1 s", ["nvitop", "--interval", "1"], driver.env, seconds, b"NVITOP", b"GPU"
        )
        with fake_server({"/api/live": Answer(fleet(FLEET_NODES))}) as server:
            measure_top(
                f"server, {FLEET_NODES * 8} GPUs, 2 s", ["gpuscope", "top", "--server", server.url], {}, seconds
            )
        print("\n| snapshot | best | median | best CPU |\n|---|---|---|---|", flush=True)
        measure_snapshot("driver", ["--direct"], driver.env)
        with agent(driver.env):
            measure_snapshot("agent on this machine", [], driver.env)


if __name__ == "__main__":
    main()
