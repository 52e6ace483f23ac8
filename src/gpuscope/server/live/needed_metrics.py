"""Which metrics the live picture and its findings need, and the queries that ask an engine for them."""

from __future__ import annotations

import re
from typing import Final

from gpuscope.health.check import metric_names
from gpuscope.health.checks import LIVE_CHECKS
from gpuscope.health.facts import LABELLED
from gpuscope.health.slurm_facts import NODE_JOB_METRICS, SLURM_ADDERS

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
        "node_memory_MemAvailable_bytes", "gpuscope_process_cpu_ratio", "gpuscope_process_run_ratio",
        "gpuscope_process_busiest_thread_ratio", "gpuscope_process_io_wait_ratio",
        "gpuscope_process_network_wait_ratio", "gpuscope_process_resident_memory_bytes",
        "gpuscope_process_children", "gpuscope_process_children_cpu_ratio", "gpuscope_gpu_processes",
    }
)  # fmt: skip
_JUDGED: Final = frozenset(name for check in LIVE_CHECKS for name in metric_names(check))

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
        "gpuscope_process_cpu_ratio", "gpuscope_process_run_ratio", "gpuscope_process_busiest_thread_ratio",
        "gpuscope_process_io_wait_ratio", "gpuscope_process_network_wait_ratio",
        "gpuscope_process_resident_memory_bytes", "gpuscope_process_children",
        "gpuscope_process_children_cpu_ratio", "gpuscope_gpu_utilization_minute_ratio",
        "gpuscope_gpu_power_minute_watts", "gpuscope_gpu_hung_since_seconds", "gpuscope_gpu_free_since_seconds",
        "gpuscope_gpu_processes", *SLURM_ADDERS,
    }
)  # fmt: skip
"""Settings, limits, identities, counts of errors and processes, means over a minute, Slurm's jobs: they change
at most every 5 s, or together with the GPUs and processes of a node, for which they are read again at once."""

_SHOWN_VALUES: Final = {"gpuscope_gpu_power_limit_watts": {"enforced"}}


def _judged_values(metric: str) -> frozenset[str] | None:
    """The values of the metric's further label that checks name; None if a check reads all of them."""
    values: set[str] = set()
    for check in LIVE_CHECKS:
        for matchers in re.findall(rf"\b{metric}\b({{[^}}]*}})?", check.promql):
            named = re.fullmatch(rf'{{{LABELLED[metric][0]}="([^"]*)"}}', matchers)
            if named is None:
                return None
            values.add(named[1])
    return frozenset(values)


NEEDED_VALUES: Final = {
    metric: values | _SHOWN_VALUES.get(metric, set())
    for metric, names in LABELLED.items()
    if metric in SLOW_METRICS and len(names) == 1 and (values := _judged_values(metric))
}
"""Of these slow metrics only samples whose further label has one of these values are read: a GPU has five
power limits and four temperature thresholds, of which checks and page use two each."""

_OF_JOBS: Final = frozenset({*SLURM_ADDERS, *NODE_JOB_METRICS})

LIVE_METRICS: Final = tuple(sorted(_SHOWN | _JUDGED | _OF_JOBS))


FAST_METRICS: Final = tuple(name for name in LIVE_METRICS if name not in SLOW_METRICS)
"""Read for every picture."""
