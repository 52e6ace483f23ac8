"""DCGM's field ids: the kind of value and the reading that each field corresponds to.

The DCGM source converts fields to readings with `FIELD_READINGS`; the DCGM families convert readings to field
values with the same rows, so the two cannot disagree. A field without a row has no reading and is available
only as DCGM printed it (`NvidiaValues.dcgm_fields`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from gpuscope.vendors.nvidia.dcgm_table import DCGM_TABLE

MIB: Final = 1048576.0
NO_FIELD: Final = "-"

PROFILING_IDS: Final = range(1000, 1100)
"""Fields of the profiling module, which DCGM may refuse while all other fields work."""

ENTITY_NUMBER_ID: Final = 0
"""The key of DCGM's own number for a GPU or instance in `NvidiaValues.dcgm_fields`; DCGM has no field 0."""

P2P_BITMAP_ID: Final = 64
"""One bit per GPU that is reachable over NVLink; the closest field to dcgm-exporter's `DCGM_EXP_P2P_STATUS`."""

GPU_LEVELS: Final = frozenset({0, 1, 2, 4, 5})
"""Levels of the fields that dcgm-exporter reads: machine, GPU, vGPU, GPU instance, compute instance."""


@dataclass(frozen=True, slots=True)
class DcgmField:
    """`kind`: i integer, d double, s text, b binary. `tag` is the long name in `dcgmi dmon -l`."""

    id: int
    kind: str
    level: int
    short_name: str
    tag: str


@cache
def dcgm_fields() -> dict[int, DcgmField]:
    """Every field by id, in order of id."""
    return {
        int(id_): DcgmField(int(id_), kind, int(level), short, tag)
        for id_, kind, level, short, tag, *_ in _rows()
        if kind != NO_FIELD
    }


@cache
def names_by_id() -> dict[int, tuple[str, ...]]:
    """All names of each field, newest first: DCGM 4.6 renamed most fields and kept the old names as aliases."""
    return {int(row[0]): tuple(map(_full_name, row[5:])) for row in _rows() if len(row) > 5}


@cache
def ids_by_name() -> dict[str, int]:
    return {name: field_id for field_id, names in names_by_id().items() for name in names}


def _rows() -> Iterator[list[str]]:
    return (line.split() for line in DCGM_TABLE.splitlines())


def _full_name(name: str) -> str:
    return name if name.startswith("dcgm_") else "DCGM_FI_" + name


def kind_of(field_id: int) -> str:
    """Assumes an integer for a field newer than the table: four of five fields are integers."""
    field = dcgm_fields().get(field_id)
    return field.kind if field is not None else "i"


@dataclass(frozen=True, slots=True)
class FieldReading:
    """`reading` is an attribute of a reading, with a key if the attribute is a mapping."""

    id: int
    reading: str
    unit: float = 1.0  # DCGM's unit in base units: 1 MHz is 1e6 hertz


FIELD_READINGS: Final = (
    FieldReading(55, "minor_number"),
    FieldReading(65, "compute_mode"),
    FieldReading(66, "persistence_mode"),
    FieldReading(67, "mig_enabled"),
    FieldReading(90, "bar1_total_bytes", MIB),
    FieldReading(92, "bar1_used_bytes", MIB),
    FieldReading(100, "clock_hertz.sm", 1e6),
    FieldReading(101, "clock_hertz.memory", 1e6),
    FieldReading(102, "clock_hertz.video", 1e6),
    FieldReading(110, "clock_application_hertz.graphics", 1e6),
    FieldReading(111, "clock_application_hertz.memory", 1e6),
    FieldReading(112, "throttle_mask"),
    FieldReading(113, "clock_max_hertz.sm", 1e6),
    FieldReading(114, "clock_max_hertz.memory", 1e6),
    FieldReading(115, "clock_max_hertz.video", 1e6),
    FieldReading(140, "temperature_celsius.memory"),
    FieldReading(150, "temperature_celsius.gpu"),
    FieldReading(151, "temperature_threshold_celsius.memory_max"),
    FieldReading(152, "temperature_threshold_celsius.gpu_max"),
    FieldReading(153, "temperature_margin_celsius"),
    FieldReading(155, "power_watts"),
    FieldReading(156, "energy_joules", 1e-3),
    FieldReading(157, "power_instant_watts"),
    FieldReading(158, "temperature_threshold_celsius.slowdown"),
    FieldReading(159, "temperature_threshold_celsius.shutdown"),
    FieldReading(160, "power_limit_watts.current"),
    FieldReading(161, "power_limit_watts.min"),
    FieldReading(162, "power_limit_watts.max"),
    FieldReading(163, "power_limit_watts.default"),
    FieldReading(164, "power_limit_watts.enforced"),
    FieldReading(190, "performance_state"),
    FieldReading(191, "fan_speed_ratio.0", 0.01),
    FieldReading(200, "pcie_bytes_per_second.tx", 1e3),
    FieldReading(201, "pcie_bytes_per_second.rx", 1e3),
    FieldReading(202, "pcie_replays"),
    FieldReading(203, "utilization_ratio", 0.01),
    FieldReading(204, "memory_utilization_ratio", 0.01),
    FieldReading(206, "encoder_utilization_ratio", 0.01),
    FieldReading(207, "decoder_utilization_ratio", 0.01),
    FieldReading(235, "pcie_link_generation_max"),
    FieldReading(236, "pcie_link_width_max"),
    FieldReading(237, "pcie_link_generation"),
    FieldReading(238, "pcie_link_width"),
    FieldReading(240, "violation_seconds.power", 1e-9),
    FieldReading(241, "violation_seconds.thermal", 1e-9),
    FieldReading(242, "violation_seconds.sync_boost", 1e-9),
    FieldReading(243, "violation_seconds.board_limit", 1e-9),
    FieldReading(244, "violation_seconds.low_utilization", 1e-9),
    FieldReading(245, "violation_seconds.reliability", 1e-9),
    FieldReading(246, "violation_seconds.total_app_clocks", 1e-9),
    FieldReading(247, "violation_seconds.total_base_clocks", 1e-9),
    FieldReading(250, "memory_total_bytes", MIB),
    FieldReading(251, "memory_free_bytes", MIB),
    FieldReading(252, "memory_used_bytes", MIB),
    FieldReading(253, "memory_reserved_bytes", MIB),
    FieldReading(300, "ecc_enabled"),
    FieldReading(301, "ecc_pending"),
    FieldReading(310, "ecc_errors.corrected.volatile"),
    FieldReading(311, "ecc_errors.uncorrected.volatile"),
    FieldReading(312, "ecc_errors.corrected.aggregate"),
    FieldReading(313, "ecc_errors.uncorrected.aggregate"),
    FieldReading(385, "row_remap_banks.max"),
    FieldReading(386, "row_remap_banks.high"),
    FieldReading(387, "row_remap_banks.partial"),
    FieldReading(388, "row_remap_banks.low"),
    FieldReading(389, "row_remap_banks.none"),
    FieldReading(390, "retired_pages.single_bit"),
    FieldReading(391, "retired_pages.double_bit"),
    FieldReading(392, "retired_pages_pending"),
    FieldReading(393, "remapped_rows.uncorrectable"),
    FieldReading(394, "remapped_rows.correctable"),
    FieldReading(395, "row_remap_failed"),
    FieldReading(396, "row_remap_pending"),
    FieldReading(1001, "engine_active_ratio.graphics"),
    FieldReading(1002, "engine_active_ratio.sm"),
    FieldReading(1003, "sm_occupancy_ratio"),
    FieldReading(1004, "engine_active_ratio.tensor"),
    FieldReading(1005, "engine_active_ratio.dram"),
    FieldReading(1006, "engine_active_ratio.fp64"),
    FieldReading(1007, "engine_active_ratio.fp32"),
    FieldReading(1008, "engine_active_ratio.fp16"),
    FieldReading(1009, "profiled_pcie_bytes_per_second.tx"),
    FieldReading(1010, "profiled_pcie_bytes_per_second.rx"),
    FieldReading(1011, "profiled_nvlink_bytes_per_second.tx"),
    FieldReading(1012, "profiled_nvlink_bytes_per_second.rx"),
    FieldReading(1016, "engine_active_ratio.integer"),
)

_ECC_PLACES: Final = ("l1_cache", "l2_cache", "device_memory", "register_file", "texture_memory")
_ECC_ERRORS: Final = ("corrected", "uncorrected")


def _link_ids(first: int, of_link_6: int, of_link_15: int) -> dict[int, int]:
    """Field id -> link. DCGM assigned ids to links 0 to 5 first, then 12 to 14, 6 to 11 and 15 to 17."""
    ids = {first + link: link for link in range(6)}
    ids |= {first + 6 + number: 12 + number for number in range(3)}
    ids |= {of_link_6 + number: 6 + number for number in range(6)}
    return ids | {of_link_15 + number: 15 + number for number in range(3)}


NVLINK_ERROR_IDS: Final = {
    field_id: (str(link), error)
    for error, firsts in {
        "crc_flit": (400, 451, 481),
        "crc_data": (410, 457, 484),
        "replay": (420, 463, 487),
        "recovery": (430, 469, 491),
    }.items()
    for field_id, link in _link_ids(*firsts).items()
}
"""Field id -> (link, error)."""

NVLINK_RATE_IDS: Final = {
    **{field_id: (str(link), "") for field_id, link in _link_ids(440, 475, 494).items()},
    **{825 + link: (str(link), "tx") for link in range(18)},
    **{879 + link: (str(link), "rx") for link in range(18)},
    449: ("", ""),
    843: ("", "tx"),
    897: ("", "rx"),
}
"""Throughput computed from the driver's counters: field id -> (link, direction); empty means all."""

REQUESTED_FIELD_READINGS: Final = (
    FieldReading(58, "pci_ids.device"),
    FieldReading(59, "pci_ids.sub_device"),
    *(FieldReading(70 + word, f"cpu_affinity.{word}") for word in range(4)),
    *(FieldReading(86 + word, f"memory_affinity.{word}") for word in range(4)),
    *(
        FieldReading(first + 2 * place + error, f"ecc_location_errors.{name}.{lifetime}.{location}")
        for first, lifetime in ((314, "volatile"), (324, "aggregate"))
        for place, location in enumerate(_ECC_PLACES)
        for error, name in enumerate(_ECC_ERRORS)
    ),
    *(
        FieldReading(field_id, f"link_errors.{link}.{error}")
        for field_id, (link, error) in NVLINK_ERROR_IDS.items()
    ),
    FieldReading(1013, "tensor_pipe_active_ratio.imma"),
    FieldReading(1014, "tensor_pipe_active_ratio.hmma"),
    FieldReading(1015, "tensor_pipe_active_ratio.dfma"),
    *(
        FieldReading(1040 + 2 * link + number, f"profiled_nvlink_link_bytes_per_second.{link}.{direction}")
        for link in range(18)
        for number, direction in enumerate(("tx", "rx"))
    ),
)
"""Fields that the families export from readings; the DCGM source requests them only for a counters file."""

TEXT_READINGS: Final = {
    50: "model",
    51: "brand",
    53: "serial",
    56: "inforom_versions.oem",
    57: "pci_bus_id",
    80: "inforom_versions.ecc",
    81: "inforom_versions.power",
    82: "inforom_versions.image",
    85: "vbios_version",
}
"""Text fields: field id -> attribute of `Device`."""

DRIVER_READINGS: Final = {1: "driver_version", 2: "library_versions.nvml"}
"""Fields of the machine, which every GPU's row repeats: field id -> attribute of `Driver`."""

REQUESTED_DRIVER_READINGS: Final = {
    4: "gpu_count",
    5: "library_versions.cuda",
    74: "modes.confidential_compute",
}
"""As `DRIVER_READINGS`, but read only on request."""

_BLANK_TEXT: Final = frozenset({"<<<NULL>>>", "<<<NOT_FOUND>>>", "<<<NOT_SUPPORTED>>>", "<<<NOT_PERM>>>"})
_BLANK_INTEGERS: Final = frozenset(
    {base + offset for base in (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0) for offset in range(4)}
)
_BLANK_DOUBLES: Final = frozenset({140737488355328.0 + offset for offset in range(4)})


def is_blank(value: int | float | str) -> bool:
    """Whether this is DCGM's mark for "no value": not read, not found, not supported, not permitted."""
    if isinstance(value, str):
        return value in _BLANK_TEXT
    return value in (_BLANK_INTEGERS if isinstance(value, int) else _BLANK_DOUBLES)
