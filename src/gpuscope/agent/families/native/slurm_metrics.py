"""Native metrics of the Slurm cluster. Input: the snapshot's `SlurmState`; a part that was not read is absent.

Slurm is read every 15 seconds and snapshots are made every second, so families are made once per state. Texts
that users choose become labels as they are; how many series they can make is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from heapq import nsmallest
from itertools import accumulate
from math import inf
from typing import Final

from gpuscope.agent.families.native import slurm_table as rows
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.agent.families.slurm_counts import gpus_of_node, sum_jobs
from gpuscope.model.exposition.sample import NO_LABELS, MetricFamily, Sample
from gpuscope.model.native_metric import LabelCache
from gpuscope.model.readings import ABSENT, Maybe, Snapshot
from gpuscope.model.readings.slurm import (
    HOLDS_RESOURCES,
    PENDING,
    SUSPENDED,
    Gres,
    SchedulerStats,
    SlurmJob,
    SlurmNode,
    SlurmState,
)

# Native metrics of Slurm's nodes: state and flags, reason, CPUs, memory, and GPUs by node and partition.

BASE_STATES: Final = ("allocated", "down", "idle", "mixed", "unknown")  # shown as 0 too; others only as 1


def node_families(cache: LabelCache, nodes: tuple[SlurmNode, ...]) -> Iterator[MetricFamily]:
    yield cache.family(rows.NODE_STATE, _states(nodes))
    yield cache.family(rows.NODE_FLAG, {(node.name, flag): 1 for node in nodes for flag in sorted(node.flags)})
    reasons = [node for node in nodes if node.reason]
    yield cache.family(rows.NODE_REASON, {(node.name, node.reason, node.reason_by): 1 for node in reasons})
    yield cache.family(rows.NODE_REASON_TIME, {(node.name,): node.reason_at for node in reasons})
    yield cache.family(
        rows.NODE_PARTITION, {(node.name, name): 1 for node in nodes for name in node.partitions}
    )
    cpus: dict[tuple[str, ...], Maybe[float]] = {}
    for node in nodes:
        cpus[node.name, "allocated"] = node.cpus_allocated
        cpus[node.name, "idle"] = node.cpus_idle
        cpus[node.name, "other"] = node.cpus_other
    yield cache.family(rows.NODE_CPUS, cpus)
    yield cache.family(rows.NODE_MEMORY, {(node.name,): node.memory_bytes for node in nodes})
    yield cache.family(
        rows.NODE_MEMORY_ALLOCATED, {(node.name,): node.memory_allocated_bytes for node in nodes}
    )
    yield cache.family(rows.NODE_MEMORY_FREE, {(node.name,): node.memory_free_bytes for node in nodes})
    yield cache.family(rows.NODE_LOAD, {(node.name,): node.cpu_load for node in nodes})
    yield from _node_gpu_families(cache, nodes)


def _states(nodes: tuple[SlurmNode, ...]) -> dict[tuple[str, ...], Maybe[float]]:
    """One series per node and state, so that a change of state does not end a series."""
    values: dict[tuple[str, ...], Maybe[float]] = {}
    for node in nodes:
        if not node.base_state:
            continue
        for state in BASE_STATES:
            values[node.name, state] = int(state == node.base_state)
        values[node.name, node.base_state] = 1  # also a state that only a newer Slurm has
    return values


def _node_gpu_families(cache: LabelCache, nodes: tuple[SlurmNode, ...]) -> Iterator[MetricFamily]:
    by_node: dict[tuple[str, ...], Maybe[float]] = {}
    by_partition: Counter[tuple[str, ...]] = Counter()
    cluster: Counter[tuple[str, ...]] = Counter()
    uncounted: set[tuple[str, ...]] = set()  # a sum without one of its nodes would be too low
    for node in nodes:
        uncounted |= node.gres_uncounted
        uncounted |= {(name, *gres) for name in node.partitions for gres in node.gres_uncounted}
        for (kind, model, state), count in gpus_of_node(node).items():
            by_node[node.name, kind, model, state] = count
            cluster[kind, model, state] += count
            for partition in node.partitions:
                by_partition[partition, kind, model, state] += count
    yield cache.family(rows.NODE_GPUS, by_node)
    for row, sums in ((rows.PARTITION_GPUS, by_partition), (rows.GPUS, cluster)):
        yield cache.family(row, {labels: n for labels, n in sums.items() if labels[:-1] not in uncounted})


# Series of single Slurm jobs: who runs what on which GPUs of which nodes, and who waits; a bounded number.
#
# Of the jobs that hold resources those with GPUs come first, then the oldest. `index` of a GPU is the number
# that Slurm gives it on its node; the agent of that node says which GPU it is.

MAX_NODES_PER_JOB = 1024
MAX_LIST_CHARACTERS = 1024  # of a label with a list; a target with a label of 64 KiB is refused as a whole


def job_families(cache: LabelCache, state: SlurmState) -> Iterator[MetricFamily]:
    jobs = () if state.jobs is ABSENT else state.jobs
    holding = [job for job in jobs if job.state in HOLDS_RESOURCES]
    # Sorting would make a key for every job at once, and each run of the garbage collector visit them.
    shown = nsmallest(state.max_job_series, holding, lambda job: (not _has_gpus(state, job), job.job_id))
    yield cache.family(rows.JOBS_WITHOUT_SERIES, {(): len(holding) - len(shown)})
    yield cache.family(rows.JOB, {_info_texts(job): 1 for job in shown})
    numbers = [((str(job.job_id),), job) for job in shown]
    yield cache.family(rows.JOB_GPUS, {number: _gpus(state, job) for number, job in numbers})
    yield cache.family(rows.JOB_SUBMIT, {number: job.submitted_at for number, job in numbers})
    yield cache.family(rows.JOB_START, {number: job.started_at for number, job in numbers})
    yield cache.family(rows.JOB_END, {number: job.ends_at for number, job in numbers})
    yield cache.family(rows.JOB_SUSPENDED, {number: 1 for number, job in numbers if job.state == SUSPENDED})
    yield from _placement_families(cache, state, shown)
    yield from _pending_families(cache, jobs, state.max_pending_series)


def _pending_families(cache: LabelCache, jobs: Iterable[SlurmJob], most: int) -> Iterator[MetricFamily]:
    """Those that have waited longest; after them the jobs that may not start yet, in the order of their ids."""
    waiting = (job for job in jobs if job.state == PENDING)
    shown = nsmallest(most, waiting, lambda job: (_or_never(job.eligible_at), job.job_id))
    yield cache.family(rows.PENDING_JOB, {_pending_texts(job): 1 for job in shown})
    numbers = [((str(job.job_id),), job) for job in shown]
    # Without slurmdbd a job's TRES name no GPUs even if it requests some.
    requested = {number: job.gpus if job.gres else ABSENT for number, job in numbers}
    yield cache.family(rows.PENDING_JOB_GPUS, requested)
    yield cache.family(rows.PENDING_JOB_TASKS, {number: job.tasks for number, job in numbers if job.tasks > 1})
    yield cache.family(rows.PENDING_JOB_ELIGIBLE, {number: job.eligible_at for number, job in numbers})


def _or_never(time: Maybe[float]) -> float:
    return inf if time is ABSENT else time


def _pending_texts(job: SlurmJob) -> tuple[str, ...]:
    # The list of tasks that wait changes with every task that starts.
    number, array, _, *rest = _info_texts(job)
    return (number, array, *rest, fold_reason(job.reason))


def fold_reason(reason: str) -> str:
    """The reason in Slurm's words, without a list behind it: `ReqNodeNotAvail, UnavailableNodes:gpu[3-4]`."""
    return reason.partition(":")[0].removesuffix("UnavailableNodes").rstrip(" ,(") or "None"


def _gpus(state: SlurmState, job: SlurmJob) -> Maybe[float]:
    """Without slurmdbd a job's TRES name no GPUs: then only its placement tells."""
    placed = state.placements is not ABSENT and state.placements.get(job.job_id)
    if not placed and not job.gres:
        return ABSENT
    return sum(gres.count for gres in held_gres(state, job) if gres.kind == "gpu")


def held_gres(state: SlurmState, job: SlurmJob) -> Iterator[Gres]:
    """What the job holds: by node, where that is known, because TRES name only some models and no shards."""
    placements = () if state.placements is ABSENT else state.placements.get(job.job_id, ())
    if not placements:
        yield from job.gres
    for placement in placements:
        yield from placement.gres


def _has_gpus(state: SlurmState, job: SlurmJob) -> bool:
    placements = () if state.placements is ABSENT else state.placements.get(job.job_id, ())
    return bool(job.gres) or any(placement.gres for placement in placements)


def _info_texts(job: SlurmJob) -> tuple[str, ...]:
    array = "" if job.array_job_id is ABSENT else str(job.array_job_id)
    leader = "" if job.het_job_id is ABSENT else str(job.het_job_id)
    return (
        str(job.job_id), array, job.array_task[:MAX_LIST_CHARACTERS], leader, job.name, job.user, job.account,
        ",".join(job.partitions)[:MAX_LIST_CHARACTERS], job.qos,
    )  # fmt: skip


def _placement_families(cache: LabelCache, state: SlurmState, shown: list[SlurmJob]) -> Iterator[MetricFamily]:
    on_nodes: dict[tuple[str, str], int] = {}
    gres: dict[tuple[str, ...], int] = {}
    for job in shown:
        placements = () if state.placements is ABSENT else state.placements.get(job.job_id, ())
        number = str(job.job_id)
        for placement in placements[:MAX_NODES_PER_JOB]:
            on_nodes[number, placement.node] = 1
            for resource in placement.gres:
                for index in () if resource.indices is ABSENT else resource.indices:
                    gres[number, placement.node, resource.kind, resource.model, str(index)] = 1
    yield cache.family(rows.JOB_NODE, on_nodes)
    yield cache.family(rows.JOB_GRES, gres)


WAIT_BUCKETS: Final = (60.0, 300.0, 900.0, 3600.0, 4 * 3600.0, 12 * 3600.0, 86400.0, 3 * 86400.0, 7 * 86400.0)
MAX_REASONS: Final = 64
MAX_USERS: Final = 5000
OTHER: Final = "other"
_EVENTS = ("submitted", "started", "completed", "canceled", "failed")


class SlurmMetrics:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only
        self._wanted = any(row.name in only for row in rows.SLURM_CLUSTER_METRICS)
        self._cache = LabelCache()
        self._built_from: SlurmState | None = None
        self._families: list[MetricFamily] = []

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        state = snapshot.slurm
        if state is ABSENT:
            yield from self._without_state(snapshot)
            return
        if self._wanted and state is not self._built_from:
            self._families = [family for family in _families(self._cache, state) if family.name in self._only]
            self._built_from = state
        yield from self._families

    def _without_state(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        """A source that hangs or is missing is not up; a machine without this source has no such metric."""
        if any(status.name == "slurm" for status in snapshot.sources) and rows.UP.name in self._only:
            yield rows.UP.family([Sample(NO_LABELS, 0)])


def _families(cache: LabelCache, state: SlurmState) -> Iterator[MetricFamily]:
    yield rows.UP.family([Sample(NO_LABELS, int(state.up))])
    if state.version is not ABSENT:
        yield cache.family(rows.VERSION, {(state.version, state.mode): 1})
    yield from _query_families(cache, state)
    if state.nodes is not ABSENT:
        yield from node_families(cache, state.nodes)
    yield from _count_families(cache, state)
    if state.jobs is not ABSENT:
        yield from _waiting_families(cache, state.jobs, state.read_at)
        yield from _gpu_families(cache, state, state.jobs)
        yield from job_families(cache, state)
    yield from _reservation_families(cache, state)
    yield from _share_families(cache, state)
    if state.licenses is not ABSENT:
        for row, attribute in (
            (rows.LICENSES, "count"),
            (rows.LICENSES_USED, "used"),
            (rows.LICENSES_RESERVED, "reserved"),
        ):
            yield cache.family(
                row, {(licence.name,): getattr(licence, attribute) for licence in state.licenses}
            )
    if state.scheduler is not ABSENT:
        yield from _scheduler_families(cache, state.scheduler)


def _query_families(cache: LabelCache, state: SlurmState) -> Iterator[MetricFamily]:
    for row, attribute in (
        (rows.QUERY_SUCCESS, "success"),
        (rows.QUERY_DURATION, "duration_seconds"),
        (rows.QUERY_LAST_SUCCESS, "last_success_at"),
        (rows.QUERIES, "runs"),
        (rows.QUERY_FAILURES, "failures"),
    ):
        values = {(query.name,): getattr(query, attribute) for query in state.queries}
        yield cache.family(row, {k: int(v) if isinstance(v, bool) else v for k, v in values.items()})


def _count_families(cache: LabelCache, state: SlurmState) -> Iterator[MetricFamily]:
    sums = sum_jobs(state)
    if sums is ABSENT:
        return
    yield cache.family(rows.JOBS, {(now.lower(),): count for now, count in sums.by_state.items()})
    yield cache.family(
        rows.PARTITION_JOBS, {(name, now.lower()): count for (name, now), count in sums.by_partition.items()}
    )
    if sums.by_owner is not ABSENT:
        owners = sums.by_owner.most_common(MAX_USERS)
        yield cache.family(rows.USER_JOBS, {(*owner, now.lower()): count for (*owner, now), count in owners})
    counts = state.job_counts
    if counts is not ABSENT:
        yield cache.family(rows.USER_GPUS, {(n, "", "gpu", ""): c for n, c in counts.gpus_by_user.items()})
        yield cache.family(rows.ACCOUNT_GPUS, {(n, "gpu", ""): c for n, c in counts.gpus_by_account.items()})


def _waiting_families(cache: LabelCache, jobs: tuple[SlurmJob, ...], now: float) -> Iterator[MetricFamily]:
    reasons: Counter[tuple[str, str]] = Counter()
    requested: Counter[tuple[str, str, str]] = Counter()
    oldest: dict[tuple[str], float] = {}
    waits: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(WAIT_BUCKETS) + 1))
    for job in jobs:
        if job.state != PENDING:
            continue
        eligible = job.eligible_at
        waited = ABSENT if eligible is ABSENT or eligible > now else now - eligible
        for partition in job.partitions:
            reasons[partition, job.reason] += job.tasks
            for gres in job.gres:
                requested[partition, gres.kind, gres.model] += gres.count * job.tasks
            if waited is not ABSENT:
                oldest[partition,] = max(waited, oldest.get((partition,), 0.0))
                waits[partition][bisect_left(WAIT_BUCKETS, waited)] += job.tasks
    yield cache.family(rows.PENDING_JOBS, _bounded_reasons(reasons))
    yield cache.family(rows.PENDING_GPUS, requested)
    yield cache.family(rows.OLDEST_PENDING, oldest)
    yield cache.family(rows.WAITING_JOBS, dict(_buckets(waits)))


def _bounded_reasons(reasons: Counter[tuple[str, str]]) -> dict[tuple[str, ...], float]:
    """Reasons are text from plugins and administrators: beyond the most frequent they are one."""
    folded: Counter[tuple[str, str]] = Counter()
    totals: Counter[str] = Counter()
    for (partition, reason), count in reasons.items():
        folded[partition, fold_reason(reason)] += count
        totals[fold_reason(reason)] += count
    shown = {reason for reason, _ in totals.most_common(MAX_REASONS)}
    bounded: Counter[tuple[str, ...]] = Counter()
    for (partition, reason), count in folded.items():
        bounded[partition, reason if reason in shown else OTHER] += count
    return dict(bounded)


def _buckets(waits: Mapping[str, list[int]]) -> Iterator[tuple[tuple[str, str], float]]:
    names = (*(f"{bound:g}" for bound in WAIT_BUCKETS), "+Inf")
    for partition, counts in waits.items():
        for name, count in zip(names, accumulate(counts), strict=True):
            yield (partition, name), count


def _gpu_families(cache: LabelCache, state: SlurmState, jobs: tuple[SlurmJob, ...]) -> Iterator[MetricFamily]:
    users: Counter[tuple[str, str, str, str]] = Counter()
    accounts: Counter[tuple[str, str, str]] = Counter()
    for job in jobs:
        if job.state in HOLDS_RESOURCES:
            for gres in held_gres(state, job):
                users[job.user, job.account, gres.kind, gres.model] += gres.count
                accounts[job.account, gres.kind, gres.model] += gres.count
    yield cache.family(rows.USER_GPUS, dict(users.most_common(MAX_USERS)))
    yield cache.family(rows.ACCOUNT_GPUS, accounts)


def _reservation_families(cache: LabelCache, state: SlurmState) -> Iterator[MetricFamily]:
    if state.reservations is ABSENT:
        return
    found = {reservation.name: reservation for reservation in state.reservations}
    yield cache.family(
        rows.RESERVATION,
        {
            (name, one.partition, *_cut(one.users, one.accounts, one.flags, one.node_list)): 1
            for name, one in found.items()
        },
    )
    yield cache.family(rows.RESERVATION_ACTIVE, {(n,): int(one.state == "ACTIVE") for n, one in found.items()})
    yield cache.family(rows.RESERVATION_START, {(name,): one.starts_at for name, one in found.items()})
    yield cache.family(rows.RESERVATION_END, {(name,): one.ends_at for name, one in found.items()})
    yield cache.family(rows.RESERVATION_NODES, {(name,): one.node_count for name, one in found.items()})
    yield cache.family(rows.RESERVATION_GPUS, {(name,): one.gpus for name, one in found.items()})


def _cut(*lists: str) -> tuple[str, ...]:
    return tuple(text[:MAX_LIST_CHARACTERS] for text in lists)


def _share_families(cache: LabelCache, state: SlurmState) -> Iterator[MetricFamily]:
    if state.shares is ABSENT:
        return
    shares = state.shares[: 2 * MAX_USERS]
    for row, attribute in (
        (rows.FAIR_SHARE, "fair_share"),
        (rows.SHARES, "norm_shares"),
        (rows.USAGE, "effective_usage"),
        (rows.RAW_USAGE, "raw_usage"),
    ):
        yield cache.family(row, {(share.account, share.user): getattr(share, attribute) for share in shares})


def _scheduler_families(cache: LabelCache, stats: SchedulerStats) -> Iterator[MetricFamily]:
    server, both = stats.server, {"main": stats.main, "backfill": stats.backfill}
    for row, name in (
        (rows.SERVER_THREADS, "Server thread count"),
        (rows.AGENT_QUEUE, "Agent queue size"),
        (rows.DBD_QUEUE, "DBD Agent queue size"),
    ):
        yield cache.family(row, {(): server.get(name, ABSENT)})
    events = {(event,): server.get(f"Jobs {event}", ABSENT) for event in _EVENTS}
    yield cache.family(rows.SCHEDULER_EVENTS, events)
    for row, name in (
        (rows.CYCLE_LAST, "Last cycle"),
        (rows.CYCLE_MEAN, "Mean cycle"),
        (rows.CYCLE_MAX, "Max cycle"),
    ):
        yield cache.family(row, {(which,): _seconds(found, name) for which, found in both.items()})
    yield cache.family(rows.CYCLES, {(which,): f.get("Total cycles", ABSENT) for which, f in both.items()})
    yield cache.family(rows.QUEUE_LENGTH, {(w,): f.get("Last queue length", ABSENT) for w, f in both.items()})
    means = {
        ("main",): stats.main.get("Mean depth cycle", ABSENT),
        ("backfill",): stats.backfill.get("Depth Mean", ABSENT),
    }
    yield cache.family(rows.DEPTH_MEAN, means)
    started = stats.backfill.get("Total backfilled jobs (since last slurm start)", ABSENT)
    yield cache.family(rows.BACKFILLED, {(): started})
    exits = {("main", reason): count for reason, count in stats.main_exits.items()}
    exits.update({("backfill", reason): count for reason, count in stats.backfill_exits.items()})
    yield cache.family(rows.SCHEDULER_EXITS, exits)
    yield cache.family(rows.RPCS, {(rpc.name,): rpc.count for rpc in stats.rpcs_by_type})
    yield cache.family(rows.RPC_SECONDS, {(rpc.name,): rpc.seconds for rpc in stats.rpcs_by_type})
    yield cache.family(rows.USER_RPCS, {(rpc.name,): rpc.count for rpc in stats.rpcs_by_user})
    yield cache.family(rows.USER_RPC_SECONDS, {(rpc.name,): rpc.seconds for rpc in stats.rpcs_by_user})


def _seconds(found: Mapping[str, float], name: str) -> Maybe[float]:
    microseconds = found.get(name, ABSENT)
    return ABSENT if microseconds is ABSENT else microseconds / 1e6
