"""The exporters to measure, all with the same fake driver library: the agent and its alternatives.

An exporter that is not installed and cannot be built is reported with the reason.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import scrape
from tests.fake_nvml.driver import FakeDriver, Process
from tests.ports import free_port

GPUS = 8
PROCESSES_EACH = 4
GO_MODULE = "github.com/utkuozdemir/nvidia_gpu_exporter/cmd/nvidia_gpu_exporter@latest"


class NotAvailableError(Exception):
    """The exporter cannot be measured on this machine; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Exporter:
    name: str
    command: Callable[[int], Sequence[str | Path]]  # by port
    shows_gpus: bytes  # is contained in a response with GPU values
    interval: str


def gpuscope(*flags: str, name: str = "gpuscope agent") -> Exporter:
    program = [sys.executable, "-m", "gpuscope", "agent"]
    return Exporter(
        name,
        lambda port: [*program, "--listen", f"127.0.0.1:{port}", "--log-level", "error", *flags],
        b"\ngpuscope_gpu_power_watts{",
        "1 s",
    )


def nvitop_exporter() -> Exporter:
    program = Path(sys.executable).with_name("nvitop-exporter")
    if not program.exists():
        raise NotAvailableError("nvitop-exporter is not installed")
    return Exporter(
        "nvitop-exporter",
        lambda port: [program, "--bind-address", "127.0.0.1", "--port", str(port), "--interval", "1"],
        b"\ngpu_utilization_Percentage{",
        "1 s",
    )


def nvidia_gpu_exporter(folder: Path) -> Exporter:
    """Build it from the Go module proxy; it reads the same library through its NVML backend."""
    go = shutil.which("go")
    if go is None:
        raise NotAvailableError("nvidia_gpu_exporter: Go is not installed")
    environment = {**os.environ, "GOBIN": str(folder), "GOPATH": str(folder / "go"), "GOFLAGS": "-modcacherw"}
    command = [go, "install", "-tags", "nvml", GO_MODULE]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=600, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotAvailableError("nvidia_gpu_exporter: not built within ten minutes") from None
    if done.returncode:
        message = re.sub(r"\S*://\S*", "", done.stderr).split()  # removes addresses of registries
        raise NotAvailableError(f"nvidia_gpu_exporter: go install failed: … {' '.join(message[-9:])}")
    program = folder / "nvidia_gpu_exporter"
    return Exporter(
        "nvidia_gpu_exporter",
        lambda port: [program, f"--web.listen-address=127.0.0.1:{port}", "--collect.backend=nvml"],
        b"\nnvidia_smi_power_draw_watts{",
        "each scrape",
    )


@contextmanager
def busy_machine(folder: Path, processes_each: int = PROCESSES_EACH) -> Iterator[FakeDriver]:
    """Eight busy H100 with real processes on each: some exporters ignore processes that do not run."""
    driver = FakeDriver(folder / "state")
    with ExitStack() as stack:
        with driver.at_once():
            driver.gpus(GPUS, "H100")
            for gpu in range(GPUS):
                workers = [stack.enter_context(_sleeper()) for _ in range(processes_each)]
                driver.busy(gpu, 90 - gpu, ago=60)
                driver.set(gpu, temperature=60 + gpu, memory_used=44 << 30)
                memory = (44 << 30) // processes_each
                driver.processes(
                    gpu, [Process(each.pid, memory=memory, share=1 / processes_each) for each in workers]
                )
        yield driver


@contextmanager
def _sleeper() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(["sleep", "3600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@dataclass(frozen=True, slots=True)
class Started:
    process: subprocess.Popen[bytes]
    port: int
    seconds_to_first_scrape: float


@contextmanager
def started(exporter: Exporter, environment: Mapping[str, str]) -> Iterator[Started]:
    """Start an exporter and wait until a scrape shows GPUs; the time is that of a cold start."""
    port = free_port()
    command = [str(word) for word in exporter.command(port)]
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        while exporter.shows_gpus not in _try_scrape(port):
            if process.poll() is not None:
                raise NotAvailableError(f"{exporter.name} ended with status {process.returncode}")
            if time.perf_counter() - began > 60:
                raise NotAvailableError(f"{exporter.name} showed no GPU within a minute")
            time.sleep(0.005)
        yield Started(process, port, time.perf_counter() - began)
    finally:
        process.terminate()
        process.wait()


def _try_scrape(port: int) -> bytes:
    try:
        return scrape(port, 1).body
    except (OSError, RuntimeError):
        return b""
