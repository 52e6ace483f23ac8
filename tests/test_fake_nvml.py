"""The fake driver library, checked by NVIDIA's own binding and by other people's clients."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fake_nvml.build import Unavailable, library
from tests.fake_nvml.driver import FakeDriver, Process


@pytest.fixture
def driver(tmp_path: Path) -> FakeDriver:
    try:
        library()
    except Unavailable as missing:
        pytest.skip(str(missing))
    fake = FakeDriver(tmp_path / "state")
    fake.gpus(8, model="H100")
    return fake


def run(driver: FakeDriver, *command: str) -> str:
    """Run a client's console script on the fake driver."""
    script = Path(sys.executable).with_name(command[0])
    if not script.exists():
        pytest.skip(f"{command[0]} is not installed")
    done = subprocess.run(
        [script, *command[1:]], env={**os.environ, **driver.env}, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_gpustat_reports_what_was_set(driver: FakeDriver) -> None:
    driver.set(3, util=87, power_mw=512_000, temperature=61, memory_used=20 << 30)
    driver.processes(3, [Process(os.getpid(), memory=19 << 30)])
    gpus = json.loads(run(driver, "gpustat", "--json"))["gpus"]
    assert len(gpus) == 8
    busy = gpus[3]
    assert busy["uuid"] == driver.cards[3].uuid
    assert (busy["utilization.gpu"], busy["power.draw"], busy["temperature.gpu"]) == (87, 512, 61)
    assert (busy["memory.used"], busy["memory.total"]) == (20480, 81559)
    assert [(process["pid"], process["gpu_memory_usage"]) for process in busy["processes"]] == [
        (os.getpid(), 19456)
    ]
    assert {gpu["utilization.gpu"] for gpu in gpus[:3]} == {0}
