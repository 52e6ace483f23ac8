"""Which metrics the live picture and its findings need, and the queries that ask an engine for them."""

from __future__ import annotations

import re
from typing import Final

from gpuscope.health.checks import LIVE_CHECKS

_SHOWN: Final = frozenset(
    {
        "gpuscope_gpu_info", "gpuscope_mig_info", "gpuscope_gpu_up", "gpuscope_gpu_utilization_ratio",
        "gpuscope_gpu_memory_used_bytes", "gpuscope_gpu_memory_total_bytes", "gpuscope_gpu_power_watts",
        "gpuscope_gpu_power_limit_watts", "gpuscope_gpu_temperature_celsius", "gpuscope_gpu_sm_active_ratio",
        "gpuscope_gpu_tensor_active_ratio", "gpuscope_gpu_dram_active_ratio", "gpuscope_process_memory_bytes",
        "gpuscope_process_sm_ratio", "gpuscope_process_active", "gpuscope_process_start_time_seconds",
        "gpuscope_agent_info", "gpuscope_agent_snapshot_timestamp_seconds",
        "gpuscope_source_up", "gpuscope_gpus_seen", "gpuscope_gpus_expected",
        "gpuscope_node_cpu_utilization_ratio", "node_load1", "node_memory_MemTotal_bytes",
        "node_memory_MemAvailable_bytes",
    }
)  # fmt: skip
_JUDGED: Final = frozenset(
    name for check in LIVE_CHECKS for name in re.findall(r"\b(?:gpuscope|node)_\w+", check.promql)
)

NONZERO_METRICS: Final = frozenset(
    {
        "gpuscope_gpu_throttle_reason", "gpuscope_gpu_row_remap_failed", "gpuscope_gpu_row_remap_pending",
        "gpuscope_gpu_row_remap_banks", "gpuscope_gpu_retired_pages", "gpuscope_gpu_retired_pages_pending",
        "gpuscope_gpu_recovery_action", "gpuscope_gpu_ecc_errors_total",
        "gpuscope_gpu_ecc_sram_threshold_exceeded", "gpuscope_owner_unattributed_memory_bytes",
    }
)  # fmt: skip
"""Of these only other values than 0 are read: nearly all are 0, and no check is true of a 0."""

SLOW_METRICS: Final = frozenset(
    {
        "gpuscope_gpu_temperature_threshold_celsius", "gpuscope_gpu_pcie_link_width",
        "gpuscope_gpu_pcie_link_width_max", "gpuscope_gpu_ecc_enabled", "gpuscope_gpu_ecc_pending",
        "gpuscope_gpu_ecc_errors_total", "gpuscope_gpu_ecc_sram_threshold_exceeded",
        "gpuscope_gpu_persistence_mode", "gpuscope_gpu_row_remap_banks", "gpuscope_gpu_row_remap_failed",
        "gpuscope_gpu_row_remap_pending", "gpuscope_gpu_retired_pages", "gpuscope_gpu_retired_pages_pending",
        "gpuscope_gpu_fabric_state", "gpuscope_gpu_fabric_status", "gpuscope_gpu_power_limit_watts",
        "gpuscope_gpu_memory_total_bytes", "gpuscope_gpu_info", "gpuscope_mig_info",
    }
)  # fmt: skip
"""Settings, limits, identities and counts of errors: the driver is asked for them at most every 10 s."""

LIVE_METRICS: Final = tuple(sorted(_SHOWN | _JUDGED))


def _selector(names: list[str]) -> str:
    return '{__name__=~"' + "|".join(names) + '"}'


LIVE_QUERIES: Final = (
    _selector([name for name in LIVE_METRICS if name not in NONZERO_METRICS]),
    _selector(sorted(NONZERO_METRICS)) + " != 0",
)
