"""dcgm-exporter's lists of counters, and the table of all DCGM fields.

A counter is a row of a counters file: exported name, Prometheus type, help. The built-in lists replace the
files that dcgm-exporter installs. Help texts and types are compatibility contracts, even if wrong: NVLink
"counters" are rates.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.vendors.nvidia.dcgm_fields import (
    FIELD_READINGS,
    GPU_LEVELS,
    P2P_BITMAP_ID,
    REQUESTED_FIELD_READINGS,
    TEXT_READINGS,
    dcgm_fields,
    ids_by_name,
    names_by_id,
)

XID_ID = 230
CLOCK_EVENTS_ID = 112

EXPORTER_COUNTERS = {
    "DCGM_EXP_XID_ERRORS_COUNT": 9001,
    "DCGM_EXP_CLOCK_EVENTS_COUNT": 9002,
    "DCGM_EXP_GPU_HEALTH_STATUS": 9003,
    "DCGM_EXP_P2P_STATUS": 9004,
}
"""dcgm-exporter's own counters with its ids, which define their order."""

KIND_NAMES = {"i": "integer", "d": "double", "s": "text", "b": "binary"}


@dataclass(frozen=True, slots=True, order=True)
class Counter:
    """One metric or label of the family. Counters are sorted by these attributes in this order."""

    id: int
    name: str
    type: str
    help: str

    @property
    def is_label(self) -> bool:
        return self.type == "label"

    @property
    def is_exporters_own(self) -> bool:
        return self.name in EXPORTER_COUNTERS


def counter_id(name: str) -> int | None:
    """The id of a DCGM field name, old or new, or of one of dcgm-exporter's own counters."""
    return ids_by_name().get(name, EXPORTER_COUNTERS.get(name))


def _counters(*rows: tuple[str, str, str]) -> tuple[Counter, ...]:
    ids = {**ids_by_name(), **EXPORTER_COUNTERS}
    return tuple(Counter(ids[name], name, kind, help_text) for name, kind, help_text in rows)


DEFAULT_COUNTERS = _counters(
    ("DCGM_FI_DEV_SM_CLOCK", "gauge", "SM clock frequency (in MHz)."),
    ("DCGM_FI_DEV_MEM_CLOCK", "gauge", "Memory clock frequency (in MHz)."),
    ("DCGM_FI_DEV_MEMORY_TEMP", "gauge", "Memory temperature (in C)."),
    ("DCGM_FI_DEV_GPU_TEMP", "gauge", "GPU temperature (in C)."),
    ("DCGM_FI_DEV_POWER_USAGE", "gauge", "Power draw (in W)."),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter", "Total energy consumption since boot (in mJ)."),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "counter", "Total number of PCIe retries."),
    ("DCGM_FI_DEV_GPU_UTIL", "gauge", "GPU utilization (in %)."),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "gauge", "Memory utilization (in %)."),
    ("DCGM_FI_DEV_ENC_UTIL", "gauge", "Encoder utilization (in %)."),
    ("DCGM_FI_DEV_DEC_UTIL", "gauge", "Decoder utilization (in %)."),
    ("DCGM_FI_DEV_XID_ERRORS", "gauge", "Value of the last XID error encountered."),
    ("DCGM_FI_DEV_FB_FREE", "gauge", "Framebuffer memory free (in MiB)."),
    ("DCGM_FI_DEV_FB_USED", "gauge", "Framebuffer memory used (in MiB)."),
    ("DCGM_FI_DEV_FB_RESERVED", "gauge", "Framebuffer memory reserved (in MiB)."),
    (
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL",
        "counter",
        "Total number of NVLink bandwidth counters for all lanes.",
    ),
    ("DCGM_FI_DEV_VGPU_LICENSE_STATUS", "gauge", "vGPU License status"),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for uncorrectable errors"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "counter", "Number of remapped rows for correctable errors"),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "gauge", "Whether remapping of rows has failed"),
    ("DCGM_FI_DRIVER_VERSION", "label", "Driver Version"),
    ("DCGM_FI_PROF_GR_ENGINE_ACTIVE", "gauge", "Ratio of time the graphics engine is active."),
    ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active."),
    (
        "DCGM_FI_PROF_DRAM_ACTIVE",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data.",
    ),
    (
        "DCGM_FI_PROF_PCIE_TX_BYTES",
        "gauge",
        "The rate of data transmitted over the PCIe bus - including both protocol headers and data payloads"
        " - in bytes per second.",
    ),
    (
        "DCGM_FI_PROF_PCIE_RX_BYTES",
        "gauge",
        "The rate of data received over the PCIe bus - including both protocol headers and data payloads"
        " - in bytes per second.",
    ),
)
"""default-counters.csv and dcp-metrics-included.csv, which have been the same since 4.8.0."""

OPT_IN_COUNTERS = _counters(
    ("DCGM_FI_PROF_PCIE_TX_BYTES", "counter", "Total number of bytes transmitted through PCIe TX via NVML."),
    ("DCGM_FI_PROF_PCIE_RX_BYTES", "counter", "Total number of bytes received through PCIe RX via NVML."),
    ("DCGM_FI_DEV_POWER_VIOLATION", "counter", "Throttling duration due to power constraints (in ns)."),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", "counter", "Throttling duration due to thermal constraints (in ns)."),
    (
        "DCGM_FI_DEV_SYNC_BOOST_VIOLATION",
        "counter",
        "Throttling duration due to sync-boost constraints (in ns).",
    ),
    (
        "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION",
        "counter",
        "Throttling duration due to board limit constraints (in ns).",
    ),
    ("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "counter", "Throttling duration due to low utilization (in ns)."),
    (
        "DCGM_FI_DEV_RELIABILITY_VIOLATION",
        "counter",
        "Throttling duration due to reliability constraints (in ns).",
    ),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", "counter", "reported clock events"),
    ("DCGM_EXP_XID_ERRORS_COUNT", "counter", "reported XIDs during last window"),
    ("DCGM_EXP_GPU_HEALTH_STATUS", "counter", "DCGM reported health status"),
    ("DCGM_EXP_P2P_STATUS", "counter", "P2P NvLink status"),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", "counter", "Total number of single-bit volatile ECC errors."),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", "counter", "Total number of double-bit volatile ECC errors."),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", "counter", "Total number of single-bit persistent ECC errors."),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", "counter", "Total number of double-bit persistent ECC errors."),
    ("DCGM_FI_DEV_RETIRED_SBE", "counter", "Total number of retired pages due to single-bit errors."),
    ("DCGM_FI_DEV_RETIRED_DBE", "counter", "Total number of retired pages due to double-bit errors."),
    ("DCGM_FI_DEV_RETIRED_PENDING", "counter", "Total number of pages pending retirement."),
    (
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "counter",
        "Total number of NVLink flow-control CRC errors.",
    ),
    ("DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink data CRC errors."),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink retries."),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", "counter", "Total number of NVLink recovery errors."),
    (
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_L0",
        "counter",
        "The number of bytes of active NVLink rx or tx data including both header and payload.",
    ),
    ("DCGM_FI_NVML_VERSION", "label", "NVML Version"),
    ("DCGM_FI_DEV_BRAND", "label", "Device Brand"),
    ("DCGM_FI_DEV_SERIAL", "label", "Device Serial Number"),
    ("DCGM_FI_DEV_OEM_INFOROM_VER", "label", "OEM inforom version"),
    ("DCGM_FI_DEV_ECC_INFOROM_VER", "label", "ECC inforom version"),
    ("DCGM_FI_DEV_POWER_INFOROM_VER", "label", "Power management object inforom version"),
    ("DCGM_FI_DEV_INFOROM_IMAGE_VER", "label", "Inforom image version"),
    ("DCGM_FI_DEV_VBIOS_VERSION", "label", "VBIOS version of the device"),
    ("DCGM_FI_PROF_SM_ACTIVE", "gauge", "The ratio of cycles an SM has at least 1 warp assigned."),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "gauge", "The ratio of number of warps resident on an SM."),
    ("DCGM_FI_PROF_PIPE_FP64_ACTIVE", "gauge", "Ratio of cycles the fp64 pipes are active."),
    ("DCGM_FI_PROF_PIPE_FP32_ACTIVE", "gauge", "Ratio of cycles the fp32 pipes are active."),
    ("DCGM_FI_PROF_PIPE_FP16_ACTIVE", "gauge", "Ratio of cycles the fp16 pipes are active."),
)
"""The rows that both files contain as comments."""

OLD_COUNTERS = _counters(
    ("dcgm_sm_clock", "gauge", "SM clock frequency (in MHz)."),
    ("dcgm_memory_clock", "gauge", "Memory clock frequency (in MHz)."),
    ("dcgm_memory_temp", "gauge", "Memory temperature (in C)."),
    ("dcgm_gpu_temp", "gauge", "GPU temperature (in C)."),
    ("dcgm_power_usage", "gauge", "Power draw (in W)."),
    ("dcgm_total_energy_consumption", "counter", "Total energy consumption since boot (in mJ)."),
    ("dcgm_fi_prof_pcie_tx_bytes", "counter", "Total number of bytes transmitted through PCIe TX via NVML."),
    ("dcgm_fi_prof_pcie_rx_bytes", "counter", "Total number of bytes received through PCIe RX via NVML."),
    ("dcgm_pcie_replay_counter", "counter", "Total number of PCIe retries."),
    ("dcgm_gpu_utilization", "gauge", "GPU utilization (in %)."),
    ("dcgm_mem_copy_utilization", "gauge", "Memory utilization (in %)."),
    ("dcgm_enc_utilization", "gauge", "Encoder utilization (in %)."),
    ("dcgm_dec_utilization", "gauge", "Decoder utilization (in %)."),
    ("dcgm_xid_errors", "gauge", "Value of the last XID error encountered."),
    ("dcgm_fb_free", "gauge", "Framebuffer memory free (in MiB)."),
    ("dcgm_fb_used", "gauge", "Framebuffer memory used (in MiB)."),
    ("dcgm_nvlink_bandwidth_total", "counter", "Total number of NVLink bandwidth counters for all lanes"),
    ("dcgm_fi_prof_gr_engine_active", "gauge", "Ratio of time the graphics engine is active (in %)."),
    ("dcgm_fi_prof_pipe_tensor_active", "gauge", "Ratio of cycles the tensor (HMMA) pipe is active (in %)."),
    (
        "dcgm_fi_prof_dram_active",
        "gauge",
        "Ratio of cycles the device memory interface is active sending or receiving data (in %).",
    ),
    (
        "dcgm_fi_prof_pcie_tx_bytes",
        "counter",
        "The number of bytes of active pcie tx data including both header and payload.",
    ),
    (
        "dcgm_fi_prof_pcie_rx_bytes",
        "counter",
        "The number of bytes of active pcie rx data including both header and payload.",
    ),
)
"""1.x-compatibility-metrics.csv; it contains the PCIe counters twice, they are exported once."""

OLD_OPT_IN_COUNTERS = _counters(
    ("dcgm_power_violation", "counter", "Throttling duration due to power constraints (in ns)."),
    ("dcgm_thermal_violation", "counter", "Throttling duration due to thermal constraints (in ns)."),
    ("dcgm_sync_boost_violation", "counter", "Throttling duration due to sync-boost constraints (in ns)."),
    ("dcgm_board_limit_violation", "counter", "Throttling duration due to board limit constraints (in ns)."),
    ("dcgm_low_util_violation", "counter", "Throttling duration due to low utilization (in ns)."),
    ("dcgm_reliability_violation", "counter", "Throttling duration due to reliability constraints (in ns)."),
    ("dcgm_ecc_sbe_volatile_total", "counter", "Total number of single-bit volatile ECC errors."),
    ("dcgm_ecc_dbe_volatile_total", "counter", "Total number of double-bit volatile ECC errors."),
    ("dcgm_ecc_sbe_aggregate_total", "counter", "Total number of single-bit persistent ECC errors."),
    ("dcgm_ecc_dbe_aggregate_total", "counter", "Total number of double-bit persistent ECC errors."),
    ("dcgm_retired_pages_sbe", "counter", "Total number of retired pages due to single-bit errors."),
    ("dcgm_retired_pages_dbe", "counter", "Total number of retired pages due to double-bit errors."),
    ("dcgm_retired_pages_pending", "counter", "Total number of pages pending retirement."),
    ("dcgm_nvlink_flit_crc_error_count_total", "counter", "Total number of NVLink flow-control CRC errors."),
    ("dcgm_nvlink_data_crc_error_count_total", "counter", "Total number of NVLink data CRC errors."),
    ("dcgm_nvlink_replay_error_count_total", "counter", "Total number of NVLink retries."),
    ("dcgm_nvlink_recovery_error_count_total", "counter", "Total number of NVLink recovery errors."),
    ("dcgm_fi_prof_sm_active", "gauge", "The ratio of cycles an SM has at least 1 warp assigned (in %)."),
    ("dcgm_fi_prof_sm_occupancy", "gauge", "The ratio of number of warps resident on an SM (in %)."),
)

SHIPPED_FILES = {
    "default-counters.csv": DEFAULT_COUNTERS,
    "dcp-metrics-included.csv": DEFAULT_COUNTERS,
    "1.x-compatibility-metrics.csv": OLD_COUNTERS,
}
"""The files dcgm-exporter installs, by name."""


OTHER_READINGS = {
    63: "compute_capability",
    P2P_BITMAP_ID: "p2p_nvlink_status",
    **dict.fromkeys((409, 419, 429, 439), "link_errors"),
}
"""Fields computed from several readings."""


@dataclass(frozen=True, slots=True)
class DcgmFieldRow:
    """A line of `gpuscope fields`: a DCGM field and the reading its value comes from without DCGM."""

    id: int
    tag: str
    short_name: str
    kind: str
    names: tuple[str, ...]  # newest first
    reading: str  # empty: only DCGM has it
    is_of_gpus: bool  # of a GPU or its machine; a counters file may contain no others


def field_rows() -> tuple[DcgmFieldRow, ...]:
    """Every DCGM field in order of id."""
    rows = (*FIELD_READINGS, *REQUESTED_FIELD_READINGS)
    readings = {row.id: row.reading for row in rows} | TEXT_READINGS | OTHER_READINGS
    names = names_by_id()
    return tuple(
        DcgmFieldRow(
            id=field.id,
            tag=field.tag,
            short_name=field.short_name,
            kind=KIND_NAMES[field.kind],
            names=names.get(field.id, ()),
            reading=readings.get(field.id, ""),
            is_of_gpus=field.level in GPU_LEVELS,
        )
        for field in dcgm_fields().values()
    )
