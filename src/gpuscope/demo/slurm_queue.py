"""The simulated queue: the records that squeue would print for jobs on GPUs and on CPU nodes at one moment.

GPU jobs are those of the GPUs' timelines (`job_runs`), so that a job which waits now runs later under the same
id. CPU jobs follow a plan of their own: an array every four hours, and single jobs one after the other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import ceil, inf, sqrt
from typing import Final

from gpuscope.demo.jobs import PEOPLE, SLURM, FirstProcess, Job, Person, digest
from gpuscope.demo.schedule import EPOCH
from gpuscope.demo.simulated_gpu import Gpu
from gpuscope.demo.track import Piece
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import PENDING, RUNNING, Gres, JobPlacement, SlurmJob

# Slurm jobs on simulated GPUs over time, read from the GPUs' timelines: which have ended, run, or will start.
#
# A job that will start is pending now: its id, its user and the GPUs it gets are those of the processes that
# appear later. Only jobs whose manager is Slurm are here.


@dataclass(frozen=True, slots=True)
class SlurmGpu:
    """A GPU or instance as Slurm counts it: its node, its index there, and its model or profile."""

    node: str
    index: int
    model: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRun:
    """One run of a job. `ends_at` is infinite if it does not end within the requested time."""

    job: Job
    first_process: FirstProcess
    ends_at: float
    crashed: bool = False
    units: tuple[SlurmGpu, ...] = field(default=())

    @property
    def job_id(self) -> int:
        return int(str(self.first_process.owner.job))

    @property
    def starts_at(self) -> float:
        return self.first_process.started_at


def find_runs(
    nodes: Iterable[tuple[str, Iterable[Gpu]]], since: float, until: float, known_at: float
) -> list[JobRun]:
    """The runs of all jobs in [since, until), each with all its GPUs, ordered by their start.

    Those after `known_at` are what is planned then: no scenario that begins later is known yet.
    """
    runs: dict[int, JobRun] = {}
    for node, gpus in nodes:
        for unit, run in _runs_of_node(node, gpus, since, until, known_at):
            known = runs.get(run.job_id)
            if known is None:
                runs[run.job_id] = replace(run, units=(unit,))
            elif unit not in known.units:
                ends_at, crashed = max(run.ends_at, known.ends_at), run.crashed or known.crashed
                runs[run.job_id] = replace(known, units=(*known.units, unit), ends_at=ends_at, crashed=crashed)
    return sorted(runs.values(), key=lambda run: (run.starts_at, run.job_id))


def _runs_of_node(
    node: str, gpus: Iterable[Gpu], since: float, until: float, known_at: float
) -> Iterator[tuple[SlurmGpu, JobRun]]:
    index = 0
    for gpu in gpus:
        for place, timeline in enumerate(gpu.timelines):
            key = gpu.model.key
            model = f"{key}_{gpu.instances[place].profile.name}" if gpu.instances else key
            unit = SlurmGpu(node, index, model)
            for run in _runs_of_pieces(gpu, list(timeline.pieces(since, until, known_at))):
                yield unit, run
            index += 1


def _runs_of_pieces(gpu: Gpu, pieces: list[Piece]) -> Iterator[JobRun]:
    """Activities that follow each other with the same job are one run."""
    for place, piece in enumerate(pieces):
        before = pieces[place - 1].activity.tenants if place else ()
        for tenant in piece.activity.tenants:
            if tenant.job.manager != SLURM or any(other.job is tenant.job for other in before):
                continue
            begins_at = piece.round_start + tenant.job.start
            first_process = gpu.run_of(tenant, piece.round_start, piece.round_number, begins_at)
            after = (
                later
                for later in pieces[place + 1 :]
                if all(other.job is not tenant.job for other in later.activity.tenants)
            )
            end = next(after, None)
            if end is None:
                yield JobRun(job=tenant.job, first_process=first_process, ends_at=inf)
            else:
                crashed = end.activity.xid != 0
                yield JobRun(
                    job=tenant.job, first_process=first_process, ends_at=end.begins_at, crashed=crashed
                )


MAX_WAIT_SECONDS: Final = 12 * 3600.0
REMEMBERED_SECONDS: Final = 300.0  # MinJobAge: how long slurmctld remembers a job that has ended
CPUS_PER_GPU: Final = 4
CPU_PARTITION: Final = "cpu"
INTERACTIVE: Final = "interactive"
CPU_NODES: Final = ("cpu-01", "cpu-02")
LICENSE_EVERY: Final = 3  # every third single CPU job holds a licence

_ARRAY_SECONDS: Final = 4 * 3600.0
_TASKS: Final = 24
_TASKS_AT_ONCE: Final = 4
_TASK_SECONDS: Final = 1500.0
_SINGLE_SECONDS: Final = 3000.0
_BLOCKED_SECONDS: Final = 86_400.0
# Ranges of job ids that the ids of GPU jobs, which grow by 8 a minute since 2025, do not reach for years.
_FIRST_SINGLE_ID: Final = 20_000_000
_FIRST_ARRAY_ID: Final = 40_000_000
_FIRST_BLOCKED_ID: Final = 60_000_000


def gpu_jobs(runs: Iterable[JobRun], at: float) -> Iterator[SlurmJob]:
    """Jobs that have ended a moment ago, that run, and that wait; the next to start waits for resources."""
    first_in: set[str] = set()
    for run in runs:
        submitted_at = _submitted_at(run)
        if run.starts_at <= at < run.ends_at:
            yield _job(run, RUNNING, "None", submitted_at, submitted_at)
        elif at - REMEMBERED_SECONDS < run.ends_at <= at:
            state, reason = ("FAILED", "NonZeroExitCode") if run.crashed else ("COMPLETED", "None")
            yield _job(run, state, reason, submitted_at, submitted_at, ended=True)
        elif submitted_at <= at < run.starts_at:
            reason = _reason(run, first_in)
            yield _job(run, PENDING, reason, submitted_at, ABSENT if reason == "Dependency" else submitted_at)


def placements(runs: Iterable[JobRun], at: float) -> dict[int, tuple[JobPlacement, ...]]:
    """What each running job holds, by node."""
    found = {}
    for run in runs:
        if run.starts_at <= at < run.ends_at:
            nodes = dict.fromkeys(unit.node for unit in run.units)
            found[run.job_id] = tuple(JobPlacement(node, gres_of(run.units, node)) for node in nodes)
    return found


def cpu_placements(jobs: Iterable[SlurmJob]) -> dict[int, tuple[JobPlacement, ...]]:
    return {job.job_id: (JobPlacement(job.node_list, ()),) for job in jobs if job.state == RUNNING}


def gres_of(units: Iterable[SlurmGpu], node: str = "") -> tuple[Gres, ...]:
    """By model; with the indices on that node if one is given."""
    models: dict[str, list[int]] = {}
    for unit in units:
        if not node or unit.node == node:
            models.setdefault(unit.model, []).append(unit.index)
    return tuple(
        Gres("gpu", model, len(indices), tuple(indices) if node else ABSENT)
        for model, indices in models.items()
    )


def _unit_interval(run: JobRun, what: str) -> float:
    return int(digest(run.job.key, run.first_process.started_at, what)[:8], 16) / 0xFFFFFFFF


def _submitted_at(run: JobRun) -> float:
    """Most wait for minutes, some for hours; interactive jobs start soon."""
    longest = 2.85 if run.job.partition != INTERACTIVE else 1.2
    wait: float = 60.0 * 10.0 ** (longest * sqrt(_unit_interval(run, "wait")))
    return run.starts_at - min(MAX_WAIT_SECONDS, wait)


def _reason(run: JobRun, first_in: set[str]) -> str:
    chance = _unit_interval(run, "reason")
    if chance < 0.12:
        return "Dependency"
    if chance < 0.24:
        return "QOSMaxGRESPerUser"
    if run.job.partition in first_in:
        return "Priority"
    first_in.add(run.job.partition)
    return "Resources"


def _job(
    run: JobRun, state: str, reason: str, submitted_at: float, eligible_at: Maybe[float], *, ended: bool = False
) -> SlurmJob:
    limit = 3600.0 * ceil(run.job.workload.hours[1]) if run.ends_at < inf else inf
    ends_at: Maybe[float] = run.ends_at if ended else run.starts_at + limit
    waits = state == PENDING
    nodes = dict.fromkeys(unit.node for unit in run.units)
    return SlurmJob(
        job_id=run.job_id,
        user=run.job.person.user,
        account=run.job.person.group,
        partitions=(run.job.partition,),
        state=state,
        reason=reason,
        name=f"{run.job.workload.name}-{digest(run.job.key)[:4]}",
        cpus=CPUS_PER_GPU * len(run.units),
        node_count=len(nodes),
        gres=gres_of(run.units),
        node_list="" if waits else ",".join(nodes),
        qos="interactive" if run.job.partition == INTERACTIVE else "normal",
        submitted_at=submitted_at,
        eligible_at=eligible_at,
        started_at=run.starts_at if not waits or reason == "Resources" else ABSENT,
        ends_at=ABSENT if ends_at == inf or waits else ends_at,
    )


def blocked_job(at: float, node: str, model: str, gpus: int) -> SlurmJob:
    """A large job that waits for a node which is down; its owner submits it again every day."""
    day = int((at - EPOCH) // _BLOCKED_SECONDS)
    since = EPOCH + (day - 0.35) * _BLOCKED_SECONDS
    person = PEOPLE[4]
    return SlurmJob(
        job_id=_FIRST_BLOCKED_ID + day,
        user=person.user,
        account=person.group,
        partitions=("gpu",),
        state=PENDING,
        reason=f"ReqNodeNotAvail, UnavailableNodes:{node}",
        name="pretrain-2-nodes",
        cpus=CPUS_PER_GPU * 2 * gpus,
        node_count=2,
        gres=(Gres("gpu", model, 2 * gpus),),
        node_list="",
        qos="normal",
        submitted_at=since,
        eligible_at=since,
    )


def cpu_jobs(at: float) -> Iterator[SlurmJob]:
    yield from _array(at)
    for place, node in enumerate(CPU_NODES):
        number = int((at - EPOCH) // _SINGLE_SECONDS)
        start = EPOCH + number * _SINGLE_SECONDS
        person = PEOPLE[(5 * number + place) % len(PEOPLE)]
        licensed = "matlab" if number % LICENSE_EVERY == 0 else "prepare"
        job_id = _FIRST_SINGLE_ID + len(CPU_NODES) * number + place
        yield _cpu_job(job_id, person, f"{licensed}-{place}", start, node, _SINGLE_SECONDS)


def licenses_used(at: float) -> int:
    return 2 * sum(job.name.startswith("matlab") for job in cpu_jobs(at))


def _array(at: float) -> Iterator[SlurmJob]:
    """Four of its tasks run at a time; those that wait are one record."""
    number = int((at - EPOCH) // _ARRAY_SECONDS)
    start = EPOCH + number * _ARRAY_SECONDS
    base = _FIRST_ARRAY_ID + 2 * _TASKS * number
    person = PEOPLE[number % len(PEOPLE)]
    first = _TASKS_AT_ONCE * int((at - start) // _TASK_SECONDS)
    if first >= _TASKS:
        return
    for task in range(first, first + _TASKS_AT_ONCE):
        began = start + task // _TASKS_AT_ONCE * _TASK_SECONDS
        job = _cpu_job(base + 1 + task, person, "tokenize", began, CPU_NODES[task % 2], _TASK_SECONDS)
        yield job._replace(array_job_id=base, array_task=str(task), submitted_at=start, eligible_at=start)
    left = _TASKS - first - _TASKS_AT_ONCE
    if left > 0:
        waiting = _cpu_job(base, person, "tokenize", start, "", _TASK_SECONDS)
        yield waiting._replace(
            state=PENDING,
            reason="JobArrayTaskLimit",
            tasks=left,
            array_job_id=base,
            array_task=f"{first + _TASKS_AT_ONCE}-{_TASKS - 1}%{_TASKS_AT_ONCE}",
            started_at=ABSENT,
            ends_at=ABSENT,
        )


def _cpu_job(job_id: int, person: Person, name: str, start: float, node: str, seconds: float) -> SlurmJob:
    return SlurmJob(
        job_id=job_id,
        user=person.user,
        account=person.group,
        partitions=(CPU_PARTITION,),
        state=RUNNING,
        reason="None",
        name=name,
        cpus=8,
        node_count=1,
        gres=(),
        node_list=node,
        qos="normal",
        submitted_at=start - 40.0,
        eligible_at=start - 40.0,
        started_at=start,
        ends_at=start + 2 * seconds,
    )


def cpus_by_node(jobs: Iterable[SlurmJob], placed: Mapping[int, tuple[JobPlacement, ...]]) -> Counter[str]:
    """CPUs that running jobs hold on each node."""
    held: Counter[str] = Counter()
    for job in jobs:
        for placement in placed.get(job.job_id, ()):
            gpus = sum(gres.count for gres in placement.gres)
            held[placement.node] += CPUS_PER_GPU * gpus or job.cpus
    return held
