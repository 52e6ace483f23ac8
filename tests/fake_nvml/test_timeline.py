"""Counters and samples are exact integrals of what was set, on a clock the test moves."""

from __future__ import annotations

from typing import Any

import pytest

from tests.fake_nvml.driver import FakeDriver, Process

START_US = 1_800_000_000_000_000


@pytest.fixture
def frozen(driver: FakeDriver) -> FakeDriver:
    driver.freeze(START_US)
    driver.sample_period(0.1)
    driver.gpus(2, model="H100")
    return driver


@pytest.fixture
def handle(frozen: FakeDriver, nvml: Any) -> Any:
    return nvml.nvmlDeviceGetHandleByIndex(0)


def test_energy_is_the_integral_of_power(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    frozen.set(0, power_mw=500_000)
    frozen.advance(2)
    frozen.set(0, power_mw=100_000)
    frozen.advance(3)
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before == 1_300_000
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) == frozen.energy_mj(0)


def test_counters_survive_the_folding_of_old_history(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    before = nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    for second in range(300):
        frozen.set(0, power_mw=1000.0 * (second % 7))
        frozen.advance(1)
    assert len(frozen.cards[0].phases) < 70
    spent = sum(1000 * (second % 7) for second in range(300))
    assert nvml.nvmlDeviceGetTotalEnergyConsumption(handle) - before == pytest.approx(spent, abs=1)


def test_a_burst_fills_the_sample_ring(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    frozen.advance(0.05)
    frozen.burst(0, 0.3, util=100)
    frozen.advance(1)
    kind, samples = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, START_US)
    assert kind == nvml.NVML_VALUE_TYPE_UNSIGNED_INT
    assert [sample.sampleValue.uiVal for sample in samples] == [50, 100, 100, 50, 0, 0, 0, 0, 0, 0]
    assert samples[0].timeStamp == START_US + 100_000
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetSamples(handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, samples[-1].timeStamp)
    _, ring = nvml.nvmlDeviceGetSamples(handle, nvml.NVML_TOTAL_POWER_SAMPLES, 0)
    assert len(ring) == 120


def test_utilisation_is_that_of_the_last_whole_sample(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    frozen.advance(0.05)
    frozen.burst(0, 1, util=100)
    readings = []
    for _ in range(3):
        frozen.advance(0.05)
        readings.append(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    assert readings == [50, 50, 100]


def test_power_is_averaged_over_a_second_where_the_card_does_so(
    frozen: FakeDriver, nvml: Any, handle: Any
) -> None:
    frozen.burst(0, 10, power_mw=571_000)
    frozen.advance(0.5)
    average, instant = nvml.nvmlDeviceGetFieldValues(
        handle, [nvml.NVML_FI_DEV_POWER_AVERAGE, nvml.NVML_FI_DEV_POWER_INSTANT]
    )
    assert (average.value.uiVal, instant.value.uiVal) == (321_000, 571_000)
    assert nvml.nvmlDeviceGetPowerUsage(handle) == 321_000
    frozen.set(0, power_is_averaged=0)
    assert nvml.nvmlDeviceGetPowerUsage(handle) == 571_000


def test_processes_share_the_burst(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    frozen.processes(0, [Process(10, share=0.75), Process(11, share=0.25), Process(12, share=0)])
    frozen.burst(0, 0.5, util=80)
    frozen.advance(1)
    rows = nvml.nvmlDeviceGetProcessUtilization(handle, START_US)
    assert [(row.pid, row.smUtil) for row in rows] == [(10, 30), (11, 10)]
    assert {row.timeStamp for row in rows} == {START_US + 1_000_000}
    newer = nvml.nvmlDeviceGetProcessesUtilizationInfo(handle, START_US)
    assert [(row.pid, row.smUtil, row.memUtil) for row in newer] == [(10, 30, 18), (11, 10, 6)]
    with pytest.raises(nvml.NVMLError_NotFound):
        nvml.nvmlDeviceGetProcessUtilization(handle, START_US + 1_000_000)


def test_throttled_time_counts_in_nanoseconds(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    frozen.set(0, reasons=["hw_thermal", "sw_power_cap"])
    frozen.advance(1.5)
    frozen.set(0, reasons=[])
    frozen.advance(1)
    ids = [nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, nvml.NVML_FI_DEV_PERF_POLICY_POWER]
    values = nvml.nvmlDeviceGetFieldValues(
        handle, [*ids, nvml.NVML_FI_DEV_CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN]
    )
    assert [value.value.ullVal for value in values] == [1_500_000_000, 1_500_000_000, 0]
    assert nvml.nvmlDeviceGetViolationStatus(handle, nvml.NVML_PERF_POLICY_POWER).violationTime == 1_500_000_000


def test_link_counters(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    frozen.set(0, nvlink_tx_kibps=18_000, nvlink_rx_kibps=9_000, pcie_rx_kbps=500)
    frozen.advance(2)
    ids = [
        (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF),
        (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0),
        (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_RAW_RX, 0xFFFFFFFF),
        (nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES, 0),
    ]
    values = nvml.nvmlDeviceGetFieldValues(handle, ids)
    assert [value.value.ullVal for value in values] == [36_000, 2_000, 20_250, 1_000_000]


def gpm_between(
    nvml: Any, handle: Any, frozen: FakeDriver, ids: list[int], gi: int | None = None
) -> list[float]:
    """The metrics over a half-busy second."""
    samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
    take = (
        nvml.nvmlGpmSampleGet
        if gi is None
        else lambda device, sample: nvml.nvmlGpmMigSampleGet(device, gi, sample)
    )
    take(handle, samples[0])
    frozen.burst(0, 0.5, util=100, tensor=60, nvlink_tx_kibps=2048)
    frozen.advance(1)
    take(handle, samples[1])
    return gpm_metrics(nvml, samples, ids)


def gpm_metrics(nvml: Any, samples: list[Any], ids: list[int]) -> list[float]:
    """The metrics between two samples, which are freed."""
    request = nvml.c_nvmlGpmMetricsGet_t(version=nvml.NVML_GPM_METRICS_GET_VERSION, numMetrics=len(ids))
    request.sample1, request.sample2 = samples
    for place, metric_id in enumerate(ids):
        request.metrics[place].metricId = metric_id
    nvml.nvmlGpmMetricsGet(request)
    for sample in samples:
        nvml.nvmlGpmSampleFree(sample)
    assert [request.metrics[place].nvmlReturn for place in range(len(ids))] == [0] * len(ids)
    return [request.metrics[place].value for place in range(len(ids))]


def test_gpm_is_the_mean_between_two_samples(frozen: FakeDriver, nvml: Any, handle: Any) -> None:
    ids = [nvml.NVML_GPM_METRIC_GRAPHICS_UTIL, nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL]
    ids += [nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC, nvml.NVML_GPM_METRIC_NVLINK_L17_TX_PER_SEC]
    assert gpm_between(nvml, handle, frozen, ids) == pytest.approx([50, 30, 1, 1 / 18])
