"""Which metrics the live picture needs, and which of them change slowly.

Findings are not made of them: checks are evaluated over the engine.
"""

from __future__ import annotations

from typing import Final

from gpuscope.judge.checks.facts import AGENT_AGE, ERROR_AGES, IDLE_SECONDS
from gpuscope.judge.checks.slurm_facts import NODE_JOB_METRICS, SLURM_ADDERS

FAST_METRICS: Final = (
    "gpuscope_agent_info", "gpuscope_agent_snapshot_timestamp_seconds", AGENT_AGE, "gpuscope_source_up",
    "gpuscope_gpus_seen", "gpuscope_gpus_expected", "gpuscope_gpu_up", "gpuscope_gpu_utilization_ratio",
    "gpuscope_gpu_memory_used_bytes", "gpuscope_gpu_power_watts", "gpuscope_gpu_temperature_celsius",
    "gpuscope_gpu_sm_active_ratio", "gpuscope_gpu_tensor_active_ratio", "gpuscope_gpu_dram_active_ratio",
    "gpuscope_process_memory_bytes", "gpuscope_process_sm_ratio", "gpuscope_process_active",
    "gpuscope_process_start_time_seconds", IDLE_SECONDS,
    "gpuscope_allocation_used", "gpuscope_node_cpu_utilization_ratio", "node_load1",
    "node_memory_MemTotal_bytes", "node_memory_MemAvailable_bytes", *NODE_JOB_METRICS,
)  # fmt: skip
"""Read for every picture."""
SLOW_METRICS: Final = frozenset(
    {
        "gpuscope_gpu_info", "gpuscope_mig_info", "gpuscope_gpu_processes", "gpuscope_gpu_memory_total_bytes",
        "gpuscope_gpu_power_limit_watts", "gpuscope_gpu_pcie_link_width_max", *ERROR_AGES,
        "gpuscope_gpu_unallocated_processes", "gpuscope_gpu_utilization_minute_ratio",
        "gpuscope_process_cpu_ratio", "gpuscope_process_run_ratio", "gpuscope_process_busiest_thread_ratio",
        "gpuscope_process_io_wait_ratio", "gpuscope_process_network_wait_ratio",
        "gpuscope_process_resident_memory_bytes", "gpuscope_process_children",
        "gpuscope_process_children_cpu_ratio", *SLURM_ADDERS,
    }
)  # fmt: skip
"""Limits, identities, means over a minute, Slurm's jobs: they change at most every 5 s."""
LIVE_METRICS: Final = tuple(sorted({*FAST_METRICS, *SLOW_METRICS}))

NEEDED_VALUES: Final = {"gpuscope_gpu_power_limit_watts": frozenset({"enforced", "default"})}
"""Of these metrics only samples whose further label has one of these values are read."""
