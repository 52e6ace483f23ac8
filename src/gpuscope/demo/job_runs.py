"""Slurm jobs on simulated GPUs over time, read from the GPUs' timelines: which have ended, run, or will start.

A job that will start is pending now: its id, its user and the GPUs it gets are those of the processes
that appear later. Only jobs whose manager is Slurm are here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import inf

from gpuscope.demo.jobs import SLURM, FirstProcess, Job
from gpuscope.demo.simulated_gpu import Gpu
from gpuscope.demo.track import Piece


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
