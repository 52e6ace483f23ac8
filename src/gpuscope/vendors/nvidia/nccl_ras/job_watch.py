"""One NCCL job over time: its name, whether this node follows it, for how long it stalls, and who holds it up.

Input: status documents and the job's processes on this node; output: a `CollectiveJob`. That ranks differ is
normal for a moment: a communicator stalls only while ranks differ, or do not answer, and no rank launches
anything. The rank that others wait for is one that is behind and does not itself wait in another communicator.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe, Uuid
from gpuscope.model.readings.snapshot import (
    BEHIND,
    DEAD,
    SILENT,
    CollectiveJob,
    LocalRank,
    StalledRank,
)
from gpuscope.vendors.nvidia.nccl_ras.endpoints import LocalProcess, RasEndpoint
from gpuscope.vendors.nvidia.nccl_ras.ras_status import Communicator, Member, RasStatus

SHOWN_AFTER_SECONDS: Final = 60.0
MAX_STALLED_RANKS: Final = 16
MAX_LOCAL_RANKS: Final = 64

Place = tuple[str, int]
"""Host and PID of a process, as RAS names it."""


@dataclass(frozen=True, slots=True)
class ThisNode:
    """What this machine knows of the processes at an endpoint."""

    endpoint: RasEndpoint
    addresses: Collection[str]
    gpus: Mapping[int, Sequence[Uuid]]  # of each PID, in the order of their indices
    name: str  # of the machine

    def process_at(self, place: Place) -> LocalProcess | None:
        """None if it runs elsewhere, or if it could be two processes: containers that share a network may each
        have a PID 7."""
        if place[0] not in self.addresses:
            return None
        same = [process for process in self.endpoint.processes if process.namespace_pid == place[1]]
        return same[0] if len(same) == 1 else None


def job_name(status: RasStatus, here: ThisNode) -> str:
    """The same on every node: the lowest process. Text does not name them: there it is this node's lowest."""
    places = {(host, pid) for communicator in status.communicators for _, host, pid in communicator.places}
    if any(communicator.members for communicator in status.communicators):
        host, pid = min(places)
    else:
        host, pid = here.name, min(process.pid for process in here.endpoint.processes)
    return f"{host}:{pid}"


def is_followed_here(status: RasStatus, here: ThisNode) -> bool:
    """Whether this node has the lowest rank that answers, so that one node of the job asks."""
    largest = largest_communicator(status)
    if largest is not None and largest.members:
        first = min(largest.members, key=lambda member: member.rank)
        return here.process_at((first.host, first.pid)) is not None
    return status.nodes == 1 or any(process.world_rank == 0 for process in here.endpoint.processes)


def largest_communicator(status: RasStatus) -> Communicator | None:
    """Of several, the one whose lowest rank is the lowest process, so that all nodes choose the same."""
    return max(
        status.communicators,
        key=lambda communicator: (communicator.size, _descending(communicator)),
        default=None,
    )


def _descending(communicator: Communicator) -> tuple[int, ...]:
    if not communicator.members:
        return ()
    first = min(communicator.members, key=lambda member: member.rank)
    return tuple(-ord(letter) for letter in f"{first.host}:{first.pid:010}:{communicator.id}")


@dataclass(slots=True)
class _Progress:
    seen: Hashable
    since: float  # when it was first seen so


@dataclass(slots=True)
class JobWatch:
    """What is remembered of a job between two documents."""

    job: CollectiveJob
    asked_at: float
    nodes: int = 1
    _progress: dict[str, _Progress] = field(default_factory=dict)

    def update(self, status: RasStatus, here: ThisNode, now: float, *, name: str, followed: bool) -> None:
        self.asked_at = now
        ranks = _job_ranks(status)
        self.nodes = len({host for host, _ in ranks}) or 1
        local = tuple(_local_ranks(status, here, followed=followed))[:MAX_LOCAL_RANKS]
        job = CollectiveJob(
            name=name,
            uid=here.endpoint.uid,
            pids=_pids(status, local, here),
            followed=followed,
            version=status.version,
            local=local,
        )
        self.job = self._with_state(job, status, here, ranks, now) if followed else job

    def _with_state(
        self, job: CollectiveJob, status: RasStatus, here: ThisNode, ranks: Mapping[Place, int], now: float
    ) -> CollectiveJob:
        stalls = self._stalls(status, now)
        communicators, largest = status.communicators, largest_communicator(status)
        return replace(
            job,
            ranks=0 if largest is None else largest.size,
            # A rank has another number in each of its communicators: the most in one of them.
            missing=max((len(each.silent) for each in communicators), default=0),
            behind=max((each.behind_count for each in communicators), default=0),
            failed=max((each.failed for each in communicators), default=0),
            communicators=len(communicators),
            stalled_seconds=max((seconds for _, seconds in stalls), default=0.0),
            stalled=tuple(_culprits(stalls, ranks, here))[:MAX_STALLED_RANKS],
        )

    def _stalls(self, status: RasStatus, now: float) -> list[tuple[Communicator, float]]:
        """The communicators in which somebody waits, and for how long nothing has been launched in them."""
        progress: dict[str, _Progress] = {}
        stalls = []
        for communicator in status.communicators:
            seen = communicator.progress, len(communicator.silent)
            known = self._progress.get(communicator.id)
            if known is None or known.seen != seen:
                known = _Progress(seen, now)
            progress[communicator.id] = known
            if communicator.running and (communicator.behind_count or communicator.silent):
                stalls.append((communicator, now - known.since))
        self._progress = progress
        return stalls


def _culprits(
    stalls: list[tuple[Communicator, float]], ranks: Mapping[Place, int], here: ThisNode
) -> Iterator[StalledRank]:
    """Those who hold the others up, the longest stall first."""
    long_stalls = [stall for stall in stalls if stall[1] >= SHOWN_AFTER_SECONDS]
    waiting = {place for communicator, _ in long_stalls for place in _waiting(communicator)}
    rows = [row for communicator, seconds in long_stalls for row in _rows(communicator, seconds, ranks)]
    first = [row for row in rows if (row.host, row.host_pid) not in waiting]
    named: set[tuple[str, int, int]] = set()
    for row in sorted(first or rows, key=lambda row: (-row.seconds, row.reason == BEHIND, row.rank)):
        key = row.host, row.host_pid, row.rank
        if key not in named:
            named.add(key)
            process = here.process_at((row.host, row.host_pid))
            yield row if process is None else replace(row, pid=process.pid)


def _waiting(communicator: Communicator) -> Iterator[Place]:
    behind = {(rank.host, rank.pid) for rank in communicator.behind}
    places = ((member.host, member.pid) for member in communicator.members)
    return (place for place in places if place not in behind)


def _rows(communicator: Communicator, seconds: float, ranks: Mapping[Place, int]) -> Iterator[StalledRank]:
    for silent in communicator.silent:
        yield StalledRank(
            communicator=communicator.id,
            rank=ranks.get((silent.host, silent.pid), silent.rank),
            host=silent.host,
            host_pid=silent.pid,
            reason=DEAD if silent.dead else SILENT,
            seconds=seconds,
        )
    for rank in communicator.behind:
        yield StalledRank(
            communicator=communicator.id,
            rank=ranks.get((rank.host, rank.pid), rank.rank),
            host=rank.host,
            host_pid=rank.pid,
            reason=BEHIND,
            seconds=seconds,
            operation=rank.operation,
            launched=rank.launched,
            furthest=rank.furthest,
            waiting=rank.waiting,
        )


def _pids(status: RasStatus, local: Sequence[LocalRank], here: ThisNode) -> tuple[int, ...]:
    if any(communicator.members for communicator in status.communicators):
        return tuple(dict.fromkeys(rank.pid for rank in local))
    return tuple(process.pid for process in here.endpoint.processes)  # text does not say which


def _job_ranks(status: RasStatus) -> dict[Place, int]:
    """The rank of each process in the job's largest communicator; not of a process with several ranks there."""
    largest = largest_communicator(status)
    ranks: dict[Place, list[int]] = {}
    for rank, host, pid in () if largest is None else largest.places:
        ranks.setdefault((host, pid), []).append(rank)
    return {place: numbers[0] for place, numbers in ranks.items() if len(numbers) == 1}


def _local_ranks(status: RasStatus, here: ThisNode, *, followed: bool) -> Iterator[LocalRank]:
    largest = largest_communicator(status)
    by_process: dict[LocalProcess, list[Member]] = {}
    for member in () if largest is None else largest.members:
        process = here.process_at((member.host, member.pid))
        if process is not None:
            by_process.setdefault(process, []).append(member)
    for process, members in by_process.items():
        gpus = here.gpus.get(process.pid, ())
        # A container may number its GPUs anew, but keeps their order.
        matched: Sequence[Maybe[Uuid]] = gpus if len(gpus) == len(members) else (ABSENT,) * len(members)
        for member, uuid in zip(sorted(members, key=lambda member: member.nvml_dev), matched, strict=True):
            yield LocalRank(
                rank=member.rank,
                host=member.host,
                host_pid=member.pid,
                pid=process.pid,
                gpu_uuid=uuid,
                operations=member.operations if followed else ABSENT,
            )
