"""What goes wrong with drivers, on demand: loss, unload, mismatch, faults, delays, hangs, XIDs."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fake_nvml.driver import FakeDriver
from tests.waiting import wait_for


def test_a_lost_gpu_fails_alone(driver: FakeDriver, nvml: Any) -> None:
    handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(8)]
    driver.lose(3)
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetTemperature(handles[3], 0)
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetHandleByIndex(3)
    assert nvml.nvmlDeviceGetCount() == 8
    assert nvml.nvmlDeviceGetTemperature(handles[2], 0) == 34
    driver.find(3)
    assert nvml.nvmlDeviceGetTemperature(handles[3], 0) == 34


def test_unload_and_reload(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.unload()
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlDeviceGetPowerUsage(handle)
    with pytest.raises(nvml.NVMLError_DriverNotLoaded):
        nvml.nvmlInit()
    driver.reload(driver_version="590.44.01")
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetPowerUsage(handle)
    nvml.nvmlInit()
    assert nvml.nvmlSystemGetDriverVersion() == "590.44.01"
    assert nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetHandleByIndex(0)) == 71_000


def test_mismatch(driver: FakeDriver, nvml: Any) -> None:
    driver.mismatch()
    with pytest.raises(nvml.NVMLError_LibRmVersionMismatch):
        nvml.nvmlInit()
    driver.reload()
    nvml.nvmlInit()


def test_swap_and_hotplug_show_at_the_next_init(driver: FakeDriver, nvml: Any) -> None:
    old = nvml.nvmlDeviceGetHandleByIndex(1)
    old_uuid, bus_id = driver.cards[1].uuid, nvml.nvmlDeviceGetPciInfo(old).busId
    driver.swap(1, model="H200")
    driver.hotplug("H100")
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlDeviceGetName(old)
    assert nvml.nvmlDeviceGetCount() == 8
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 9
    new = nvml.nvmlDeviceGetHandleByIndex(1)
    assert nvml.nvmlDeviceGetName(new) == "NVIDIA H200"
    assert nvml.nvmlDeviceGetUUID(new) != old_uuid
    assert nvml.nvmlDeviceGetPciInfo(new).busId == bus_id
    driver.unplug(8)
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 8


def test_a_fault_hits_its_function_and_gpu_only(driver: FakeDriver, nvml: Any) -> None:
    first, second = (nvml.nvmlDeviceGetHandleByIndex(place) for place in range(2))
    driver.fail("nvmlDeviceGetMemoryInfo", gpu=1, error="UNKNOWN")
    with pytest.raises(nvml.NVMLError_Unknown):
        nvml.nvmlDeviceGetMemoryInfo(second, version=nvml.nvmlMemory_v2)
    assert nvml.nvmlDeviceGetMemoryInfo(first).total == 81559 << 20
    assert nvml.nvmlDeviceGetPowerUsage(second) == 71_000
    driver.heal()
    assert nvml.nvmlDeviceGetMemoryInfo(second).total == 81559 << 20


def test_latency_is_per_function(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.realistic_latency()
    driver.latency("nvmlDeviceGetPowerUsage", 0)
    began = time.monotonic()
    nvml.nvmlDeviceGetPcieThroughput(handle, 0)
    assert time.monotonic() - began >= 0.02


def test_a_hanging_call_blocks_nobody_else_until_healed(driver: FakeDriver, nvml: Any) -> None:
    first, second = (nvml.nvmlDeviceGetHandleByIndex(place) for place in range(2))
    driver.hang("nvmlDeviceGetPowerUsage", gpu=0)
    answers: list[int] = []
    stuck = threading.Thread(target=lambda: answers.append(nvml.nvmlDeviceGetPowerUsage(first)))
    stuck.start()
    assert nvml.nvmlDeviceGetPowerUsage(second) == 71_000
    assert nvml.nvmlDeviceGetTemperature(first, 0) == 34
    assert answers == []
    driver.heal()
    stuck.join(10)
    assert answers == [71_000]


def test_an_xid_is_told_once_to_each_set(driver: FakeDriver, nvml: Any) -> None:
    driver.xid(0, 31)  # before anyone listens
    sets = [nvml.nvmlEventSetCreate() for _ in range(2)]
    for place in range(8):
        for event_set in sets:
            handle = nvml.nvmlDeviceGetHandleByIndex(place)
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, event_set)
    driver.xid(5, 79)
    driver.xid(2, 48, gi=7, ci=0)
    for event_set in sets:
        events = [nvml.nvmlEventSetWait_v2(event_set, 100) for _ in range(2)]
        found = [
            (nvml.nvmlDeviceGetIndex(event.device), event.eventData, event.gpuInstanceId) for event in events
        ]
        assert found == [(5, 79, 0xFFFFFFFF), (2, 48, 7)]
        with pytest.raises(nvml.NVMLError_Timeout):
            nvml.nvmlEventSetWait_v2(event_set, 0)
        nvml.nvmlEventSetFree(event_set)


def test_waiting_ends_when_a_gpu_is_lost(driver: FakeDriver, nvml: Any) -> None:
    event_set = nvml.nvmlEventSetCreate()
    nvml.nvmlDeviceRegisterEvents(
        nvml.nvmlDeviceGetHandleByIndex(0), nvml.nvmlEventTypeXidCriticalError, event_set
    )
    with driver.at_once():
        driver.xid(0, 79)
        driver.lose(0)
    assert nvml.nvmlEventSetWait_v2(event_set, 100).eventData == 79
    with pytest.raises(nvml.NVMLError_GpuIsLost):
        nvml.nvmlEventSetWait_v2(event_set, 100)
    nvml.nvmlEventSetFree(event_set)


def test_before_init_and_after_shutdown(driver: FakeDriver, nvml: Any) -> None:
    nvml.nvmlShutdown()
    with pytest.raises(nvml.NVMLError_Uninitialized):
        nvml.nvmlDeviceGetCount()
    nvml.nvmlInit()
    assert nvml.nvmlDeviceGetCount() == 8


def test_without_the_counter_file_a_change_is_found_by_stat(
    driver: FakeDriver, nvml: Any, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    copy.write_bytes(driver.path.read_bytes())
    library = driver.attach()
    library.fake_use_state(os.fsencode(copy))
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetTemperature(handle, 0) == 34
    fresh = tmp_path / "fresh"
    fresh.write_text(copy.read_text().replace("gpu0.temperature 34", "gpu0.temperature 77"))
    fresh.replace(copy)
    wait_for(lambda: nvml.nvmlDeviceGetTemperature(handle, 0) == 77, "the new state's temperature")


def test_many_threads_while_the_state_changes(driver: FakeDriver, nvml: Any) -> None:
    handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(8)]
    wrong: list[object] = []

    def read() -> None:
        for turn in range(300):
            memory = nvml.nvmlDeviceGetMemoryInfo(handles[turn % 8], version=nvml.nvmlMemory_v2)
            if memory.used % 1000 or memory.total != memory.used + memory.free + memory.reserved:
                wrong.append(memory)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for turn in range(30):
        driver.set(turn % 8, memory_used=turn * 1000)
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_misspelt_key_is_refused_at_once(driver: FakeDriver) -> None:
    with pytest.raises(KeyError, match="utll"):
        driver.set(0, utll=5)
    with pytest.raises(KeyError, match="too_hot"):
        driver.set(0, reasons=["too_hot"])


def test_a_reload_restarts_the_driver_s_counters(driver: FakeDriver, nvml: Any) -> None:
    driver.freeze()
    driver.set(0, power_mw=200_000, ecc_corrected_volatile_dram=4, ecc_corrected_aggregate_dram=9)
    driver.unload()
    driver.reload()
    driver.advance(2)
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) == 400_000
    assert [nvml.nvmlDeviceGetTotalEccErrors(handle, 0, span) for span in range(2)] == [0, 9]


def test_calls_are_counted_over_processes(driver: FakeDriver, nvml: Any) -> None:
    driver.count_calls()
    driver.attach()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    for _ in range(5):
        nvml.nvmlDeviceGetPowerUsage(handle)
    program = "import pynvml as n; n.nvmlInit(); n.nvmlDeviceGetPowerUsage(n.nvmlDeviceGetHandleByIndex(1))"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, **driver.env}, check=True)
    assert driver.calls() == {"nvmlInit": 2, "nvmlDeviceGetHandleByIndex_v2": 2, "nvmlDeviceGetPowerUsage": 6}


def test_an_older_driver_lacks_functions(driver: FakeDriver, nvml: Any) -> None:
    driver.without("nvmlDeviceGetTemperatureV")
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nvml.NVMLError_FunctionNotFound):
        nvml.nvmlDeviceGetTemperatureV(handle, 0)
    assert nvml.nvmlDeviceGetTemperature(handle, 0) == 34
