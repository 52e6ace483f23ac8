"""The table of driver calls for a GPU: tier, call, and the readings that each result contains.

Calls that need a buffer or state (samples, processes, GPM, field values) are in their own modules. Several
calls in one row are alternatives, newest first: the first that returns a result is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final
from uuid import UUID

from gpuscope.model.readings import ABSENT
from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCall, DriverCalls

Label = str | tuple[str, ...] | None
Convert = Callable[[Any], Any]

NOT_AVAILABLE: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""The driver's values for "not available"."""

FABRIC_COMPLETED: Final = 3


@dataclass(frozen=True, slots=True)
class CallField:
    """One reading in a call's result: an attribute of Device or Instance, and its label if it has labels."""

    name: str
    convert: Convert
    label: Label = None


@dataclass(frozen=True, slots=True)
class CallRow:
    tier: Tier
    calls: tuple[DriverCall, ...]
    fields: tuple[CallField, ...]


def put(values: dict[str, Any], field: str, label: Label, value: Any) -> None:
    if value is ABSENT:
        return
    if label is None:
        values[field] = value
    else:
        values.setdefault(field, {})[label] = value


def read_rows(calls: DriverCalls, rows: Iterable[CallRow], values: dict[str, Any]) -> None:
    for row in rows:
        for call in row.calls:
            raw = calls.result(call)
            if raw is not ABSENT:
                for field in row.fields:
                    put(values, field.name, field.label, field.convert(raw))
                break
            if calls.is_stuck(call):
                break  # an older call would return a number with a different meaning


def as_is(raw: Any) -> Any:
    return ABSENT if raw in NOT_AVAILABLE else float(raw)


def times(factor: float) -> Convert:
    return lambda raw: ABSENT if raw in NOT_AVAILABLE else float(raw * factor)


def divided_by(divisor: float) -> Convert:
    # Division, because 0.001 has no exact binary form: 71234 * 0.001 is not 71.234.
    return lambda raw: ABSENT if raw in NOT_AVAILABLE else raw / divisor


percent: Final = divided_by(100.0)
megahertz: Final = times(1e6)
milliwatts: Final = divided_by(1000.0)


def member(name: str, convert: Convert = as_is) -> Convert:
    """Converts one member of the returned structure."""
    get = attrgetter(name)
    return lambda raw: convert(get(raw))


def item(position: int, convert: Convert = as_is) -> Convert:
    """Converts one element of the returned list."""
    get = itemgetter(position)
    return lambda raw: convert(get(raw))


def _known_state(raw: int) -> Any:
    return float(raw) if 0 <= raw <= 15 else ABSENT  # 32 means unknown


def _reserved(raw: Any) -> Any:
    return as_is(getattr(raw, "reserved", 0xFFFFFFFF))  # the older call includes it in `used`


def _once_registered(convert: Convert) -> Convert:
    """The other fabric members are valid only after registration is completed."""
    return lambda raw: convert(raw) if raw.state == FABRIC_COMPLETED else ABSENT


def _uuid_text(raw: Iterable[int]) -> str:
    return str(UUID(bytes=bytes(raw)))


def call_row(
    tier: Tier, field: str, call: str, *arguments: Any, convert: Convert = as_is, label: Label = None
) -> CallRow:
    return CallRow(tier, ((call, arguments),), (CallField(field, convert, label),))


FAST, MEDIUM, SLOW = Tier.FAST, Tier.MEDIUM, Tier.SLOW
CLOCKS: Final = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
MEMORY_V2: Final = 0x02000028  # nvmlMemory_v2: `used` excludes the driver's own memory
THRESHOLDS: Final = {"shutdown": 0, "slowdown": 1, "memory_max": 2, "gpu_max": 3}
ECC_ERRORS: Final = {"corrected": 0, "uncorrected": 1}
ECC_LIFETIMES: Final = {"volatile": 0, "aggregate": 1}
ECC_LOCATIONS: Final = {
    "l1_cache": 0,
    "l2_cache": 1,
    "device_memory": 2,
    "register_file": 3,
    "texture_memory": 4,
    "texture_shm": 5,
    "cbu": 6,
    "sram": 7,
}

GPU_OR_INSTANCE_ROWS: Final = (
    CallRow(
        FAST,
        (("nvmlDeviceGetMemoryInfo", (MEMORY_V2,)), ("nvmlDeviceGetMemoryInfo", ())),
        (
            CallField("memory_total_bytes", member("total")),
            CallField("memory_used_bytes", member("used")),
            CallField("memory_free_bytes", member("free")),
            CallField("memory_reserved_bytes", _reserved),
        ),
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetBAR1MemoryInfo", ()),),
        (CallField("bar1_total_bytes", member("bar1Total")), CallField("bar1_used_bytes", member("bar1Used"))),
    ),
    *(
        call_row(
            SLOW,
            "ecc_errors",
            "nvmlDeviceGetTotalEccErrors",
            error_id,
            lifetime_id,
            label=(error, lifetime),
        )
        for error, error_id in ECC_ERRORS.items()
        for lifetime, lifetime_id in ECC_LIFETIMES.items()
    ),
)
"""Rows that GPUs and MIG instances have."""

DEVICE_ROWS: Final = (
    *GPU_OR_INSTANCE_ROWS,
    CallRow(
        FAST,
        (("nvmlDeviceGetUtilizationRates", ()),),
        (
            CallField("utilization_ratio", member("gpu", percent)),
            CallField("memory_utilization_ratio", member("memory", percent)),
        ),
    ),
    call_row(FAST, "encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", convert=item(0, percent)),
    call_row(FAST, "decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", convert=item(0, percent)),
    call_row(FAST, "power_watts", "nvmlDeviceGetPowerUsage", convert=milliwatts),
    *(
        call_row(FAST, "clock_hertz", "nvmlDeviceGetClockInfo", clock_id, convert=megahertz, label=clock)
        for clock, clock_id in CLOCKS.items()
    ),
    call_row(FAST, "performance_state", "nvmlDeviceGetPerformanceState", convert=_known_state),
    CallRow(
        FAST,
        (
            ("nvmlDeviceGetCurrentClocksEventReasons", ()),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
        ),
        (CallField("throttle_mask", int),),
    ),
    CallRow(
        FAST,
        (("nvmlDeviceGetTemperatureV", (0,)), ("nvmlDeviceGetTemperature", (0,))),
        (CallField("temperature_celsius", as_is, "gpu"),),
    ),
    CallRow(
        FAST,
        (("nvmlDeviceGetMigMode", ()),),
        (CallField("mig_enabled", item(0)), CallField("mig_pending", item(1))),
    ),
    call_row(MEDIUM, "jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", convert=item(0, percent)),
    call_row(MEDIUM, "ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", convert=item(0, percent)),
    CallRow(
        MEDIUM,
        (("nvmlDeviceGetEncoderStats", ()),),
        (
            CallField("encoder_sessions", item(0)),
            CallField("encoder_frames_per_second", item(1)),
            CallField("encoder_latency_seconds", item(2, divided_by(1e6))),
        ),
    ),
    call_row(MEDIUM, "temperature_margin_celsius", "nvmlDeviceGetMarginTemperature", convert=float),
    call_row(MEDIUM, "pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    call_row(MEDIUM, "pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    call_row(MEDIUM, "pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    call_row(MEDIUM, "pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    call_row(MEDIUM, "pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    # The driver measures PCIe traffic for 20 ms per call.
    call_row(
        MEDIUM, "pcie_bytes_per_second", "nvmlDeviceGetPcieThroughput", 0, convert=times(1000), label="tx"
    ),
    call_row(
        MEDIUM, "pcie_bytes_per_second", "nvmlDeviceGetPcieThroughput", 1, convert=times(1000), label="rx"
    ),
    *(
        call_row(
            SLOW,
            "temperature_threshold_celsius",
            "nvmlDeviceGetTemperatureThreshold",
            threshold_id,
            label=threshold,
        )
        for threshold, threshold_id in THRESHOLDS.items()
    ),
    *(
        call_row(SLOW, "power_limit_watts", f"nvmlDeviceGet{call}", convert=milliwatts, label=limit)
        for limit, call in {
            "current": "PowerManagementLimit",
            "enforced": "EnforcedPowerLimit",
            "default": "PowerManagementDefaultLimit",
        }.items()
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetPowerManagementLimitConstraints", ()),),
        (
            CallField("power_limit_watts", item(0, milliwatts), "min"),
            CallField("power_limit_watts", item(1, milliwatts), "max"),
        ),
    ),
    *(
        call_row(SLOW, "clock_max_hertz", "nvmlDeviceGetMaxClockInfo", clock_id, convert=megahertz, label=clock)
        for clock, clock_id in CLOCKS.items()
    ),
    *(
        call_row(SLOW, reading, call, CLOCKS[clock], convert=megahertz, label=clock)
        for reading, call in (
            ("clock_application_hertz", "nvmlDeviceGetApplicationsClock"),
            ("clock_default_application_hertz", "nvmlDeviceGetDefaultApplicationsClock"),
        )
        for clock in ("graphics", "memory")
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetEccMode", ()),),
        (CallField("ecc_enabled", item(0)), CallField("ecc_pending", item(1))),
    ),
    *(
        call_row(
            SLOW,
            "ecc_location_errors",
            "nvmlDeviceGetMemoryErrorCounter",
            error_id,
            lifetime_id,
            location_id,
            label=(error, lifetime, location),
        )
        for error, error_id in ECC_ERRORS.items()
        for lifetime, lifetime_id in ECC_LIFETIMES.items()
        for location, location_id in ECC_LOCATIONS.items()
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetSramEccErrorStatus", ()),),
        (
            CallField("ecc_sram_errors", member("volatileUncParity"), ("parity", "volatile")),
            CallField("ecc_sram_errors", member("volatileUncSecDed"), ("sec_ded", "volatile")),
            CallField("ecc_sram_errors", member("aggregateUncParity"), ("parity", "aggregate")),
            CallField("ecc_sram_errors", member("aggregateUncSecDed"), ("sec_ded", "aggregate")),
            CallField("ecc_sram_sources", member("aggregateUncBucketL2"), "l2"),
            CallField("ecc_sram_sources", member("aggregateUncBucketSm"), "sm"),
            CallField("ecc_sram_sources", member("aggregateUncBucketMcu"), "microcontroller"),
            CallField("ecc_sram_sources", member("aggregateUncBucketPcie"), "pcie"),
            CallField("ecc_sram_sources", member("aggregateUncBucketOther"), "other"),
            CallField("ecc_sram_threshold_exceeded", member("bThresholdExceeded")),
        ),
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetRowRemapperHistogram", ()),),
        tuple(
            CallField("row_remap_banks", member(availability), availability)
            for availability in ("max", "high", "partial", "low", "none")
        ),
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetRemappedRows_v2", ()),),
        (
            CallField("remapped_rows_inactive", member("corrInactiveRemaps"), "correctable"),
            CallField("remapped_rows_inactive", member("uncInactiveRemaps"), "uncorrectable"),
        ),
    ),
    call_row(SLOW, "compute_mode", "nvmlDeviceGetComputeMode"),
    call_row(SLOW, "persistence_mode", "nvmlDeviceGetPersistenceMode"),
    call_row(SLOW, "power_management", "nvmlDeviceGetPowerManagementMode"),
    call_row(SLOW, "display_active", "nvmlDeviceGetDisplayActive"),
    call_row(SLOW, "display_attached", "nvmlDeviceGetDisplayMode"),
    call_row(SLOW, "accounting_enabled", "nvmlDeviceGetAccountingMode"),
    call_row(SLOW, "c2c_enabled", "nvmlDeviceGetC2cModeInfoV", convert=member("isC2cEnabled")),
    call_row(SLOW, "accounting_buffer_size", "nvmlDeviceGetAccountingBufferSize"),
    call_row(SLOW, "pcie_link_generation_gpu_max", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    CallRow(
        SLOW,
        (
            ("nvmlDeviceGetSupportedClocksEventReasons", ()),
            ("nvmlDeviceGetSupportedClocksThrottleReasons", ()),
        ),
        (CallField("throttle_mask_supported", int),),
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetGspFirmwareMode", ()),),
        (CallField("gsp_firmware", item(0), "current"), CallField("gsp_firmware", item(1), "default")),
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetConfComputeProtectedMemoryUsage", ()),),
        tuple(CallField("protected_memory_bytes", member(kind), kind) for kind in ("total", "used", "free")),
    ),
    CallRow(
        SLOW,
        (("nvmlDeviceGetGpuFabricInfoV", ()), ("nvmlDeviceGetGpuFabricInfo", ())),
        (
            CallField("fabric_state", member("state")),
            CallField("fabric_status", _once_registered(member("status"))),
            CallField("fabric_clique", _once_registered(member("cliqueId"))),
            CallField("fabric_cluster", _once_registered(member("clusterUuid", _uuid_text))),
        ),
    ),
)


def fan_rows(fans: int) -> tuple[CallRow, ...]:
    return tuple(
        row
        for fan in range(fans)
        for row in (
            call_row(
                MEDIUM,
                "fan_speed_ratio",
                "nvmlDeviceGetFanSpeed_v2",
                fan,
                convert=percent,
                label=str(fan),
            ),
            call_row(MEDIUM, "fan_rpm", "nvmlDeviceGetFanSpeedRPM", fan, label=str(fan)),
        )
    )


def nvlink_rows(links: int) -> tuple[CallRow, ...]:
    return tuple(
        call_row(MEDIUM, "link_up", "nvmlDeviceGetNvLinkState", link, label=str(link)) for link in range(links)
    )
