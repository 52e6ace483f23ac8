"""Native metrics of NCCL jobs: ranks, missing ranks, ranks that are behind, and whom the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuscope.agent.families.native import collective_table as rows
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.native_metric import LabelCache
from gpuscope.model.readings import ABSENT, Maybe, Owner, Process, Snapshot, Uuid
from gpuscope.model.readings.collectives import CollectiveJob, LocalRank

Values = dict[tuple[str, ...], Maybe[float]]

_NUMBERS = (
    (rows.JOB_RANKS, "ranks"),
    (rows.JOB_MISSING, "missing"),
    (rows.JOB_BEHIND, "behind"),
    (rows.JOB_FAILED, "failed"),
    (rows.JOB_COMMUNICATORS, "communicators"),
    (rows.JOB_STALLED, "stalled_seconds"),
)


class CollectiveMetrics:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only
        self._cache = LabelCache()

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        reading = snapshot.collectives
        if reading is ABSENT or not (reading.jobs or any(reading.requests.values())):
            return iter(())
        families = (*self._jobs(snapshot, reading.jobs), *self._ranks(snapshot, reading.jobs))
        requests: Values = {(result,): count for result, count in reading.requests.items()}
        return (
            family
            for family in (*families, self._cache.family(rows.REQUESTS, requests))
            if family.name in self._only
        )

    def _jobs(self, snapshot: Snapshot, jobs: Iterable[CollectiveJob]) -> Iterator[MetricFamily]:
        owners = owner_labels(snapshot, jobs)
        yield self._cache.family(rows.JOB_INFO, {(job.name, job.version): 1 for job in jobs})
        for row, attribute in _NUMBERS:
            yield self._cache.family(
                row, {(job.name, *owners[job.name]): getattr(job, attribute) for job in jobs if job.followed}
            )
        seconds: Values = {}
        infos: Values = {}
        for job in jobs:
            for rank in job.stalled:
                place = (str(rank.rank), rank.host, str(rank.host_pid))
                seconds[job.name, str(job.uid), *place, rank.reason, *owners[job.name]] = rank.seconds
                numbers = map(_text, (rank.launched, rank.furthest, rank.waiting))
                infos[job.name, *place, rank.communicator, rank.operation, *numbers] = 1
        yield self._cache.family(rows.STALLED_RANK, seconds)
        yield self._cache.family(rows.STALLED_RANK_INFO, infos)

    def _ranks(self, snapshot: Snapshot, jobs: Iterable[CollectiveJob]) -> Iterator[MetricFamily]:
        index = {device.uuid: str(device.index) for device in snapshot.devices}
        infos: Values = {}
        operations: Values = {}
        for job in jobs:
            for rank in job.local:
                where = (str(rank.rank), str(rank.pid), *_gpu(rank, index))
                infos[job.name, str(job.uid), rank.host, str(rank.host_pid), *where] = 1
                operations[job.name, *where] = rank.operations
        yield self._cache.family(rows.RANK_INFO, infos)
        yield self._cache.family(rows.RANK_OPERATIONS, operations)


def owner_labels(snapshot: Snapshot, jobs: Iterable[CollectiveJob]) -> dict[str, tuple[str, ...]]:
    """By job, in the order of `OWNER_LABELS`: what all its processes here have in common, else empty."""
    by_pid: dict[int, Process] = {}
    for process in () if snapshot.processes is ABSENT else snapshot.processes:
        by_pid.setdefault(int(process.pid), process)
    labels = {}
    for job in jobs:
        owners = [_owner(by_pid[pid]) for pid in job.pids if pid in by_pid]
        columns = zip(*(map(_text, _owner_texts(owner)) for owner in owners), strict=True)
        labels[job.name] = tuple(texts[0] if len(set(texts)) == 1 else "" for texts in columns) or ("",) * len(
            rows.OWNER_LABELS
        )
    return labels


def _owner(process: Process) -> Owner:
    """As in the series of the process, which keep their first labels."""
    return process.owner if process.labels is ABSENT else process.labels.owner


def _owner_texts(owner: Owner) -> tuple[Maybe[str], ...]:
    return owner.user, owner.namespace, owner.pod, owner.container, owner.job


def _gpu(rank: LocalRank, index: Mapping[Uuid, str]) -> tuple[str, str]:
    uuid = rank.gpu_uuid
    return ("", "") if uuid is ABSENT or uuid not in index else (index[uuid], uuid)


def _text(value: Maybe[str] | Maybe[int]) -> str:
    return "" if value is ABSENT else str(value)
