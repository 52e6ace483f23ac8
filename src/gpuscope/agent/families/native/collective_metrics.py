"""Native metrics of NCCL jobs: ranks, missing ranks, ranks that are behind, and whom the others wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.native_metric import LabelCache, NativeMetric
from gpuscope.model.readings import ABSENT, Maybe, Owner, Process, Snapshot, Uuid
from gpuscope.model.readings.snapshot import CollectiveJob, LocalRank

# The native metrics of NCCL jobs, one row each; `collective_metrics.py` fills them.
#
# The numbers of a job are exported by the one agent that asks it, which is that of its lowest rank. `host`
# and `host_pid` are an address and a PID as the job itself has them: they identify a rank over all nodes.

OWNER_LABELS = ("user", "namespace", "pod", "container", "slurm_job")
_JOB = ("nccl_job", *OWNER_LABELS)


def _job(name: str, help_text: str, unit: str = "count") -> NativeMetric:
    return NativeMetric(f"gpuscope_nccl_job_{name}", "gauge", "", help_text, _JOB, unit)


JOB_INFO = NativeMetric(
    "gpuscope_nccl_job_info",
    "info",
    "",
    "An NCCL job with processes on this node, named by its lowest process; the value is always 1.",
    ("nccl_job", "version"),
)
JOB_RANKS = _job("ranks", "Ranks of the job's largest communicator.")
JOB_MISSING = _job("missing_ranks", "Ranks whose process does not answer NCCL.")
JOB_BEHIND = _job("behind_ranks", "Ranks that have launched fewer operations than others; normal for a moment.")
JOB_FAILED = _job("failed_ranks", "Ranks with an error of NCCL.")
JOB_COMMUNICATORS = _job("communicators", "Communicators of the job.")
JOB_STALLED = _job(
    "stalled_seconds",
    "How long ranks have waited for others without any new operation in a communicator; 0 while it works.",
    "seconds",
)
RANK_INFO = NativeMetric(
    "gpuscope_nccl_rank_info",
    "info",
    "",
    "A rank of an NCCL job on this node: its process and GPU; the value is always 1.",
    ("nccl_job", "uid", "host", "host_pid", "rank", "pid", "gpu", "uuid"),
)
RANK_OPERATIONS = NativeMetric(
    "gpuscope_nccl_rank_operations_total",
    "counter",
    "",
    "Collective operations that a rank on this node has launched in the job's largest communicator.",
    ("nccl_job", "rank", "pid", "gpu", "uuid"),
)
STALLED_RANK = NativeMetric(
    "gpuscope_nccl_stalled_rank_seconds",
    "gauge",
    "",
    "How long the others have waited for this rank, wherever it runs, because it is behind, silent (its "
    "process does not answer) or dead; from one minute on.",
    ("nccl_job", "uid", "rank", "host", "host_pid", "reason", *OWNER_LABELS),
)
STALLED_RANK_INFO = NativeMetric(
    "gpuscope_nccl_stalled_rank_info",
    "info",
    "",
    "Which operation the others wait in, and how many they are; the value is always 1.",
    (
        "nccl_job", "rank", "host", "host_pid", "communicator", "operation", "launched", "furthest", "waiting",
    ),
)  # fmt: skip
REQUESTS = NativeMetric(
    "gpuscope_nccl_requests_total", "counter", "", "Requests to NCCL jobs on this machine.", ("result",)
)

COLLECTIVE_METRICS: tuple[NativeMetric, ...] = (
    JOB_INFO, JOB_RANKS, JOB_MISSING, JOB_BEHIND, JOB_FAILED, JOB_COMMUNICATORS, JOB_STALLED, RANK_INFO,
    RANK_OPERATIONS, STALLED_RANK, STALLED_RANK_INFO, REQUESTS,
)  # fmt: skip


Values = dict[tuple[str, ...], Maybe[float]]

_NUMBERS = (
    (JOB_RANKS, "ranks"),
    (JOB_MISSING, "missing"),
    (JOB_BEHIND, "behind"),
    (JOB_FAILED, "failed"),
    (JOB_COMMUNICATORS, "communicators"),
    (JOB_STALLED, "stalled_seconds"),
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
            for family in (*families, self._cache.family(REQUESTS, requests))
            if family.name in self._only
        )

    def _jobs(self, snapshot: Snapshot, jobs: Iterable[CollectiveJob]) -> Iterator[MetricFamily]:
        owners = owner_labels(snapshot, jobs)
        yield self._cache.family(JOB_INFO, {(job.name, job.version): 1 for job in jobs})
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
        yield self._cache.family(STALLED_RANK, seconds)
        yield self._cache.family(STALLED_RANK_INFO, infos)

    def _ranks(self, snapshot: Snapshot, jobs: Iterable[CollectiveJob]) -> Iterator[MetricFamily]:
        index = {device.uuid: str(device.index) for device in snapshot.devices}
        infos: Values = {}
        operations: Values = {}
        for job in jobs:
            for rank in job.local:
                where = (str(rank.rank), str(rank.pid), *_gpu(rank, index))
                infos[job.name, str(job.uid), rank.host, str(rank.host_pid), *where] = 1
                operations[job.name, *where] = rank.operations
        yield self._cache.family(RANK_INFO, infos)
        yield self._cache.family(RANK_OPERATIONS, operations)


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
            OWNER_LABELS
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
