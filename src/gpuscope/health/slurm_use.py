"""Use of a Slurm node's GPUs without an allocation: its check, and whose processes they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from gpuscope.health.check import Check, Severity, Subject, is_above
from gpuscope.health.facts import GpuFacts, NodeFacts, ProcessFacts
from gpuscope.owners.services import is_service_program
from gpuscope.owners.unallocated_use import NEW_SECONDS

UNALLOCATED: Final = "gpuscope_gpu_unallocated_processes"

SLURM_USE_CHECKS: Final = (
    Check(
        kind="used_unallocated",
        alert="UsedUnallocated",
        subject=Subject.GPU,
        severity=Severity.WARNING,
        promql=f"{UNALLOCATED} > 0",
        live=lambda gpu, now: is_above(gpu.number(UNALLOCATED), 0),
        for_seconds=300,
        meaning="A process uses a GPU of a Slurm node, and Slurm did not allocate the GPU to its job.",
        next_step="ask its owner to submit a job; ConstrainDevices=yes and pam_slurm_adopt prevent it",
    ),
)


def is_exempt(process: ProcessFacts, now: float) -> bool:
    """Services of the node, graphics, containers, and what has just started."""
    labels = process.labels
    started_at = process.plain.get("gpuscope_process_start_time_seconds")
    return (
        started_at is None
        or now - started_at < NEW_SECONDS
        or is_service_program(labels.get("type", ""), labels.get("command", ""))
        or bool(labels.get("pod") or labels.get("container"))
    )


def strangers(gpu: GpuFacts, node: NodeFacts, now: float) -> Iterator[ProcessFacts]:
    """The processes on the GPU that belong to none of its allocations; how many there are is known before."""
    if not is_above(gpu.number(UNALLOCATED), 0):
        return
    jobs = {one.labels["slurm_job"] for one in gpu.allocations if one.labels.get("slurm_job")}
    users = {one.labels.get("user", "") for one in gpu.allocations}
    users |= {node.slurm.jobs[job].labels.get("user", "") for job in jobs if job in node.slurm.jobs}
    for process in gpu.processes:
        job, user = process.labels.get("slurm_job", ""), process.labels.get("user", "")
        if not is_exempt(process, now) and (job not in jobs if job else user not in users):
            yield process
