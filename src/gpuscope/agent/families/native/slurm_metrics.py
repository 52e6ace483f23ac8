"""Native metrics of the Slurm cluster. Input: the snapshot's `SlurmState`; a part that was not read is absent.

Slurm is read every 15 seconds and snapshots are made every second, so families are made once per state. Texts
that users choose become labels as they are; how many series they can make is bounded.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Final

from gpuscope.agent.families.native import slurm_table as rows
from gpuscope.agent.families.native.slurm_job_series import (
    MAX_LIST_CHARACTERS,
    fold_reason,
    held_gres,
    job_families,
)
from gpuscope.agent.families.native.slurm_node_metrics import node_families
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.agent.families.slurm_counts import sum_jobs
from gpuscope.model.exposition.sample import NO_LABELS, MetricFamily, Sample
from gpuscope.model.native_metric import LabelCache
from gpuscope.model.readings import ABSENT, Maybe, Snapshot
from gpuscope.model.readings.slurm import HOLDS_RESOURCES, PENDING, SchedulerStats, SlurmJob, SlurmState

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
            yield cache.family(row, {(one.name,): getattr(one, attribute) for one in state.licenses})
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
    found = {one.name: one for one in state.reservations}
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
        yield cache.family(row, {(one.account, one.user): getattr(one, attribute) for one in shares})


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
