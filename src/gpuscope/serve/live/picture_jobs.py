"""The Slurm jobs of `/api/live`: those that hold or use a GPU, with what node and cluster know about them.

The agent of a node knows its jobs from prolog and processes; the agent that reads the cluster knows them all.
Where both know something, the cluster is right: Slurm may have changed a job since it started.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Literal

from gpuscope.judge.checks.facts import KnownJob, Labels, NodeFacts
from gpuscope.serve.api_types.live_json import LiveJob
from gpuscope.serve.live.fleet_judge import JudgedFleet
from gpuscope.serve.live.shown_text import shown_text

JobText = Literal["name", "user", "account", "partition"]
_JOB_TEXTS: Final[tuple[JobText, ...]] = ("name", "user", "account", "partition")


def jobs_of_node(node: NodeFacts) -> frozenset[str]:
    """That hold or use one of its GPUs."""
    found = set()
    for gpu in node.gpus:
        for subject in (*gpu.allocations, *gpu.processes):
            found.add(subject.labels.get("slurm_job", ""))
    return frozenset(found - {""})


def live_jobs(judged: JudgedFleet, jobs: Iterable[str]) -> list[LiveJob]:
    found: dict[str, LiveJob] = {job: {"job": shown_text(job)} for job in jobs}
    if not found:
        return []
    for node in judged.nodes.values():
        if node.sorted.node is not None:
            for number, known in node.sorted.node.slurm.jobs.items():
                _add(found, number, known)
    for cluster in judged.clusters.values():
        for number, known in cluster.jobs.items():
            _add(found, number, known)
    return sorted(found.values(), key=lambda job: (len(job["job"]), job["job"]))


def _add(found: dict[str, LiveJob], number: str, known: KnownJob) -> None:
    job = found.get(number)
    if job is None:
        return
    for name in _JOB_TEXTS:
        if known.labels.get(name):
            job[name] = shown_text(known.labels[name])
    array = _array(known.labels)
    if array:
        job["array"] = shown_text(array)
    if known.ends_at is not None:
        job["ends_at"] = known.ends_at


def _array(labels: Labels) -> str:
    if labels.get("array"):
        return labels["array"]
    first, task = labels.get("array_job", ""), labels.get("array_task", "")
    return f"{first}_{task}" if first and task.isdigit() else ""
