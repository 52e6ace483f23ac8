"""`--source auto`: merges all available sources field by field and logs them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.fake_smi import CAPTURES, FakeSmi
from tests.integration.agent_process import of_gpu, running_agent, source_up

__all__ = ["driver"]

FAKE_DCGMI = Path(__file__).parents[1] / "fake_dcgmi" / "dcgmi.py"
SM_ACTIVE = "gpuscope_gpu_sm_active_ratio"
NO_DCGM = ("--dcgmi-command", "/nonexistent/dcgmi")
NO_SMI = ("--nvidia-smi-command", "/nonexistent/nvidia-smi")


class Dcgm:
    """A fake dcgmi with the same GPUs as the driver, and the environment to run it."""

    def __init__(self, folder: Path, driver: FakeDriver) -> None:
        self._state = folder / "dcgm.json"
        gpus: list[dict[str, Any]] = [
            {"id": i, "values": {"54": card.uuid, "155": 999.0, "1002": 0.0, "1003": None, "1004": 0.25}}
            for i, card in enumerate(driver.cards)
        ]
        known = [54, 155, 1002, 1003, 1004]
        self._state.write_text(json.dumps({"layout": "4.6", "known": known, "gpus": gpus}))
        self.env = {"FAKE_DCGMI": str(self._state)}
        self.flags = ("--dcgmi-command", f"{sys.executable} {FAKE_DCGMI}")

    def runs(self) -> str:
        log = Path(f"{self._state}.log")
        return log.read_text() if log.exists() else ""


@pytest.fixture
def smi(tmp_path: Path) -> FakeSmi:
    return FakeSmi(tmp_path / "smi", next(CAPTURES.glob("*tesla-t4-x2*")))


def test_before_hopper_profiling_comes_from_dcgm_and_the_rest_from_nvml(
    driver: FakeDriver, tmp_path: Path
) -> None:
    driver.gpus(2, model="A100")
    driver.set(0, power_mw=250_000)
    dcgm = Dcgm(tmp_path, driver)
    with running_agent(*dcgm.flags, *NO_SMI, env={**driver.env, **dcgm.env}) as agent:
        series = agent.until(lambda series: of_gpu(series, SM_ACTIVE) is not None)
        assert of_gpu(series, SM_ACTIVE) == 0, "DCGM's 0 is a 0"
        assert of_gpu(series, "gpuscope_gpu_sm_occupancy_ratio") is None, "and what it does not give is absent"
        assert of_gpu(series, "gpuscope_gpu_tensor_active_ratio") == 0.25
        assert of_gpu(series, "gpuscope_gpu_power_watts") == 250, "NVML is trusted more"
        assert of_gpu(series, "gpuscope_gpu_up", 2) is None, "the same two GPUs, not four"
        assert "source dcgm is used: the driver gives no profiling numbers" in agent.log()
        assert agent.stop() == 0


def test_hopper_needs_no_dcgm_for_profiling(driver: FakeDriver, tmp_path: Path) -> None:
    driver.gpus(2, model="H100")
    driver.busy(0, 80, ago=30)
    dcgm = Dcgm(tmp_path, driver)
    with running_agent(*dcgm.flags, *NO_SMI, env={**driver.env, **dcgm.env}) as agent:
        series = agent.until(lambda series: of_gpu(series, SM_ACTIVE) is not None)
        assert of_gpu(series, "gpuscope_gpu_power_watts") != 999
        assert source_up(series, "dcgm") is None, "it is not asked, so it is neither up nor down"
        assert dcgm.runs() == ""


def test_nvidia_smi_is_used_only_while_nvml_fails(driver: FakeDriver, smi: FakeSmi) -> None:
    driver.gpus(2, model="A100")
    flags = (*NO_DCGM, "--nvidia-smi-command", smi.command, "--nvidia-smi-interval", "100ms")
    with running_agent(*flags, env=driver.env) as agent:
        up = agent.until(lambda series: source_up(series, "nvml") == 1)
        assert source_up(up, "nvidia-smi") is None
        assert smi.runs() == [], "not even at the start"
        driver.unload()
        agent.until(lambda series: source_up(series, "nvidia-smi") == 1)
        assert "Tesla T4" in agent.text()
        assert agent.log().index("WARNING source nvml: ") < agent.log().index(
            "source nvidia-smi is used: NVML does"
        )
        driver.reload()
        back = agent.until(lambda series: source_up(series, "nvidia-smi") is None)
        assert source_up(back, "nvml") == 1
        agent.until_logged("source nvidia-smi is not needed any more")


def test_nvidia_smi_is_used_without_the_driver_library(smi: FakeSmi) -> None:
    with running_agent(*NO_DCGM, "--nvidia-smi-command", smi.command) as agent:
        series = agent.until(lambda series: of_gpu(series, "gpuscope_gpu_up", 1) == 1)
        assert source_up(series, "nvml") == 0
        assert "libnvidia-ml.so.1 was not found" in agent.until_logged("WARNING source nvml: .*")
        assert "source nvidia-smi is used" in agent.log()
