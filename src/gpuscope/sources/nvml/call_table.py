"""What is asked of a GPU, call by call: a table of tier, call, and the reading each part of the answer becomes.

Calls that need a buffer of ours or a memory of their own (samples, processes, GPM, field values) are in their
own modules. Several asks in one row are alternatives, newest first: the first that is answered counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final
from uuid import UUID

from gpuscope.readings import ABSENT
from gpuscope.sources import Tier
from gpuscope.sources.nvml.driver_calls import Ask, Gate

Label = str | tuple[str, ...] | None
Convert = Callable[[Any], Any]

NOT_AVAILABLE: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})
"""What the driver writes into a number that it does not have."""

FABRIC_COMPLETED: Final = 3


@dataclass(frozen=True, slots=True)
class Give:
    """One reading out of an answer: an attribute of Device or MigInstance, with a label where it has one."""

    field: str
    convert: Convert
    label: Label = None


@dataclass(frozen=True, slots=True)
class Row:
    tier: Tier
    asks: tuple[Ask, ...]
    gives: tuple[Give, ...]


def put(values: dict[str, Any], field: str, label: Label, value: Any) -> None:
    if value is ABSENT:
        return
    if label is None:
        values[field] = value
    else:
        values.setdefault(field, {})[label] = value


def read_rows(gate: Gate, rows: Iterable[Row], values: dict[str, Any]) -> None:
    for row in rows:
        for ask in row.asks:
            raw = gate.answer(ask)
            if raw is not ABSENT:
                for give in row.gives:
                    put(values, give.field, give.label, give.convert(raw))
                break
            if gate.is_stuck(ask):
                break  # an older call would answer with a number of another meaning


def as_is(raw: Any) -> Any:
    return ABSENT if raw in NOT_AVAILABLE else float(raw)


def times(factor: float) -> Convert:
    return lambda raw: ABSENT if raw in NOT_AVAILABLE else float(raw * factor)


def divided_by(divisor: float) -> Convert:
    # Dividing, where the unit is a thousandth: 0.001 is no binary fraction, and 71234 * 0.001 is not 71.234.
    return lambda raw: ABSENT if raw in NOT_AVAILABLE else raw / divisor


percent: Final = divided_by(100.0)
megahertz: Final = times(1e6)
milliwatts: Final = divided_by(1000.0)


def part(name: str, convert: Convert = as_is) -> Convert:
    """A member of the structure that was answered."""
    get = attrgetter(name)
    return lambda raw: convert(get(raw))


def item(position: int, convert: Convert = as_is) -> Convert:
    """An element of the list that was answered."""
    get = itemgetter(position)
    return lambda raw: convert(get(raw))


def _known_state(raw: int) -> Any:
    return float(raw) if 0 <= raw <= 15 else ABSENT  # 32 is "unknown"


def _reserved(raw: Any) -> Any:
    return as_is(getattr(raw, "reserved", 0xFFFFFFFF))  # the older call counts it as used


def _once_registered(convert: Convert) -> Convert:
    """The rest of a fabric's answer means something only when its state says "completed"."""
    return lambda raw: convert(raw) if raw.state == FABRIC_COMPLETED else ABSENT


def _uuid_text(raw: Iterable[int]) -> str:
    return str(UUID(bytes=bytes(raw)))


def one(
    tier: Tier, field: str, call: str, *arguments: Any, convert: Convert = as_is, label: Label = None
) -> Row:
    return Row(tier, ((call, arguments),), (Give(field, convert, label),))


FAST, MEDIUM, SLOW = Tier.FAST, Tier.MEDIUM, Tier.SLOW
CLOCKS: Final = {"graphics": 0, "sm": 1, "memory": 2, "video": 3}
MEMORY_V2: Final = 0x02000028  # nvmlMemory_v2: "used" without what the driver keeps for itself
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

PART_ROWS: Final = (
    Row(
        FAST,
        (("nvmlDeviceGetMemoryInfo", (MEMORY_V2,)), ("nvmlDeviceGetMemoryInfo", ())),
        (
            Give("memory_total_bytes", part("total")),
            Give("memory_used_bytes", part("used")),
            Give("memory_free_bytes", part("free")),
            Give("memory_reserved_bytes", _reserved),
        ),
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetBAR1MemoryInfo", ()),),
        (Give("bar1_total_bytes", part("bar1Total")), Give("bar1_used_bytes", part("bar1Used"))),
    ),
    *(
        one(
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
"""What a MIG instance has as well."""

DEVICE_ROWS: Final = (
    *PART_ROWS,
    Row(
        FAST,
        (("nvmlDeviceGetUtilizationRates", ()),),
        (
            Give("utilization_ratio", part("gpu", percent)),
            Give("memory_utilization_ratio", part("memory", percent)),
        ),
    ),
    one(FAST, "encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", convert=item(0, percent)),
    one(FAST, "decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", convert=item(0, percent)),
    one(FAST, "power_watts", "nvmlDeviceGetPowerUsage", convert=milliwatts),
    *(
        one(FAST, "clock_hertz", "nvmlDeviceGetClockInfo", clock_id, convert=megahertz, label=clock)
        for clock, clock_id in CLOCKS.items()
    ),
    one(FAST, "performance_state", "nvmlDeviceGetPerformanceState", convert=_known_state),
    Row(
        FAST,
        (
            ("nvmlDeviceGetCurrentClocksEventReasons", ()),
            ("nvmlDeviceGetCurrentClocksThrottleReasons", ()),
        ),
        (Give("throttle_reasons", int),),
    ),
    Row(
        FAST,
        (("nvmlDeviceGetTemperatureV", (0,)), ("nvmlDeviceGetTemperature", (0,))),
        (Give("temperature_celsius", as_is, "gpu"),),
    ),
    Row(
        FAST,
        (("nvmlDeviceGetMigMode", ()),),
        (Give("mig_enabled", item(0)), Give("mig_pending", item(1))),
    ),
    one(MEDIUM, "jpeg_utilization_ratio", "nvmlDeviceGetJpgUtilization", convert=item(0, percent)),
    one(MEDIUM, "ofa_utilization_ratio", "nvmlDeviceGetOfaUtilization", convert=item(0, percent)),
    Row(
        MEDIUM,
        (("nvmlDeviceGetEncoderStats", ()),),
        (
            Give("encoder_sessions", item(0)),
            Give("encoder_frames_per_second", item(1)),
            Give("encoder_latency_seconds", item(2, divided_by(1e6))),
        ),
    ),
    one(MEDIUM, "temperature_margin_celsius", "nvmlDeviceGetMarginTemperature", convert=float),
    one(MEDIUM, "pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration"),
    one(MEDIUM, "pcie_link_generation_max", "nvmlDeviceGetMaxPcieLinkGeneration"),
    one(MEDIUM, "pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth"),
    one(MEDIUM, "pcie_link_width_max", "nvmlDeviceGetMaxPcieLinkWidth"),
    one(MEDIUM, "pcie_replays", "nvmlDeviceGetPcieReplayCounter"),
    # The driver watches the bus for 20 ms per call.
    one(MEDIUM, "pcie_bytes_per_second", "nvmlDeviceGetPcieThroughput", 0, convert=times(1000), label="tx"),
    one(MEDIUM, "pcie_bytes_per_second", "nvmlDeviceGetPcieThroughput", 1, convert=times(1000), label="rx"),
    *(
        one(
            SLOW,
            "temperature_threshold_celsius",
            "nvmlDeviceGetTemperatureThreshold",
            threshold_id,
            label=threshold,
        )
        for threshold, threshold_id in THRESHOLDS.items()
    ),
    *(
        one(SLOW, "power_limit_watts", f"nvmlDeviceGet{call}", convert=milliwatts, label=limit)
        for limit, call in {
            "current": "PowerManagementLimit",
            "enforced": "EnforcedPowerLimit",
            "default": "PowerManagementDefaultLimit",
        }.items()
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetPowerManagementLimitConstraints", ()),),
        (
            Give("power_limit_watts", item(0, milliwatts), "min"),
            Give("power_limit_watts", item(1, milliwatts), "max"),
        ),
    ),
    *(
        one(SLOW, "clock_max_hertz", "nvmlDeviceGetMaxClockInfo", clock_id, convert=megahertz, label=clock)
        for clock, clock_id in CLOCKS.items()
    ),
    *(
        one(
            SLOW,
            "clock_application_hertz",
            "nvmlDeviceGetApplicationsClock",
            CLOCKS[clock],
            convert=megahertz,
            label=clock,
        )
        for clock in ("graphics", "memory")
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetEccMode", ()),),
        (Give("ecc_enabled", item(0)), Give("ecc_pending", item(1))),
    ),
    *(
        one(
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
    Row(
        SLOW,
        (("nvmlDeviceGetSramEccErrorStatus", ()),),
        (
            Give("ecc_sram_errors", part("volatileUncParity"), ("parity", "volatile")),
            Give("ecc_sram_errors", part("volatileUncSecDed"), ("sec_ded", "volatile")),
            Give("ecc_sram_errors", part("aggregateUncParity"), ("parity", "aggregate")),
            Give("ecc_sram_errors", part("aggregateUncSecDed"), ("sec_ded", "aggregate")),
            Give("ecc_sram_sources", part("aggregateUncBucketL2"), "l2"),
            Give("ecc_sram_sources", part("aggregateUncBucketSm"), "sm"),
            Give("ecc_sram_sources", part("aggregateUncBucketMcu"), "microcontroller"),
            Give("ecc_sram_sources", part("aggregateUncBucketPcie"), "pcie"),
            Give("ecc_sram_sources", part("aggregateUncBucketOther"), "other"),
            Give("ecc_sram_threshold_exceeded", part("bThresholdExceeded")),
        ),
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetRowRemapperHistogram", ()),),
        tuple(
            Give("row_remap_banks", part(availability), availability)
            for availability in ("max", "high", "partial", "low", "none")
        ),
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetRemappedRows_v2", ()),),
        (
            Give("remapped_rows_inactive", part("corrInactiveRemaps"), "correctable"),
            Give("remapped_rows_inactive", part("uncInactiveRemaps"), "uncorrectable"),
        ),
    ),
    one(SLOW, "compute_mode", "nvmlDeviceGetComputeMode"),
    one(SLOW, "persistence_mode", "nvmlDeviceGetPersistenceMode"),
    one(SLOW, "display_active", "nvmlDeviceGetDisplayActive"),
    one(SLOW, "display_attached", "nvmlDeviceGetDisplayMode"),
    one(SLOW, "accounting_enabled", "nvmlDeviceGetAccountingMode"),
    one(SLOW, "c2c_enabled", "nvmlDeviceGetC2cModeInfoV", convert=part("isC2cEnabled")),
    one(SLOW, "accounting_buffer_size", "nvmlDeviceGetAccountingBufferSize"),
    one(SLOW, "pcie_link_generation_gpu_max", "nvmlDeviceGetGpuMaxPcieLinkGeneration"),
    Row(
        SLOW,
        (
            ("nvmlDeviceGetSupportedClocksEventReasons", ()),
            ("nvmlDeviceGetSupportedClocksThrottleReasons", ()),
        ),
        (Give("throttle_reasons_supported", int),),
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetGspFirmwareMode", ()),),
        (Give("gsp_firmware", item(0), "current"), Give("gsp_firmware", item(1), "default")),
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetConfComputeProtectedMemoryUsage", ()),),
        tuple(Give("protected_memory_bytes", part(kind), kind) for kind in ("total", "used", "free")),
    ),
    Row(
        SLOW,
        (("nvmlDeviceGetGpuFabricInfoV", ()), ("nvmlDeviceGetGpuFabricInfo", ())),
        (
            Give("fabric_state", part("state")),
            Give("fabric_status", _once_registered(part("status"))),
            Give("fabric_clique", _once_registered(part("cliqueId"))),
            Give("fabric_cluster", _once_registered(part("clusterUuid", _uuid_text))),
        ),
    ),
)


def fan_rows(fans: int) -> tuple[Row, ...]:
    return tuple(
        row
        for fan in range(fans)
        for row in (
            one(
                MEDIUM,
                "fan_speed_ratio",
                "nvmlDeviceGetFanSpeed_v2",
                fan,
                convert=percent,
                label=str(fan),
            ),
            one(MEDIUM, "fan_rpm", "nvmlDeviceGetFanSpeedRPM", fan, label=str(fan)),
        )
    )


def nvlink_rows(links: int) -> tuple[Row, ...]:
    return tuple(
        one(MEDIUM, "nvlink_up", "nvmlDeviceGetNvLinkState", link, label=str(link)) for link in range(links)
    )
