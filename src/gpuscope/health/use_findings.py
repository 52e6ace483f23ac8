"""Findings about use, per owner on one node: GPUs that wait, held idle, left out of the work, or never used.

Idle GPUs of one owner are one finding if they went idle within 15 minutes of each other, so that its `since`
is right for all of them. GPUs of an owner who works on others are `only_some_work`, not `held_idle`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpuscope.health.checks import CHECKS
from gpuscope.health.facts import GpuFacts, NodeFacts, ProcessFacts
from gpuscope.health.finding import NO_OWNER, Argument, FindingOwner
from gpuscope.health.finding_details import Detail, whole
from gpuscope.health.finding_owners import main_owner, process_owner
from gpuscope.health.finding_texts import join_indices
from gpuscope.health.slurm_use import strangers
from gpuscope.health.thresholds import IDLE_FINDING_SECONDS
from gpuscope.health.use_checks import IDLE_SINCE, OwnerKey, gpus_by_owner, idle_since, owner_of
from gpuscope.health.wait_checks import (
    MINUTE_UTILIZATION,
    WAIT_THRESHOLDS,
    Ranks,
    is_waiting,
    waits_for,
)
from gpuscope.readings import ABSENT


@dataclass(frozen=True, slots=True)
class UseFinding:
    kind: str
    owner: FindingOwner
    gpus: list[GpuFacts]
    detail: Detail
    anchor: str
    """Keeps two findings of one owner apart: the UUID of the GPU that has been idle the longest."""


def use_findings(
    node: NodeFacts, now: float, ranks: Sequence[Ranks] = (), hung: Collection[str] = ()
) -> list[UseFinding]:
    """`ranks` are those of the whole fleet; `hung` are UUIDs."""
    waiting = [*_wait_for_rank(node, ranks, hung), *_wait(node, hung)]
    uneven = list(_only_some_work(node, now))
    explained = {(id(gpu), one.owner) for one in (*waiting, *uneven) for gpu in one.gpus}
    return [
        *waiting,
        *uneven,
        *_held_idle(node, now, explained),
        *_allocated_unused(node),
        *_used_unallocated(node, now),
        *_long_running(node, now),
    ]


def _wait_for_rank(node: NodeFacts, ranks: Iterable[Ranks], hung: Collection[str]) -> Iterator[UseFinding]:
    instance = node.labels["instance"]
    for owned in ranks:
        gpus = [
            gpu
            for gpu in owned.waiting
            if gpu.labels["instance"] == instance and gpu.labels["uuid"] not in hung
        ]
        if gpus:
            owner = main_owner(gpus[0].processes) or NO_OWNER
            detail = Detail({"slow": slow_places(owned.slow, instance)})
            yield UseFinding("waits_for_rank", owner, sorted(gpus, key=_index), detail, "")


def slow_places(gpus: Sequence[GpuFacts], instance: str) -> str:
    """`GPU 3`, or `node n2 GPU 3` where it is on another node."""
    first = gpus[0].labels
    elsewhere = first["instance"] != instance
    index = join_indices(gpu.labels["gpu"] for gpu in gpus if gpu.labels["instance"] == first["instance"])
    return f"{first.get('node') or first['instance']} GPU {index}" if elsewhere else f"GPU {index}"


def _wait(node: NodeFacts, hung: Collection[str]) -> Iterator[UseFinding]:
    """One for each cause and owner; of several causes the first of WAIT_THRESHOLDS is named."""
    found: dict[tuple[str, FindingOwner], list[tuple[GpuFacts, ProcessFacts]]] = defaultdict(list)
    for gpu in node.gpus:
        if gpu.labels["uuid"] in hung or not is_waiting(gpu):
            continue
        for kind in WAIT_THRESHOLDS:
            waiting = [process for process in gpu.processes if waits_for(kind, process)]
            for process in waiting:
                found[kind, process_owner(process)].append((gpu, process))
            if waiting:
                break
    for (kind, owner), members in found.items():
        metric, _ = WAIT_THRESHOLDS[kind]
        gpus = list({id(gpu): gpu for gpu, _ in members}.values())
        args: dict[str, Argument] = {
            "percent": whole(100 * max(process.plain[metric] for _, process in members)),
            "busy": whole(_mean(100 * gpu.plain[MINUTE_UTILIZATION] for gpu in gpus)),
        }
        yield UseFinding(kind, owner, sorted(gpus, key=_index), Detail(args), "")


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)


def _owner_on(gpu: GpuFacts, key: OwnerKey) -> FindingOwner:
    return next(process_owner(process) for process in gpu.processes if owner_of(process) == key)


def _idle_since_of(gpu: GpuFacts, key: OwnerKey) -> float:
    times = [process.plain[IDLE_SINCE] for process in gpu.processes if owner_of(process) == key]
    return max(times)


def _only_some_work(node: NodeFacts, now: float) -> Iterator[UseFinding]:
    for key, gpus in gpus_by_owner(node, now).items():
        if gpus.is_uneven:
            working = join_indices(gpu.labels["gpu"] for gpu in gpus.working)
            since = min(_idle_since_of(gpu, key) for gpu in gpus.idle)
            detail = Detail({"working": working}, since=since)
            yield UseFinding("only_some_work", _owner_on(gpus.idle[0], key), gpus.idle, detail, key[2])


def _held_idle(node: NodeFacts, now: float, explained: set[tuple[int, FindingOwner]]) -> Iterator[UseFinding]:
    by_owner: dict[FindingOwner, list[tuple[float, GpuFacts]]] = defaultdict(list)
    for gpu in node.gpus:
        since = idle_since(gpu)
        if since is ABSENT or not now - since > IDLE_FINDING_SECONDS:
            continue
        for owner in {process_owner(process) for process in gpu.processes}:
            if (id(gpu), owner) not in explained:
                by_owner[owner].append((since, gpu))
    for owner, idle in by_owner.items():
        for group in _close_in_time(idle):
            detail = Detail(since=group[0][0])
            gpus = [gpu for _, gpu in group]
            anchor = gpus[0].labels["uuid"]
            yield UseFinding("held_idle", owner, sorted(gpus, key=_index), detail, anchor)


def _close_in_time(idle: list[tuple[float, GpuFacts]]) -> Iterator[list[tuple[float, GpuFacts]]]:
    """Groups whose members went idle within 15 minutes, the longest idle first."""
    group: list[tuple[float, GpuFacts]] = []
    for since, gpu in sorted(idle, key=lambda one: (one[0], one[1].labels["uuid"])):
        if group and since - group[0][0] > IDLE_FINDING_SECONDS:
            yield group
            group = []
        group.append((since, gpu))
    if group:
        yield group


def _index(gpu: GpuFacts) -> tuple[int, str]:
    text = gpu.labels["gpu"]
    return len(text), text


def _allocated_unused(node: NodeFacts) -> Iterator[UseFinding]:
    by_owner: dict[FindingOwner, list[GpuFacts]] = defaultdict(list)
    used: Counter[FindingOwner] = Counter()
    for gpu in node.gpus:
        if not gpu.has_process_list:
            continue  # nobody knows whether its owner has a process on it
        for allocation in gpu.allocations:
            labels = allocation.labels
            job = labels.get("slurm_job", "")
            pod = FindingOwner("pod", labels.get("namespace", ""), labels.get("pod", ""))
            owner = pod if pod.name or not job else FindingOwner("job", "", job, _user_of_job(node, labels))
            if allocation.plain.get("gpuscope_allocation_used") == 0:
                by_owner[owner].append(gpu)
            else:
                used[owner] += 1
    for owner, gpus in by_owner.items():
        detail = Detail()
        if used[owner]:
            detail = Detail({"asked": len(gpus) + used[owner], "used": used[owner]}, "allocated_unused.some")
        yield UseFinding("allocated_unused", owner, sorted(gpus, key=_index), detail, "")


def _user_of_job(node: NodeFacts, allocation: Mapping[str, str]) -> str:
    """As the server has joined it from the cluster's queue, or as the node's own agent knows it."""
    known = node.slurm.jobs.get(allocation["slurm_job"])
    return allocation.get("user", "") or ("" if known is None else known.labels.get("user", ""))


def _used_unallocated(node: NodeFacts, now: float) -> Iterator[UseFinding]:
    by_owner: dict[FindingOwner, dict[str, GpuFacts]] = defaultdict(dict)
    for gpu in node.gpus:
        for process in strangers(gpu, node, now):
            by_owner[process_owner(process)][gpu.labels["uuid"]] = gpu
    for owner, gpus in by_owner.items():
        yield UseFinding("used_unallocated", owner, sorted(gpus.values(), key=_index), Detail(), "")


def _long_running(node: NodeFacts, now: float) -> Iterator[UseFinding]:
    check = CHECKS["long_running"]
    by_owner: dict[FindingOwner, dict[str, tuple[float, GpuFacts]]] = defaultdict(dict)
    for gpu in node.gpus:
        for process in gpu.processes:
            if check.live is not None and check.live(process, now):
                started_at = process.plain["gpuscope_process_start_time_seconds"]
                by_owner[process_owner(process)][gpu.labels["uuid"]] = started_at, gpu
    for owner, found in by_owner.items():
        gpus = sorted((gpu for _, gpu in found.values()), key=_index)
        detail = Detail(since=min(started_at for started_at, _ in found.values()))
        yield UseFinding("long_running", owner, gpus, detail, "")
