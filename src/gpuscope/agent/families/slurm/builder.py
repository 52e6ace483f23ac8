"""Family `slurm`: what vpenso's prometheus-slurm-exporter exports, with right values where its own are wrong.

Typed, MIG and mixed GRES are counted, no accounting database is needed, each node counts once however many
partitions it is in, and a job that waits for several partitions counts in each. A part of Slurm that could not
be read has no series. docs/slurm.md lists the differences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.agent.families import FamilySpec
from gpuscope.agent.families.slurm_counts import JobSums, account_fair_shares, count_gpus, sum_jobs
from gpuscope.base.settings import Settings
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.model.readings import ABSENT, Maybe, Snapshot
from gpuscope.model.readings.slurm import PENDING, RUNNING, SUSPENDED, SchedulerStats, SlurmNode, SlurmState

# The 62 metrics of vpenso's prometheus-slurm-exporter: names, labels and help exactly as it has them.
#
# All are gauges, those that end in `_total` too. The group says which part of a `SlurmState` a metric needs.


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


MIB = 1 << 20
Values = dict[str, dict[tuple[str, ...], float]]
"""By metric name, then by label values."""


class SlurmBuilder:
    def __init__(self, *, with_gpus: bool = True) -> None:
        self._rows = [row for row in SLURM_METRICS if with_gpus or row.name not in GPU_METRICS]
        self._labels: dict[tuple[SlurmMetric, tuple[str, ...]], LabelSet] = {}
        self._built_from: SlurmState | None = None
        self._families: list[MetricFamily] = []

    def to_families(self, snapshot: Snapshot) -> Iterable[MetricFamily]:
        """Made anew only when Slurm was read anew: snapshots come fifteen times as often."""
        state = snapshot.slurm
        if state is ABSENT:
            return ()
        if state is not self._built_from:
            self._families, self._built_from = list(self._build(state)), state
        return self._families

    def _build(self, state: SlurmState) -> Iterator[MetricFamily]:
        values = _values(state)
        known, self._labels = self._labels, {}
        for row in sorted(self._rows, key=lambda row: row.name):
            samples = []
            for texts, value in sorted(values.get(row.name, {}).items()):
                labels = known.get((row, texts)) or LabelSet(zip(row.labels, texts, strict=True))
                self._labels[row, texts] = labels
                samples.append(Sample(labels if row.labels else NO_LABELS, value))
            if samples:
                yield MetricFamily(row.name, "gauge", row.help, samples)


def _values(state: SlurmState) -> Values:
    values: Values = {}
    jobs = sum_jobs(state)
    if jobs is not ABSENT:
        _add_jobs(values, jobs)
    if state.nodes is not ABSENT:
        _add_nodes(values, state.nodes)
        _add_gpus(values, state)
    if state.node_counts is not ABSENT:
        values.update({f"slurm_nodes_{name}": {(): count} for name, count in state.node_counts.items()})
    if state.scheduler is not ABSENT:
        _add_scheduler(values, state.scheduler)
    if state.shares is not ABSENT:
        values["slurm_account_fairshare"] = {
            (account,): value for account, value in account_fair_shares(state.shares).items()
        }
    return values


def _add_jobs(values: Values, jobs: JobSums) -> None:
    for owner, counts, cpus in (
        ("account", jobs.by_account, jobs.running_cpus_by_account),
        ("user", jobs.by_user, jobs.running_cpus_by_user),
    ):
        for name, state in (("pending", PENDING), ("running", RUNNING), ("suspended", SUSPENDED)):
            values[f"slurm_{owner}_jobs_{name}"] = _of_state(counts, state)
        values[f"slurm_{owner}_cpus_running"] = {(name,): count for name, count in cpus.items() if count}
    values["slurm_partition_jobs_pending"] = _of_state(jobs.by_partition, PENDING)
    for metric, state in QUEUE_STATES.items():
        values[metric] = {(): jobs.by_state[state]}
    if jobs.pending_for_dependency is not ABSENT:
        values["slurm_queue_pending_dependency"] = {(): jobs.pending_for_dependency}


def _of_state(counts: Mapping[tuple[str, str], int], state: str) -> dict[tuple[str, ...], float]:
    return {(name,): count for (name, now), count in counts.items() if now == state and count}


def _add_nodes(values: Values, nodes: Iterable[SlurmNode]) -> None:
    sums: Counter[str] = Counter()
    partitions: dict[str, Counter[str]] = {}
    states = Counter({f"slurm_nodes_{name}": 0 for name in NODE_STATES.values()})
    for node in nodes:
        metric = _state_metric(node)
        if metric:
            states[metric] += 1
        _add_node(values, node)
        for name, count in _node_cpus(node).items():
            sums[name] += count  # 0 counts too: it makes the sum known
            for partition in node.partitions:
                partitions.setdefault(name, Counter())[partition] += count
    if any(node.long_state for node in nodes):
        values.update({metric: {(): count} for metric, count in states.items()})
    for name, total in sums.items():
        values[f"slurm_cpus_{name}"] = {(): total}
        ending = "allocated" if name == "alloc" else name
        values[f"slurm_partition_cpus_{ending}"] = {
            (partition,): count for partition, count in partitions.get(name, {}).items() if count
        }


def _add_node(values: Values, node: SlurmNode) -> None:
    labels = (node.name, node.long_state)
    for name, count in _node_cpus(node).items():
        values.setdefault(f"slurm_node_cpu_{name}", {})[labels] = count
    for name, size in (("alloc", node.memory_allocated_bytes), ("total", node.memory_bytes)):
        if size is not ABSENT:
            values.setdefault(f"slurm_node_mem_{name}", {})[labels] = size // MIB


def _node_cpus(node: SlurmNode) -> dict[str, int]:
    counts: dict[str, Maybe[int]] = {
        "alloc": node.cpus_allocated,
        "idle": node.cpus_idle,
        "other": node.cpus_other,
        "total": node.cpus,
    }
    return {name: count for name, count in counts.items() if count is not ABSENT}


def _state_metric(node: SlurmNode) -> str:
    """By the state that sinfo shows; one that has no metric counts by its base state: `planned` is idle."""
    for text in (node.long_state.lower(), node.base_state):
        for beginning, name in NODE_STATES.items():
            if text.startswith(beginning):
                return f"slurm_nodes_{name}"
    return ""


def _add_gpus(values: Values, state: SlurmState) -> None:
    total, allocated = count_gpus(() if state.nodes is ABSENT else state.nodes)
    if total == 0 and state.node_counts is not ABSENT:
        return  # slurmctld's own pages count GPUs only where AccountingStorageTRES has gres/gpu, and say 0 else
    values["slurm_gpus_total"] = {(): total}
    values["slurm_gpus_alloc"] = {(): allocated}
    values["slurm_gpus_idle"] = {(): total - allocated}
    values["slurm_gpus_utilization"] = {(): allocated / total if total else float("nan")}


def _add_scheduler(values: Values, stats: SchedulerStats) -> None:
    for metric, (section, name) in SDIAG_NAMES.items():
        printed: Mapping[str, float] = getattr(stats, section)
        if name in printed:
            values[metric] = {(): printed[name]}


def _build(settings: Settings) -> SlurmBuilder:
    return SlurmBuilder()


FAMILY = FamilySpec(
    name="slurm",
    summary="slurm_*: what vpenso's prometheus-slurm-exporter exports, with right values",
    build=_build,
)
