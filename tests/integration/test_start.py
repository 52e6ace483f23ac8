"""The first values are available at once; one-shot commands wait for all values."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.integration.agent_process import GPUSCOPE, of_gpu, running_agent, to_series

__all__ = ["driver"]


def test_the_first_response_does_not_wait_for_slow_calls(driver: FakeDriver) -> None:
    driver.hang("nvmlDeviceGetPcieThroughput")
    with running_agent("--source", "nvml", env=driver.env) as agent:
        series = agent.until(lambda series: of_gpu(series, "gpuscope_gpu_power_watts", 7) is not None)
        assert of_gpu(series, "gpuscope_gpu_pcie_bytes_per_second") is None
        driver.heal()
        agent.until(lambda series: any(name.startswith("gpuscope_gpu_ecc_errors_total{") for name in series))


def test_once_returns_every_value_of_a_slow_driver(driver: FakeDriver) -> None:
    driver.gpus(4)
    driver.realistic_latency()
    # Two directions: longer than a reading waits for a GPU, shorter than the limit of a call.
    driver.latency("nvmlDeviceGetPcieThroughput", 600)
    done = subprocess.run(
        [*GPUSCOPE, "agent", "--once", "--source", "nvml"],
        env={**os.environ, **driver.env},
        capture_output=True,
        text=True,
        check=True,
    )
    names = {name.partition("{")[0] for name in to_series(done.stdout)}
    assert {"gpuscope_gpu_ecc_errors_total", "gpuscope_gpu_pcie_bytes_per_second"} <= names


def test_once_waits_for_a_driver_that_starts_slowly(driver: FakeDriver) -> None:
    driver.latency("nvmlInit", 1800)
    done = subprocess.run(
        [*GPUSCOPE, "snapshot", "--json", "--source", "nvml"],
        env={**os.environ, **driver.env},
        capture_output=True,
        text=True,
        check=True,
    )
    assert len(json.loads(done.stdout)["devices"]) == 8


def test_the_first_text_file_has_every_value(driver: FakeDriver, tmp_path: Path) -> None:
    target = tmp_path / "gpu.prom"
    command = [*GPUSCOPE, "textfile", "--source", "nvml", "--families", "native", "--output", str(target)]
    process = subprocess.Popen(command, env={**os.environ, **driver.env}, stderr=subprocess.DEVNULL)
    try:
        while not target.exists():
            assert process.poll() is None
        assert "gpuscope_gpu_ecc_errors_total{" in target.read_text()
    finally:
        process.terminate()
        process.wait()
