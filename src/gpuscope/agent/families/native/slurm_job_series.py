"""Series of single Slurm jobs: who runs what on which GPUs of which nodes, and who waits; a bounded number.

Of the jobs that hold resources those with GPUs come first, then the oldest. `index` of a GPU is the number that
Slurm gives it on its node; the agent of that node says which GPU it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from heapq import nsmallest
from math import inf

from gpuscope.agent.families.native import slurm_table as rows
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.native_metric import LabelCache
from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.model.readings.slurm import HOLDS_RESOURCES, PENDING, SUSPENDED, Gres, SlurmJob, SlurmState

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
            for one in placement.gres:
                for index in () if one.indices is ABSENT else one.indices:
                    gres[number, placement.node, one.kind, one.model, str(index)] = 1
    yield cache.family(rows.JOB_NODE, on_nodes)
    yield cache.family(rows.JOB_GRES, gres)
