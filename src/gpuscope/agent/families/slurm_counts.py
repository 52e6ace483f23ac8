"""Sums over a Slurm cluster that both of its families need: jobs by state, user, account and partition, GPUs.

Input: a `SlurmState`; output: counts. An array that waits in one record counts all its tasks. A job that waits
for several partitions counts in each of them, and once in sums without partitions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import PENDING, RUNNING, FairShare, SlurmNode, SlurmState

DEPENDENCY = "Dependency"
MAX_INDEX = 4096
_UNAVAILABLE = frozenset({"down", "error", "unknown", "future"})
_UNAVAILABLE_FLAGS = frozenset({"not_responding", "fail", "powered_down", "powering_down", "invalid_reg"})
_DRAINED_FLAGS = frozenset({"drain", "maint"})


@dataclass(slots=True)
class JobSums:
    by_state: Counter[str] = field(default_factory=Counter)
    by_user: Counter[tuple[str, str]] = field(default_factory=Counter)  # by (user, state)
    by_account: Counter[tuple[str, str]] = field(default_factory=Counter)
    by_partition: Counter[tuple[str, str]] = field(default_factory=Counter)
    running_cpus_by_user: Counter[str] = field(default_factory=Counter)
    running_cpus_by_account: Counter[str] = field(default_factory=Counter)
    by_owner: Maybe[Counter[tuple[str, str, str]]] = ABSENT  # by (user, account, state)
    pending_for_dependency: Maybe[int] = 0


def sum_jobs(state: SlurmState) -> Maybe[JobSums]:
    if state.jobs is not ABSENT:
        return _sum_list(state)
    counts = state.job_counts
    if counts is ABSENT:
        return ABSENT
    return JobSums(
        Counter(counts.by_state),
        Counter(counts.by_user),
        Counter(counts.by_account),
        Counter(counts.by_partition),
        Counter(counts.cpus_by_user),
        Counter(counts.cpus_by_account),
        pending_for_dependency=ABSENT,  # slurmctld's own pages give no reasons
    )


def _sum_list(state: SlurmState) -> JobSums:
    by_owner: Counter[tuple[str, str, str]] = Counter()
    sums = JobSums(by_owner=by_owner)
    dependent = 0
    for job in () if state.jobs is ABSENT else state.jobs:
        now, tasks = job.state, job.tasks
        by_owner[job.user, job.account, now] += tasks
        for partition in job.partitions:
            sums.by_partition[partition, now] += tasks
        if now == RUNNING:
            sums.running_cpus_by_user[job.user] += job.cpus
            sums.running_cpus_by_account[job.account] += job.cpus
        elif now == PENDING and job.reason == DEPENDENCY:
            dependent += tasks
    sums.pending_for_dependency = dependent
    for (user, account, now), tasks in by_owner.items():
        sums.by_state[now] += tasks
        sums.by_user[user, now] += tasks
        sums.by_account[account, now] += tasks
    return sums


def unallocated_state(node: SlurmNode) -> str:
    """The state of the node's GPUs that no job holds: idle, drained or down."""
    if node.base_state in _UNAVAILABLE or node.flags & _UNAVAILABLE_FLAGS:
        return "down"
    return "drained" if node.flags & _DRAINED_FLAGS else "idle"


def gpus_in_use(node: SlurmNode) -> Counter[str]:
    """GPUs that no other job can have, by model: allocated whole, or a job has shards or MPS shares of them."""
    used: Counter[str] = Counter()
    models = [gres.model for gres in node.gres if gres.kind == "gpu" for _ in range(min(gres.count, MAX_INDEX))]
    for gres in node.gres_used:
        if gres.kind == "gpu":
            used[gres.model] += gres.count
        elif gres.indices is not ABSENT and gres.model:
            used[gres.model] += len(gres.indices)
        elif gres.indices is not ABSENT:
            used.update(models[index] for index in gres.indices if index < len(models))
    return used


def gpus_of_node(node: SlurmNode) -> Mapping[tuple[str, str, str], int]:
    """Counts by (kind, model, state); the states of one kind and model add up to the node's total.

    Shares whose use Slurm does not count are left out.
    """
    used = Counter({("gpu", model): count for model, count in gpus_in_use(node).items()})
    for gres in node.gres_used:
        if gres.kind != "gpu":
            used[gres.kind, gres.model] += gres.count
    free = unallocated_state(node)
    counts: dict[tuple[str, str, str], int] = {}
    for gres in node.gres:
        if (gres.kind, gres.model) in node.gres_uncounted:
            continue
        allocated = min(used[gres.kind, gres.model], gres.count)
        counts[gres.kind, gres.model, "allocated"] = allocated
        for state in ("idle", "drained", "down"):
            counts[gres.kind, gres.model, state] = gres.count - allocated if state == free else 0
    return counts


def count_gpus(nodes: Iterable[SlurmNode]) -> tuple[int, int]:
    """(all GPUs, GPUs in use), each node counted once."""
    total = allocated = 0
    for node in nodes:
        total += sum(gres.count for gres in node.gres if gres.kind == "gpu")
        allocated += gpus_in_use(node).total()
    return total, allocated


def account_fair_shares(shares: Iterable[FairShare]) -> dict[str, float]:
    """The fair-share factor of each account.

    Fair Tree gives factors to users only: an account then has that of its best placed user, accounts below it
    included. An account without any user has none.
    """
    own: dict[str, float] = {}
    best: dict[str, float] = {}
    parents: dict[str, str] = {}
    for share in shares:
        if not share.user:
            parents[share.account] = share.parent
            if share.fair_share is not ABSENT:
                own[share.account] = share.fair_share
        elif share.fair_share is not ABSENT:
            best[share.account] = max(best.get(share.account, 0.0), share.fair_share)
    for account, value in list(best.items()):
        above = parents.get(account, "")
        for _ in range(len(parents)):
            if not above:
                break
            best[above] = max(best.get(above, 0.0), value)
            above = parents.get(above, "")
    return {**best, **own}
