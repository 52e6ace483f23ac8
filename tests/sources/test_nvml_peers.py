"""nvitop reads the same numbers from the same driver library; memory use stays constant."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from gpuscope.vendors.nvidia.nvml.tiers import Clocks
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.fixtures import driver
from tests.fakes import present
from tests.installed import require
from tests.sources.nvml_rig import ALL, FAST, Rig

__all__ = ["driver"]

NVITOP = """
import json
from nvitop import Device
def of(device):
    return {
        "name": device.name(),
        "uuid": device.uuid(),
        "memory": [device.memory_total(), device.memory_used(), device.memory_free()],
        "utilization": [device.gpu_utilization(), device.memory_utilization()],
        "engines": [device.encoder_utilization(), device.decoder_utilization()],
        "power": [device.power_usage(), device.power_limit()],
        "temperature": device.temperature(),
        "clocks": list(device.clock_infos()),
        "max_clocks": list(device.max_clock_infos()),
        "bus_id": device.bus_id(),
        "performance_state": device.performance_state(),
        "ecc": device.total_volatile_uncorrected_ecc_errors(),
        "processes": {
            pid: [process.type, process.gpu_memory(), process.gpu_sm_utilization()]
            for pid, process in device.processes().items()
        },
    }
print(json.dumps([of(device) for device in Device.all()], default=str))
"""


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    with Rig(driver, tmp_path) as rig:
        yield rig


def nvitop(driver: FakeDriver) -> list[dict[str, Any]]:
    require("nvitop")
    done = subprocess.run(
        [sys.executable, "-c", NVITOP],
        env={**os.environ, **driver.env},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    answer: list[dict[str, Any]] = json.loads(done.stdout)
    return answer


def percents(*ratios: Maybe[float]) -> list[int]:
    return [round(present(ratio) * 100) for ratio in ratios]


def test_nvitop_sees_the_same(rig: Rig) -> None:
    me = os.getpid()  # nvitop drops processes that do not run
    rig.driver.gpus(2)
    rig.driver.set(
        0, util=63, util_memory=21, util_encoder=5, power_mw=431_250, temperature=57, memory_used=7 << 30
    )
    rig.driver.set(0, clock_graphics=1755, ecc_uncorrected_volatile_dram=2, pstate=2)
    rig.driver.processes(0, [Process(me, memory=3 << 30, share=0.5), Process(me, kind="G", memory=3 << 30)])
    rig.tick(3)
    reading = rig.tick()
    theirs = nvitop(rig.driver)
    assert reading.processes is not ABSENT
    for mine, other in zip(reading.devices, theirs, strict=True):
        assert (mine.model, mine.uuid, mine.pci_bus_id) == (other["name"], other["uuid"], other["bus_id"])
        assert [mine.memory_total_bytes, mine.memory_used_bytes, mine.memory_free_bytes] == other["memory"]
        assert percents(mine.utilization_ratio, mine.memory_utilization_ratio) == other["utilization"]
        assert percents(mine.encoder_utilization_ratio, mine.decoder_utilization_ratio) == other["engines"]
        assert [present(mine.power_watts) * 1000, mine.power_limit_watts["current"] * 1000] == other["power"]
        assert mine.temperature_celsius["gpu"] == other["temperature"]
        assert [mine.clock_hertz[clock] / 1e6 for clock in ("graphics", "sm", "memory", "video")] == other[
            "clocks"
        ]
        assert [mine.clock_max_hertz[clock] / 1e6 for clock in ("graphics", "sm", "memory", "video")] == other[
            "max_clocks"
        ]
        assert f"P{mine.performance_state:.0f}" == other["performance_state"]
        assert mine.ecc_errors["uncorrected", "volatile"] == other["ecc"]
        processes = {
            str(each.pid): [each.kind, each.memory_bytes]
            for each in reading.processes
            if each.gpu_uuid == mine.uuid
        }
        assert processes == {pid: row[:2] for pid, row in other["processes"].items()}


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _soak(driver: FakeDriver, cycles: int) -> int:
    """Resident memory gained over the second half of the cycles, while processes, instances and GPUs change."""
    driver.attach()
    seconds = [0.0]
    source = NvmlSource(driver.path.parent, Clocks(monotonic=lambda: seconds[0]))
    before = 0
    for cycle in range(cycles):
        if cycle == cycles // 2:
            gc.collect()
            before = _resident_bytes()
        if cycle % 20 == 0:
            _change(driver, cycle // 20)
        seconds[0] += 1
        source.read(ALL if cycle % 10 == 0 else FAST)
    source.close()
    gc.collect()
    return _resident_bytes() - before


def _change(driver: FakeDriver, round_number: int) -> None:
    """Processes, instances and GPUs come and go."""
    with driver.at_once():
        driver.processes(0, [Process(1 + round_number * 5 + each) for each in range(5)])
        driver.mig(1, [Mig(gi=1 + round_number % 3)] if round_number % 4 else [])
        driver.xid(0, 13)
        if round_number % 3:
            driver.find(0)
        else:
            driver.lose(0)


def test_memory_is_flat_over_2000_cycles(driver: FakeDriver) -> None:
    driver.gpus(2)
    assert _soak(driver, 2000) < 1 << 20


@pytest.mark.slow
def test_memory_is_flat_over_100_000_cycles(driver: FakeDriver) -> None:
    driver.gpus(2)
    assert _soak(driver, 100_000) < 2 << 20
