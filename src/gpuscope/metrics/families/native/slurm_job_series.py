"""Series of single Slurm jobs: who runs what on which GPUs of which nodes. Their number is bounded.

Of the jobs that hold resources those with GPUs come first, then the oldest. `index` of a GPU is the number that
Slurm gives it on its node; the agent of that node says which GPU it is.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.metrics.families.native import slurm_table as rows
from gpuscope.metrics.sample import NO_LABELS, LabelSet, MetricFamily, Sample, label_texts
from gpuscope.readings import ABSENT
from gpuscope.readings.slurm import HOLDS_RESOURCES, SlurmJob, SlurmState

MAX_NODES_PER_JOB = 1024


def job_families(state: SlurmState) -> Iterator[MetricFamily]:
    jobs = () if state.jobs is ABSENT else state.jobs
    holding = [job for job in jobs if job.state in HOLDS_RESOURCES]
    holding.sort(key=lambda job: (not _has_gpus(state, job), job.job_id))
    shown = holding[: state.max_job_series]
    yield rows.JOBS_WITHOUT_SERIES.family([Sample(NO_LABELS, len(holding) - len(shown))])
    yield rows.JOB.family([Sample(_info_labels(job), 1) for job in shown])
    numbers = [(LabelSet((("job", str(job.job_id)),)), job) for job in shown]
    yield rows.JOB_GPUS.family([Sample(labels, job.gpus) for labels, job in numbers])
    yield rows.JOB_START.family(
        [Sample(labels, at) for labels, job in numbers if (at := job.started_at) is not ABSENT]
    )
    yield rows.JOB_END.family(
        [Sample(labels, at) for labels, job in numbers if (at := job.ends_at) is not ABSENT]
    )
    yield from _placement_families(state, shown)


def _has_gpus(state: SlurmState, job: SlurmJob) -> bool:
    placements = () if state.placements is ABSENT else state.placements.get(job.job_id, ())
    return bool(job.gres) or any(placement.gres for placement in placements)


def _info_labels(job: SlurmJob) -> LabelSet:
    array = "" if job.array_job_id is ABSENT else str(job.array_job_id)
    texts = (
        str(job.job_id), array, job.array_task, job.name, job.user, job.account,
        ",".join(job.partitions), job.qos,
    )  # fmt: skip
    return label_texts(rows.JOB.labels, texts)


def _placement_families(state: SlurmState, shown: list[SlurmJob]) -> Iterator[MetricFamily]:
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
    yield rows.JOB_NODE.family([Sample(label_texts(rows.JOB_NODE.labels, t), v) for t, v in on_nodes.items()])
    yield rows.JOB_GRES.family([Sample(label_texts(rows.JOB_GRES.labels, t), v) for t, v in gres.items()])
