"""The 62 metrics of vpenso's prometheus-slurm-exporter: names, labels and help exactly as it has them.

All are gauges, those that end in `_total` too. The group says which part of a `SlurmState` a metric needs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class SlurmMetric:
    name: str
    help: str
    labels: tuple[str, ...] = ()
    group: str = ""


_SDIAG: Final = "Information provided by the Slurm sdiag command, "


def _rows(group: str, labels: tuple[str, ...], **helps: str) -> tuple[SlurmMetric, ...]:
    return tuple(SlurmMetric(f"slurm_{name}", text, labels, group) for name, text in helps.items())


SLURM_METRICS: Final = (
    *_rows(
        "jobs", ("account",),
        account_jobs_pending="Pending jobs for account",
        account_jobs_running="Running jobs for account",
        account_cpus_running="Running cpus for account",
        account_jobs_suspended="Suspended jobs for account",
    ),
    *_rows("shares", ("account",), account_fairshare="FairShare for account"),
    *_rows(
        "jobs", ("user",),
        user_jobs_pending="Pending jobs for user",
        user_jobs_running="Running jobs for user",
        user_cpus_running="Running cpus for user",
        user_jobs_suspended="Suspended jobs for user",
    ),
    *_rows(
        "nodes", (),
        cpus_alloc="Allocated CPUs",
        cpus_idle="Idle CPUs",
        cpus_other="Mix CPUs",
        cpus_total="Total CPUs",
        gpus_alloc="Allocated GPUs",
        gpus_idle="Idle GPUs",
        gpus_total="Total GPUs",
        gpus_utilization="Total GPU utilization",
        nodes_alloc="Allocated nodes",
        nodes_comp="Completing nodes",
        nodes_down="Down nodes",
        nodes_drain="Drain nodes",
        nodes_err="Error nodes",
        nodes_fail="Fail nodes",
        nodes_idle="Idle nodes",
        nodes_maint="Maint nodes",
        nodes_mix="Mix nodes",
        nodes_resv="Reserved nodes",
    ),
    *_rows(
        "nodes", ("node", "status"),
        node_cpu_alloc="Allocated CPUs per node",
        node_cpu_idle="Idle CPUs per node",
        node_cpu_other="Other CPUs per node",
        node_cpu_total="Total CPUs per node",
        node_mem_alloc="Allocated memory per node",
        node_mem_total="Total memory per node",
    ),
    *_rows(
        "nodes", ("partition",),
        partition_cpus_allocated="Allocated CPUs for partition",
        partition_cpus_idle="Idle CPUs for partition",
        partition_cpus_other="Other CPUs for partition",
        partition_cpus_total="Total CPUs for partition",
    ),
    *_rows("jobs", ("partition",), partition_jobs_pending="Pending jobs for partition"),
    *_rows(
        "jobs", (),
        queue_pending="Pending jobs in queue",
        queue_pending_dependency="Pending jobs because of dependency in queue",
        queue_running="Running jobs in the cluster",
        queue_suspended="Suspended jobs in the cluster",
        queue_cancelled="Cancelled jobs in the cluster",
        queue_completing="Completing jobs in the cluster",
        queue_completed="Completed jobs in the cluster",
        queue_configuring="Configuring jobs in the cluster",
        queue_failed="Number of failed jobs",
        queue_timeout="Jobs stopped by timeout",
        queue_preempted="Number of preempted jobs",
        queue_node_fail="Number of jobs stopped due to node fail",
    ),
    *_rows(
        "scheduler", (),
        scheduler_threads=_SDIAG + "number of scheduler threads ",
        scheduler_queue_size=_SDIAG + "length of the scheduler queue",
        scheduler_dbd_queue_size=_SDIAG + "length of the DBD agent queue",
        scheduler_last_cycle=_SDIAG + "scheduler last cycle time in (microseconds)",
        scheduler_mean_cycle=_SDIAG + "scheduler mean cycle time in (microseconds)",
        scheduler_cycle_per_minute=_SDIAG + "number scheduler cycles per minute",
        scheduler_backfill_last_cycle=_SDIAG + "scheduler backfill last cycle time in (microseconds)",
        scheduler_backfill_mean_cycle=_SDIAG + "scheduler backfill mean cycle time in (microseconds)",
        scheduler_backfill_depth_mean=_SDIAG + "scheduler backfill mean depth",
        scheduler_backfilled_jobs_since_start_total=_SDIAG
        + "number of jobs started thanks to backfilling since last slurm start",
        scheduler_backfilled_jobs_since_cycle_total=_SDIAG
        + "number of jobs started thanks to backfilling since last time stats where reset",
        scheduler_backfilled_heterogeneous_total=_SDIAG
        + "number of heterogeneous job components started thanks to backfilling since last Slurm start",
    ),
)  # fmt: skip

GPU_METRICS: Final = frozenset(row.name for row in SLURM_METRICS if row.name.startswith("slurm_gpus_"))

SDIAG_NAMES: Final = {
    "slurm_scheduler_threads": ("server", "Server thread count"),
    "slurm_scheduler_queue_size": ("server", "Agent queue size"),
    "slurm_scheduler_dbd_queue_size": ("server", "DBD Agent queue size"),
    "slurm_scheduler_last_cycle": ("main", "Last cycle"),
    "slurm_scheduler_mean_cycle": ("main", "Mean cycle"),
    "slurm_scheduler_cycle_per_minute": ("main", "Cycles per minute"),
    "slurm_scheduler_backfill_last_cycle": ("backfill", "Last cycle"),
    "slurm_scheduler_backfill_mean_cycle": ("backfill", "Mean cycle"),
    "slurm_scheduler_backfill_depth_mean": ("backfill", "Depth Mean"),
    "slurm_scheduler_backfilled_jobs_since_start_total": (
        "backfill",
        "Total backfilled jobs (since last slurm start)",
    ),
    "slurm_scheduler_backfilled_jobs_since_cycle_total": (
        "backfill",
        "Total backfilled jobs (since last stats cycle start)",
    ),
    "slurm_scheduler_backfilled_heterogeneous_total": (
        "backfill",
        "Total backfilled heterogeneous job components",
    ),
}
"""Where sdiag prints each value: (section, name)."""

QUEUE_STATES: Final = {
    "slurm_queue_pending": "PENDING", "slurm_queue_running": "RUNNING", "slurm_queue_suspended": "SUSPENDED",
    "slurm_queue_cancelled": "CANCELLED", "slurm_queue_completing": "COMPLETING",
    "slurm_queue_completed": "COMPLETED", "slurm_queue_configuring": "CONFIGURING",
    "slurm_queue_failed": "FAILED", "slurm_queue_timeout": "TIMEOUT", "slurm_queue_preempted": "PREEMPTED",
    "slurm_queue_node_fail": "NODE_FAIL",
}  # fmt: skip

NODE_STATES: Final = {
    "alloc": "alloc", "comp": "comp", "down": "down", "drain": "drain", "err": "err", "fail": "fail",
    "idle": "idle", "maint": "maint", "mix": "mix", "res": "resv",
}  # fmt: skip
"""How a node's long state begins, and the metric `slurm_nodes_*` it counts in."""
