"""Processes and MIG instances: hostile names, absent memory, ends between two calls."""

from __future__ import annotations

import ctypes
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fake_nvml.test_timeline import gpm_between, gpm_metrics


def test_each_kind_has_its_own_list(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.processes(
        0, [Process(1, memory=None), Process(2, kind="G", memory=5), Process(3, kind="M", memory=6)]
    )
    (compute,) = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    (graphics,) = nvml.nvmlDeviceGetGraphicsRunningProcesses(handle)
    (mps,) = nvml.nvmlDeviceGetMPSComputeRunningProcesses(handle)
    assert (compute.pid, compute.usedGpuMemory) == (1, None)
    assert (graphics.pid, graphics.usedGpuMemory, mps.pid, mps.usedGpuMemory) == (2, 5, 3, 6)
    assert compute.gpuInstanceId == 0xFFFFFFFF
    assert nvml.nvmlDeviceGetComputeRunningProcesses(nvml.nvmlDeviceGetHandleByIndex(1)) == []


@settings(max_examples=examples(100), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=4096).map(lambda raw: raw.replace(b"\0", b"")).filter(bool))
def test_any_name_comes_back_byte_for_byte(driver: FakeDriver, nvml: Any, name: bytes) -> None:
    driver.processes(0, [Process(77, name=name)])
    buffer = ctypes.create_string_buffer(8192)
    call = nvml._nvmlGetFunctionPointer("nvmlSystemGetProcessName")
    assert call(77, buffer, len(buffer)) == 0
    assert buffer.value == name


def test_a_process_that_ends(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.freeze()
    driver.processes(0, [Process(5, name="short", ended_us=driver.now_us() + 1), Process(6, name=None)])
    assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [5, 6]
    assert nvml.nvmlSystemGetProcessName(5) == "short"
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlSystemGetProcessName(6)
    driver.advance(0.1)
    assert [process.pid for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)] == [6]
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlSystemGetProcessName(5)


def test_a_list_that_outgrows_the_buffer(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.processes(0, [Process(pid) for pid in range(1, 30)])
    call = nvml._nvmlGetFunctionPointer("nvmlDeviceGetComputeRunningProcesses_v3")
    count, rows = ctypes.c_uint(10), (nvml.c_nvmlProcessInfo_v3_t * 10)()
    assert call(handle, ctypes.byref(count), rows) == nvml.NVML_ERROR_INSUFFICIENT_SIZE
    assert count.value == 29


@pytest.fixture
def instances(driver: FakeDriver) -> list[str]:
    return driver.mig(
        0,
        [
            Mig(gi=1, profile="3g.40gb", memory_used=7 << 30, busy=60),
            Mig(gi=7, profile="1g.10gb", busy=25),
            Mig(gi=8, profile="1c.2g.20gb", ci=1),
        ],
    )


def test_mig_instances_are_devices(driver: FakeDriver, nvml: Any, instances: list[str]) -> None:
    parent = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetMigMode(parent) == [1, 1]
    assert nvml.nvmlDeviceGetMaxMigDeviceCount(parent) == 7
    devices = [nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, place) for place in range(3)]
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 3)
    assert [nvml.nvmlDeviceGetUUID(device) for device in devices] == instances
    assert all(name.startswith("MIG-") for name in instances)
    assert [nvml.nvmlDeviceGetGpuInstanceId(device) for device in devices] == [1, 7, 8]
    assert [nvml.nvmlDeviceGetComputeInstanceId(device) for device in devices] == [0, 0, 1]
    assert nvml.nvmlDeviceGetName(devices[0]) == "NVIDIA H100 80GB HBM3 MIG 3g.40gb"
    assert nvml.nvmlDeviceGetMemoryInfo(devices[0]).used == 7 << 30
    shape = nvml.nvmlDeviceGetAttributes(devices[2])
    assert (shape.gpuInstanceSliceCount, shape.computeInstanceSliceCount, shape.multiprocessorCount) == (
        2,
        1,
        16,
    )
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(devices[1])) == 0
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByUUID(instances[1])) == instances[1]
    assert [bool(nvml.nvmlDeviceIsMigDeviceHandle(handle)) for handle in (parent, devices[0])] == [False, True]


def test_with_mig_on_the_whole_gpu_has_no_utilisation(
    driver: FakeDriver, nvml: Any, instances: list[str]
) -> None:
    parent = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetUtilizationRates(parent)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetProcessUtilization(parent, 0)
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetPowerUsage(nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 0))
    driver.mig(0, [])
    assert nvml.nvmlDeviceGetUtilizationRates(parent).gpu == 0


def test_processes_belong_to_their_instance(driver: FakeDriver, nvml: Any, instances: list[str]) -> None:
    driver.processes(0, [Process(os.getpid(), gi=7, ci=0), Process(2, gi=1, ci=0)])
    parent = nvml.nvmlDeviceGetHandleByIndex(0)
    everyone = nvml.nvmlDeviceGetComputeRunningProcesses(parent)
    assert [(row.pid, row.gpuInstanceId, row.computeInstanceId) for row in everyone] == [
        (os.getpid(), 7, 0),
        (2, 1, 0),
    ]
    small = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 1)
    assert [row.pid for row in nvml.nvmlDeviceGetComputeRunningProcesses(small)] == [os.getpid()]


def test_gpm_of_an_instance(driver: FakeDriver, nvml: Any, instances: list[str]) -> None:
    driver.freeze()
    parent = nvml.nvmlDeviceGetHandleByIndex(0)
    ids = [nvml.NVML_GPM_METRIC_GRAPHICS_UTIL, nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL]
    assert gpm_between(nvml, parent, driver, ids, gi=7) == pytest.approx([25, 7.5])


def test_gpm_of_an_instance_follows_its_changes(driver: FakeDriver, nvml: Any) -> None:
    driver.freeze()
    driver.mig(0, [Mig(gi=7, busy=80)])
    parent = nvml.nvmlDeviceGetHandleByIndex(0)
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    nvml.nvmlGpmMigSampleGet(parent, 7, samples[0])
    driver.advance(1)
    driver.mig(0, [Mig(gi=7, busy=20)])
    driver.advance(3)
    nvml.nvmlGpmMigSampleGet(parent, 7, samples[1])
    assert gpm_metrics(nvml, samples, [nvml.NVML_GPM_METRIC_GRAPHICS_UTIL]) == [35]


def test_a_hole_in_the_numbering_is_not_the_end(driver: FakeDriver, nvml: Any) -> None:
    driver.mig(0, [Mig(gi=1), Mig(gi=3, index=2)])
    parent = nvml.nvmlDeviceGetHandleByIndex(0)
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 1)
    assert nvml.nvmlDeviceGetGpuInstanceId(nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 2)) == 3


def test_reconfigured_instances_get_new_handles(driver: FakeDriver, nvml: Any, instances: list[str]) -> None:
    parent = nvml.nvmlDeviceGetHandleByIndex(0)
    old = nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 0)
    (fresh,) = driver.mig(0, [Mig(gi=0, profile="7g.80gb")])
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetMemoryInfo(old)
    assert nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetMigDeviceHandleByIndex(parent, 0)) == fresh
