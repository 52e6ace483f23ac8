"""What a test sets, NVIDIA's binding reads; what a model lacks, it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.fake_nvml.driver import FakeDriver, Link
from tests.fake_nvml.models import MODELS

Read = Callable[[Any, Any], Any]

PLAIN: list[tuple[dict[str, Any], Read, Any]] = [
    ({"util": 87}, lambda n, h: n.nvmlDeviceGetUtilizationRates(h).gpu, 87),
    ({"util_memory": 41}, lambda n, h: n.nvmlDeviceGetUtilizationRates(h).memory, 41),
    ({"util_encoder": 7}, lambda n, h: n.nvmlDeviceGetEncoderUtilization(h), [7, 166666]),
    ({"util_decoder": 8}, lambda n, h: n.nvmlDeviceGetDecoderUtilization(h), [8, 166666]),
    ({"util_jpeg": 9}, lambda n, h: n.nvmlDeviceGetJpgUtilization(h), [9, 166666]),
    ({"util_ofa": 10}, lambda n, h: n.nvmlDeviceGetOfaUtilization(h), [10, 166666]),
    ({"temperature": 61}, lambda n, h: n.nvmlDeviceGetTemperature(h, 0), 61),
    ({"temperature": 61}, lambda n, h: n.nvmlDeviceGetTemperatureV(h, 0), 61),
    ({"temperature_margin": 12}, lambda n, h: n.nvmlDeviceGetMarginTemperature(h), 12),
    ({"threshold_shutdown": 93}, lambda n, h: n.nvmlDeviceGetTemperatureThreshold(h, 0), 93),
    ({"power_mw": 512_345}, lambda n, h: n.nvmlDeviceGetPowerUsage(h), 512_345),
    ({"power_limit_mw": 600_000}, lambda n, h: n.nvmlDeviceGetPowerManagementLimit(h), 600_000),
    ({"power_enforced_mw": 590_000}, lambda n, h: n.nvmlDeviceGetEnforcedPowerLimit(h), 590_000),
    ({"power_min_mw": 1}, lambda n, h: n.nvmlDeviceGetPowerManagementLimitConstraints(h), [1, 700_000]),
    ({"clock_sm": 1755}, lambda n, h: n.nvmlDeviceGetClockInfo(h, 1), 1755),
    ({"clock_memory_max": 2619}, lambda n, h: n.nvmlDeviceGetMaxClockInfo(h, 2), 2619),
    ({"clock_graphics_app": 1500}, lambda n, h: n.nvmlDeviceGetApplicationsClock(h, 0), 1500),
    ({"pstate": 2}, lambda n, h: n.nvmlDeviceGetPerformanceState(h), 2),
    ({"pcie_width": 8}, lambda n, h: n.nvmlDeviceGetCurrPcieLinkWidth(h), 8),
    ({"pcie_gen": 4}, lambda n, h: n.nvmlDeviceGetCurrPcieLinkGeneration(h), 4),
    ({"pcie_tx_kbps": 123_456}, lambda n, h: n.nvmlDeviceGetPcieThroughput(h, 0), 123_456),
    ({"pcie_replay": 3}, lambda n, h: n.nvmlDeviceGetPcieReplayCounter(h), 3),
    ({"ecc_corrected_volatile_dram": 5}, lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 0, 0), 5),
    ({"ecc_uncorrected_aggregate_sram": 6}, lambda n, h: n.nvmlDeviceGetMemoryErrorCounter(h, 1, 1, 7), 6),
    ({"remapped_uncorrectable": 2}, lambda n, h: list(n.nvmlDeviceGetRemappedRows(h)), [0, 2, 0, 0]),
    ({"remap_banks_low": 4}, lambda n, h: n.nvmlDeviceGetRowRemapperHistogram(h).low, 4),
    ({"compute_mode": 3}, lambda n, h: n.nvmlDeviceGetComputeMode(h), 3),
    ({"persistence_mode": 0}, lambda n, h: n.nvmlDeviceGetPersistenceMode(h), 0),
    ({"bar1_used": 7 << 20}, lambda n, h: n.nvmlDeviceGetBAR1MemoryInfo(h).bar1Used, 7 << 20),
    ({"minor": 5}, lambda n, h: n.nvmlDeviceGetMinorNumber(h), 5),
]


@pytest.mark.parametrize(
    ("values", "read", "expected"), PLAIN, ids=lambda part: "" if callable(part) else str(part)[:40]
)
def test_a_value_set_is_read_back_and_taken_away_is_refused(
    driver: FakeDriver, nvml: Any, values: dict[str, Any], read: Read, expected: Any
) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(2)
    driver.set(2, **values)
    assert read(nvml, handle) == expected
    key = next(iter(values))
    # the driver adds utilisation of memory and ECC totals to another number: those have no answer of their own
    if key in {"util_memory", "ecc_corrected_volatile_dram", "remap_banks_low", "bar1_used"}:
        return
    absent: dict[str, Any] = dict.fromkeys(values)
    driver.set(2, **absent)
    with pytest.raises(nvml.NVMLError_NotSupported):
        read(nvml, handle)


def test_zero_is_a_value(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.set(0, util=0, power_mw=0, temperature=0, pcie_replay=0)
    assert nvml.nvmlDeviceGetUtilizationRates(handle).gpu == 0
    assert nvml.nvmlDeviceGetPowerUsage(handle) == 0
    assert nvml.nvmlDeviceGetTemperature(handle, 0) == 0


def test_identity(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(1)
    card = driver.cards[1]
    assert nvml.nvmlDeviceGetName(handle) == "NVIDIA H100 80GB HBM3"
    assert nvml.nvmlDeviceGetUUID(handle) == card.uuid
    assert nvml.nvmlDeviceGetSerial(handle) == card.texts["serial"]
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByUUID(card.uuid)) == 1
    bus_id = nvml.nvmlDeviceGetPciInfo(handle).busId
    assert bus_id == "00000000:1B:00.0"
    assert nvml.nvmlDeviceGetIndex(nvml.nvmlDeviceGetHandleByPciBusId(bus_id)) == 1
    assert nvml.nvmlDeviceGetCudaComputeCapability(handle) == (9, 0)
    assert nvml.nvmlDeviceGetInforomVersion(handle, nvml.NVML_INFOROM_ECC) == "7.16"
    assert nvml.nvmlSystemGetDriverVersion() == "580.95.05"
    assert nvml.nvmlSystemGetCudaDriverVersion() == 13000
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetHandleByIndex(8)


def test_used_memory_holds_the_reserve_only_in_version_one(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.set(0, memory_used=1 << 30, memory_reserved=1 << 29)
    assert nvml.nvmlDeviceGetMemoryInfo(handle).used == (1 << 30) + (1 << 29)
    second = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    assert (second.used, second.reserved) == (1 << 30, 1 << 29)
    assert second.total == second.used + second.reserved + second.free


def test_clock_event_reasons_are_a_mask(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetCurrentClocksEventReasons(handle) == nvml.nvmlClocksEventReasonGpuIdle
    driver.set(0, reasons=["sw_power_cap", "hw_thermal"])
    expected = nvml.nvmlClocksEventReasonSwPowerCap | nvml.nvmlClocksThrottleReasonHwThermalSlowdown
    assert nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle) == expected


def test_sram_and_fabric_structs(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.set(
        0, sram_bucket_sm=3, sram_volatile_secded=1, sram_threshold_exceeded=1, fabric_cluster="cluster-one"
    )
    status = nvml.c_nvmlEccSramErrorStatus_v1_t()
    nvml.nvmlDeviceGetSramEccErrorStatus(handle, nvml.byref(status))
    assert (status.aggregateUncBucketSm, status.volatileUncSecDed, status.bThresholdExceeded) == (3, 1, 1)
    fabric = nvml.c_nvmlGpuFabricInfo_v2_t()
    nvml.nvmlDeviceGetGpuFabricInfoV(handle, nvml.byref(fabric))
    assert fabric.state == nvml.NVML_GPU_FABRIC_STATE_COMPLETED


def test_nvlink_states_and_errors(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.link(0, 3, Link(active=False, replay=7, crc_flit=2))
    assert [nvml.nvmlDeviceGetNvLinkState(handle, link) for link in range(5)] == [1, 1, 1, 0, 1]
    assert nvml.nvmlDeviceGetNvLinkErrorCounter(handle, 3, nvml.NVML_NVLINK_ERROR_DL_REPLAY) == 7
    assert nvml.nvmlDeviceGetNvLinkVersion(handle, 0) == 4
    fields = [
        nvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL,
        nvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_L3,
        (nvml.NVML_FI_DEV_NVLINK_GET_STATE, 3),
        (nvml.NVML_FI_DEV_NVLINK_GET_SPEED, 0),
    ]
    values = nvml.nvmlDeviceGetFieldValues(handle, fields)
    assert [value.nvmlReturn for value in values] == [0, 0, 0, 0]
    assert [values[0].value.ullVal, values[1].value.ullVal] == [7, 2]
    assert [values[2].value.uiVal, values[3].value.uiVal] == [0, 26562]
    with pytest.raises(nvml.NVMLError_InvalidArgument):
        nvml.nvmlDeviceGetNvLinkState(handle, 18)


def test_field_values_fail_one_by_one(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.set(0, temperature_memory=55, power_mw=300_000)
    driver.field(0, nvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS, 11)
    driver.field(0, nvml.NVML_FI_DEV_ECC_CURRENT, 0, error="UNKNOWN")
    ids = [
        nvml.NVML_FI_DEV_MEMORY_TEMP,
        nvml.NVML_FI_DEV_POWER_INSTANT,
        nvml.NVML_FI_DEV_PCIE_COUNT_CORRECTABLE_ERRORS,
    ]
    ids += [nvml.NVML_FI_DEV_ECC_CURRENT, nvml.NVML_FI_PWR_SMOOTHING_ENABLED]
    values = nvml.nvmlDeviceGetFieldValues(handle, ids)
    assert [value.nvmlReturn for value in values] == [
        0,
        0,
        0,
        nvml.NVML_ERROR_UNKNOWN,
        nvml.NVML_ERROR_NOT_SUPPORTED,
    ]
    assert [value.value.uiVal for value in values[:3]] == [55, 300_000, 11]
    assert values[0].timestamp > 0


def test_retired_pages_are_listed_by_cause(driver: FakeDriver, nvml: Any) -> None:
    driver.gpus(1, model="V100")
    driver.retire_page(0, 0x1000, at=17)
    driver.retire_page(0, 0x2000, double_bit=True, at=18)
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    assert nvml.nvmlDeviceGetRetiredPages(handle, 0) == [0x1000]
    assert [page["address"] for page in nvml.nvmlDeviceGetRetiredPages_v2(handle, 1)] == [0x2000]
    assert nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) == 0


LACKS: dict[str, list[str]] = {
    "T4": ["fan", "nvlink", "mig", "gpm", "memory temperature", "remapped rows", "margin"],
    "V100": ["fan", "mig", "gpm", "remapped rows", "margin"],
    "A100": ["fan", "gpm", "retired pages", "margin"],
    "L4": ["fan", "nvlink", "mig", "gpm", "memory temperature", "retired pages"],
    "RTX 4090": [
        "nvlink",
        "mig",
        "gpm",
        "memory temperature",
        "retired pages",
        "remapped rows",
        "ecc",
        "serial",
    ],
    "H100": ["fan", "retired pages"],
    "H200": ["fan", "retired pages"],
    "B200": ["fan", "retired pages"],
    "GB200": ["fan", "retired pages"],
}


def gpm(nvml: Any, handle: Any) -> None:
    sample = nvml.nvmlGpmSampleAlloc()
    try:
        nvml.nvmlGpmSampleGet(handle, sample)
    finally:
        nvml.nvmlGpmSampleFree(sample)


def memory_temperature(nvml: Any, handle: Any) -> None:
    value = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_MEMORY_TEMP])[0]
    if value.nvmlReturn:
        raise nvml.NVMLError(value.nvmlReturn)


FEATURES: dict[str, Read] = {
    "fan": lambda n, h: n.nvmlDeviceGetFanSpeed_v2(h, 0),
    "nvlink": lambda n, h: n.nvmlDeviceGetNvLinkState(h, 0),
    "mig": lambda n, h: n.nvmlDeviceGetMigMode(h),
    "gpm": gpm,
    "memory temperature": memory_temperature,
    "retired pages": lambda n, h: n.nvmlDeviceGetRetiredPages(h, 0),
    "remapped rows": lambda n, h: n.nvmlDeviceGetRemappedRows(h),
    "ecc": lambda n, h: n.nvmlDeviceGetTotalEccErrors(h, 0, 0),
    "margin": lambda n, h: n.nvmlDeviceGetMarginTemperature(h),
    "serial": lambda n, h: n.nvmlDeviceGetSerial(h),
    "utilisation": lambda n, h: n.nvmlDeviceGetUtilizationRates(h),
    "energy": lambda n, h: n.nvmlDeviceGetTotalEnergyConsumption(h),
}


@pytest.mark.parametrize("model", MODELS)
def test_a_model_refuses_exactly_what_it_lacks(driver: FakeDriver, nvml: Any, model: str) -> None:
    driver.gpus(1, model=model)
    nvml.nvmlShutdown()
    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    refused = []
    for feature, read in FEATURES.items():
        try:
            read(nvml, handle)
        except nvml.NVMLError_NotSupported:
            refused.append(feature)
    assert sorted(refused) == sorted(LACKS[model])
    assert nvml.nvmlDeviceGetName(handle) == MODELS[model].name


def test_counters_of_trouble_are_zero_on_a_healthy_card(driver: FakeDriver, nvml: Any) -> None:
    ids = [nvml.NVML_FI_DEV_PCIE_COUNT_NAKS_SENT, nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS]
    answers = {}
    for model in ("A100", "H100", "B200"):
        driver.gpus(1, model=model)
        nvml.nvmlShutdown()
        nvml.nvmlInit()
        values = nvml.nvmlDeviceGetFieldValues(nvml.nvmlDeviceGetHandleByIndex(0), ids)
        answers[model] = [value.nvmlReturn or value.value.ullVal for value in values]
    refused = nvml.NVML_ERROR_NOT_SUPPORTED
    assert answers == {"A100": [refused, refused], "H100": [0, refused], "B200": [0, 0]}


def test_a_text_taken_away_is_refused(driver: FakeDriver, nvml: Any) -> None:
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    driver.set(0, serial="  spaces and\nlines  ")
    assert nvml.nvmlDeviceGetSerial(handle) == "  spaces and\nlines  "
    driver.set(0, serial=None)
    with pytest.raises(nvml.NVMLError_NotSupported):
        nvml.nvmlDeviceGetSerial(handle)
