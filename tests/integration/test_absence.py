"""A 0 is exported and an absent value is not, from each source."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.fake_smi import CAPTURES, FakeSmi
from tests.integration.agent_process import GPUSCOPE, Series, of_gpu, to_series
from tests.integration.test_auto import FAKE_DCGMI

__all__ = ["driver"]

UTILIZATION = "gpuscope_gpu_utilization_ratio"
POWER = "gpuscope_gpu_power_watts"
FAN = "gpuscope_gpu_fan_speed_ratio"


def once(*flags: str, env: Mapping[str, str] | None = None) -> tuple[Series, str]:
    done = subprocess.run(
        [*GPUSCOPE, "agent", "--once", *flags],
        capture_output=True,
        env={**os.environ, **(env or {})},
        check=True,
    )
    text = done.stdout.decode()
    return to_series(text), text


def has(text: str, metric: str) -> bool:
    return f"\n{metric}{{" in text or f"\n# TYPE {metric} " in text


def test_nvml(driver: FakeDriver) -> None:
    driver.gpus(2)
    driver.set(0, util=0, power_mw=0, temperature=0)
    driver.set(1, util=55, power_mw=None, temperature=None)
    series, text = once("--source", "nvml", env=driver.env)
    assert of_gpu(series, UTILIZATION, 0) == 0
    assert of_gpu(series, POWER, 0) == 0
    assert of_gpu(series, POWER, 1) is None
    assert of_gpu(series, UTILIZATION, 1) == 0.55
    temperatures = [name for name in series if name.startswith("gpuscope_gpu_temperature_celsius{")]
    assert [series[name] for name in temperatures if 'gpu="0"' in name and 'sensor="gpu"' in name] == [0]
    assert not any('gpu="1"' in name and 'sensor="gpu"' in name for name in temperatures)
    assert not has(text, FAN), "an H100 has no fan: no series, and no HELP for nothing"


def test_a_gpu_whose_process_list_the_driver_refuses_is_not_free(driver: FakeDriver) -> None:
    """From the driver to `gpuscope free`: a list that cannot be read is not an empty one."""
    driver.gpus(3)
    driver.set(2, util=80)
    for kind in ("Compute", "Graphics", "MPSCompute"):
        driver.fail(f"nvmlDeviceGet{kind}RunningProcesses", 1, "NO_PERMISSION")
        driver.fail(f"nvmlDeviceGet{kind}RunningProcesses", 2, "NO_PERMISSION")
    done = subprocess.run(
        [*GPUSCOPE, "free", "--source", "nvml", "--json"],
        capture_output=True,
        env={**os.environ, **driver.env},
    )
    answer = json.loads(done.stdout)
    assert [one["gpus"] for one in answer["placements"]] == [["0"]]
    assert [(row["gpu"], row["why"]) for row in answer["unknown"]] == [("1", "processes_unknown")]


def test_nvidia_smi(tmp_path: Path) -> None:
    smi = FakeSmi(tmp_path / "smi", next(CAPTURES.glob("*tesla-t4-x2*")))  # idle; a T4 has no fan either
    series, text = once("--source", "nvidia-smi", "--nvidia-smi-command", smi.command)
    assert of_gpu(series, UTILIZATION, 0) == 0
    assert of_gpu(series, POWER, 0) == 9.61
    assert not has(text, FAN)
    errors = {
        name: value for name, value in series.items() if name.startswith("gpuscope_gpu_ecc_errors_total{")
    }
    assert any(value == 0 for value in errors.values())


def test_nvidia_smi_absent_values(tmp_path: Path) -> None:
    smi = FakeSmi(tmp_path / "smi", next(CAPTURES.glob("*tesla-t4-x2*")))
    flags = ("--source", "nvidia-smi", "--nvidia-smi-command", smi.command, "--families", "nvidia_smi")
    series, text = once(*flags)
    assert [
        value for name, value in series.items() if name.startswith("nvidia_smi_utilization_gpu_ratio{")
    ] == [0, 0]
    assert not has(text, "nvidia_smi_fan_speed_ratio")


def test_dcgm(tmp_path: Path) -> None:
    cells = {"54": "GPU-00000000-aaaa-bbbb-cccc-000000000000", "155": 0.0, "203": 0, "150": "N/A", "1004": None}
    state = {"layout": "4.6", "known": [54, 150, 155, 203, 1004], "gpus": [{"id": 0, "values": cells}]}
    (tmp_path / "state").write_text(json.dumps(state))
    flags = ("--source", "dcgm", "--dcgmi-command", f"{sys.executable} {FAKE_DCGMI}")
    series, text = once(*flags, env={"FAKE_DCGMI": str(tmp_path / "state")})
    assert of_gpu(series, UTILIZATION) == 0
    assert of_gpu(series, POWER) == 0
    assert not has(text, "gpuscope_gpu_temperature_celsius")
    assert not has(text, "gpuscope_gpu_tensor_active_ratio")


def test_demo() -> None:
    series, text = once("--source", "demo", "--scenario", "one-works")
    busy = [of_gpu(series, UTILIZATION, gpu) for gpu in range(8)]
    assert busy.count(0) == 7, "seven idle GPUs show a 0, so that an average over eight is right"
    assert not has(text, FAN)
