"""The agent on the oldest driver: a library that has only the functions of driver 352, older than 384.

Everything a 2018 textfile exporter showed is there; what needs newer functions is absent, never 0.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_nvml.build import Unavailable, old_library
from tests.fake_nvml.driver import FakeDriver, Process

SYMBOLS = Path(__file__).parent.parent / "fake_nvml" / "symbols_352.txt"
PRESENT = (
    "gpu_info", "gpu_up", "gpu_utilization_ratio", "gpu_memory_used_bytes", "gpu_memory_total_bytes",
    "gpu_power_watts", "gpu_temperature_celsius", "gpu_clock_hertz", "gpu_energy_joules_total",
    "gpu_busy_seconds_total", "gpu_processes", "process_memory_bytes", "owner_held_seconds_total",
)  # fmt: skip
ABSENT_ON_OLD = (
    "gpu_memory_reserved_bytes", "gpu_nvlink_bytes_total", "gpu_power_instant_watts", "gpu_recovery_action",
    "process_sm_ratio", "owner_busy_seconds_total",
)  # fmt: skip


@pytest.fixture
def old_driver(tmp_path: Path) -> dict[str, str]:
    """The environment of a program on that driver, with two GPUs and one process."""
    try:
        library = old_library(SYMBOLS)
    except Unavailable as missing:
        pytest.skip(str(missing))
    driver = FakeDriver(tmp_path / "state", driver_version="384.183")
    driver.gpus(2, model="V100")
    driver.set(0, util=87, power_mw=211_000)
    driver.processes(0, [Process(os.getpid(), memory=3 << 30, name="train.py", share=1.0)])
    return {**os.environ, **driver.env, "LD_LIBRARY_PATH": str(library.parent)}


def run(environment: dict[str, str], *argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuscope", *argv]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_an_agent_reads_what_the_oldest_driver_has(old_driver: dict[str, str]) -> None:
    done = run(
        old_driver, "agent", "--once", "--source", "nvml", "--families", "native,sessions,dcgm,dcgm_legacy"
    )
    assert done.returncode == 0, done.stderr
    names = {line.split("{")[0].split(" ")[0] for line in done.stdout.splitlines()}
    assert {f"gpuscope_{name}" for name in PRESENT} <= names
    assert names.isdisjoint(f"gpuscope_{name}" for name in ABSENT_ON_OLD)
    assert 'driver_version="384.183"' in done.stdout
    assert f'pid="{os.getpid()}"' in done.stdout
    power = next(
        line for line in done.stdout.splitlines() if line.startswith('gpuscope_gpu_power_watts{gpu="0"')
    )
    assert power.endswith(" 211")
    # The older call has four digits of the PCI domain; the address must not depend on the driver's age.
    assert 'pci_bus_id="00000000:' in done.stdout
    assert 'gpu_session_count{gpu="0"} 1' in done.stdout
    assert 'gpu_session_count{gpu="1"} 0' in done.stdout
    assert 'DCGM_FI_DEV_GPU_UTIL{gpu="0"' in done.stdout
    assert 'dcgm_power_usage{gpu="0"' in done.stdout


@pytest.mark.slow
def test_the_doctor_says_that_nvml_answers(old_driver: dict[str, str]) -> None:
    assert "NVML answers" in run(old_driver, "doctor").stdout
