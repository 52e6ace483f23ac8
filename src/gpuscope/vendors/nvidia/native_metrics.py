"""Native metrics that only NVIDIA's GPUs have, or that have NVIDIA's words in their names.

Rows as in `agent/families/native/table.py`, in its order; the readings are those of a `Device`, or of its
`NvidiaValues`.
"""

from __future__ import annotations

from typing import Final

from gpuscope.model.native_metric import NativeMetric
from gpuscope.model.native_metric import gpu_counter as _counter
from gpuscope.model.native_metric import gpu_gauge as _gauge

MIG_INFO: Final = NativeMetric(
    "gpuscope_mig_info",
    "info",
    "",
    "A MIG instance, its GPU and its profile; the value is always 1.",
    ("gpu", "uuid", "parent_uuid", "gpu_instance", "compute_instance", "profile"),
)
P2P_STATUS: Final = _gauge(
    "p2p_nvlink_status",
    "vendor_values.p2p_nvlink_status",
    "NVLink P2P access to another GPU: 0 available, else not available because of 1 chipset, 2 GPU, "
    "3 topology, 4 a setting, 5 no support, 6 unknown.",
    "peer",
    unit="status",
)
LINK_METRICS: Final = (
    _gauge("nvlink_up", "link_up", "1 if the NVLink is up.", "link", unit="0 or 1"),
    _counter("nvlink_bytes", "link_bytes", "NVLink traffic over all links.", "direction"),
    _counter("nvlink_link_bytes", "link_bytes_each", "NVLink traffic by link.", "link", "direction"),
    _counter("nvlink_errors", "link_errors", "NVLink errors by link and kind.", "link", "error"),
    _counter(
        "nvlink5_errors",
        "vendor_values.nvlink5_errors",
        "Errors and recoveries of an NVLink 5, by kind; a link has a series once it had any.",
        "link",
        "error",
    ),
    _counter(
        "nvlink5_errors_all_links",
        "vendor_values.nvlink5_errors_all_links",
        "Errors and recoveries of all NVLinks of the GPU together, by kind.",
        "error",
    ),
    _gauge(
        "nvlink5_bit_error_ratio",
        "vendor_values.nvlink5_bit_error_ratio",
        "Bit error ratio of an NVLink 5: effective (after correction) or symbol; once it was above 0.",
        "link",
        "kind",
    ),
    _gauge(
        "nvlink5_bit_error_max_ratio",
        "vendor_values.nvlink5_bit_error_max_ratio",
        "Bit error ratio of the worst NVLink of the GPU.",
        "kind",
    ),
    P2P_STATUS,
    _gauge(
        "fabric_state",
        "vendor_values.fabric_state",
        "Registration with the NVLink fabric: 0 not supported, 1 not started, 2 in progress, 3 completed.",
        unit="state",
    ),
    _gauge(
        "fabric_status",
        "vendor_values.fabric_status",
        "NVML return code of the completed fabric registration; 0 is success.",
        unit="code",
    ),
)

METRICS: Final = (
    _counter(
        "ecc_sram_errors",
        "vendor_values.ecc_sram_errors",
        "Uncorrected SRAM errors by detection method.",
        "check",
        "lifetime",
    ),
    _counter(
        "ecc_sram_source_errors",
        "vendor_values.ecc_sram_sources",
        "Uncorrected SRAM errors ever, by unit.",
        "unit",
    ),
    _gauge(
        "ecc_sram_threshold_exceeded",
        "vendor_values.ecc_sram_threshold_exceeded",
        "1 if the number of SRAM errors requires replacing the board.",
        unit="0 or 1",
    ),
    _gauge(
        "retired_pages",
        "vendor_values.retired_pages",
        "Permanently retired memory pages.",
        "cause",
        unit="count",
    ),
    _gauge(
        "retired_pages_pending",
        "vendor_values.retired_pages_pending",
        "1 if pages will be retired at the next reboot.",
        unit="0 or 1",
    ),
    _gauge(
        "remapped_rows",
        "vendor_values.remapped_rows",
        "Memory rows replaced by spare ones.",
        "cause",
        unit="count",
    ),
    _gauge(
        "row_remap_pending",
        "vendor_values.row_remap_pending",
        "1 if a row will be remapped at the next reset.",
        unit="0 or 1",
    ),
    _gauge(
        "row_remap_failed",
        "vendor_values.row_remap_failed",
        "1 if row remapping failed and the board must be replaced.",
        unit="0 or 1",
    ),
    _gauge(
        "row_remap_banks",
        "vendor_values.row_remap_banks",
        "Memory banks by how many spare rows they have left.",
        "availability",
        unit="count",
    ),
    _gauge(
        "compute_mode",
        "vendor_values.compute_mode",
        "Compute mode: 0 default, 1 exclusive thread, 2 prohibited, 3 exclusive process.",
        unit="mode",
    ),
    _gauge(
        "persistence_mode",
        "vendor_values.persistence_mode",
        "1 if the driver stays loaded while no process uses the GPU.",
        unit="0 or 1",
    ),
    _gauge(
        "mig_enabled", "vendor_values.mig_enabled", "1 if the GPU is split into MIG instances.", unit="0 or 1"
    ),
    _gauge(
        "mig_pending", "vendor_values.mig_pending", "1 if MIG will be on after the next reset.", unit="0 or 1"
    ),
    _gauge(
        "recovery_action",
        "vendor_values.recovery_action",
        "Action the driver recommends: 0 none, 1 reset, 2 node reboot, 3 drain P2P, 4 drain and reset, "
        "5 recover the IMEX domain, 6 bus reset, 7 system reboot.",
        unit="action",
    ),
    _gauge(
        "graphics_engine_active_ratio",
        "engine_active_ratio.graphics",
        "Share of cycles in which the graphics or compute engine was active.",
    ),
    _gauge(
        "sm_active_ratio",
        "engine_active_ratio.sm",
        "Share of cycles in which an SM had work, averaged over all SMs.",
    ),
    _gauge(
        "sm_occupancy_ratio",
        "vendor_values.sm_occupancy_ratio",
        "Warps resident on the SMs as a share of what fits.",
    ),
    _gauge(
        "tensor_active_ratio", "engine_active_ratio.tensor", "Share of cycles the tensor cores were active."
    ),
    _gauge("dram_active_ratio", "engine_active_ratio.dram", "Share of cycles the memory moved data."),
    _gauge("fp64_active_ratio", "engine_active_ratio.fp64", "Share of cycles the FP64 pipes were active."),
    _gauge("fp32_active_ratio", "engine_active_ratio.fp32", "Share of cycles the FP32 pipes were active."),
    _gauge("fp16_active_ratio", "engine_active_ratio.fp16", "Share of cycles the FP16 pipes were active."),
    _gauge(
        "integer_active_ratio", "engine_active_ratio.integer", "Share of cycles the integer pipes were active."
    ),
    _gauge(
        "profiled_pcie_bytes_per_second",
        "vendor_values.profiled_pcie_bytes_per_second",
        "PCIe traffic measured by the profiling units.",
        "direction",
    ),
    _gauge(
        "profiled_nvlink_bytes_per_second",
        "vendor_values.profiled_nvlink_bytes_per_second",
        "NVLink traffic measured by the profiling units.",
        "direction",
    ),
    _counter(
        "violation_seconds",
        "vendor_values.violation_seconds",
        "Time with reduced clocks, by policy; counted by the driver.",
        "policy",
    ),
)
