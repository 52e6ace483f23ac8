"""How GPUs are used: held idle, allocated and unused, only some of an owner's GPUs at work, memory without an
owner.

Each of these findings names a person, so it needs proof: a process whose activity is not known is never idle.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from gpuscope.health.check import Check, Severity, Subject, is_above, is_below
from gpuscope.health.facts import GpuFacts, NodeFacts, ProcessFacts
from gpuscope.health.thresholds import (
    HELD_IDLE_SECONDS,
    IDLE_FINDING_SECONDS,
    LONG_RUNNING_SECONDS,
    ORPHAN_MEMORY_BYTES,
    UNEVEN_SECONDS,
    WORKING_RATIO,
)
from gpuscope.readings import ABSENT, Maybe

OwnerKey = tuple[str, str, str]
"""Kind (`pod`, `job` or `program`), namespace or user, and name or command."""

IDLE_SINCE: Final = "gpuscope_process_idle_since_seconds"


def owner_of(process: ProcessFacts) -> OwnerKey:
    """What works together: the pod, else the job, else the processes of one user with the same command.

    A user's notebook that is idle beside the user's training is not work that leaves a GPU out."""
    labels = process.labels
    if labels.get("pod"):
        return "pod", labels.get("namespace", ""), labels["pod"]
    if labels.get("slurm_job"):
        return "job", "", labels["slurm_job"]
    return "program", labels.get("user", ""), labels.get("command", "")


def idle_since(gpu: GpuFacts) -> Maybe[float]:
    """When the last of its processes stopped working; ABSENT unless all of them are known to be idle."""
    if not gpu.processes:
        return ABSENT
    times = [process.plain.get(IDLE_SINCE) for process in gpu.processes]
    known = [at for at in times if at is not None]
    return max(known) if len(known) == len(times) else ABSENT


def _is_held_idle(gpu: GpuFacts, now: float) -> bool:
    since = idle_since(gpu)
    return since is not ABSENT and now - since > IDLE_FINDING_SECONDS


def has_worked_lately(process: ProcessFacts, now: float) -> bool | None:
    """Whether it worked within the last minute: a dip of a second is not idleness. None where not known."""
    if process.plain.get("gpuscope_process_active") == 1:
        return True
    since = process.plain.get(IDLE_SINCE)
    return None if since is None else now - since < UNEVEN_SECONDS


@dataclass(slots=True)
class GpusOfOwner:
    """The GPUs of one owner on one node, by whether the owner works on them."""

    working: list[GpuFacts] = field(default_factory=list)
    idle: list[GpuFacts] = field(default_factory=list)

    @property
    def is_uneven(self) -> bool:
        return bool(self.working) and bool(self.idle)


def gpus_by_owner(node: NodeFacts, now: float) -> dict[OwnerKey, GpusOfOwner]:
    """GPUs on which an owner's activity is not known are in neither list."""
    found: dict[OwnerKey, GpusOfOwner] = defaultdict(GpusOfOwner)
    for gpu in node.gpus:
        worked: dict[OwnerKey, bool] = {}
        for process in gpu.processes:
            lately = has_worked_lately(process, now)
            if lately is not None:
                owner = owner_of(process)
                worked[owner] = worked.get(owner, False) or lately
        for owner, is_working in worked.items():
            (found[owner].working if is_working else found[owner].idle).append(gpu)
    return found


def _only_some_work(node: NodeFacts, now: float) -> bool:
    return any(gpus.is_uneven for gpus in gpus_by_owner(node, now).values())


def _has_orphan_memory(gpu: GpuFacts, now: float) -> bool:
    orphaned = gpu.number("gpuscope_owner_unattributed_memory_bytes", "user")
    busy = gpu.number("gpuscope_gpu_utilization_ratio")
    return is_above(orphaned, ORPHAN_MEMORY_BYTES) and is_below(busy, WORKING_RATIO)


def _some_and_not_all(active: str, by: str) -> str:
    working = f"max by ({by}, uuid) ({active})"
    return f"(count by ({by}) ({working} == 0) and count by ({by}) ({working} == 1))"


def _worked_lately(matchers: str) -> str:
    """1 for a process that worked within the last minute, 0 for one that did not."""
    return (
        f"(gpuscope_process_active{{{matchers}}} == 1 "
        f"or time() - {IDLE_SINCE}{{{matchers}}} < bool {UNEVEN_SECONDS:g})"
    )


_OF_PODS_AND_JOBS = _worked_lately('pod!=""') + " or " + _worked_lately('slurm_job!=""')
_OF_USERS = _worked_lately('pod="",slurm_job=""')
_OWNER_LABELS = "instance, namespace, pod, slurm_job"
_PROGRAM_LABELS = "instance, user, command"
_SAME_GPU = "on (instance, uuid)"
_UNEVEN_PODS_AND_JOBS = _some_and_not_all(_OF_PODS_AND_JOBS, _OWNER_LABELS)
_UNEVEN_PROGRAMS = _some_and_not_all(_OF_USERS, _PROGRAM_LABELS)
UNEVEN_IDLE_PROMQL: Final = (
    f"(({_OF_PODS_AND_JOBS}) == 0 and on ({_OWNER_LABELS}) {_UNEVEN_PODS_AND_JOBS}) "
    f"or ({_OF_USERS} == 0 and on ({_PROGRAM_LABELS}) {_UNEVEN_PROGRAMS})"
)
"""The idle processes of owners who work on other GPUs of the same node."""

USE_CHECKS: Final = (
    Check(
        kind="held_idle",
        alert="HeldIdle",
        subject=Subject.GPU,
        severity=Severity.INFO,
        promql=(
            "time() - max by (instance, gpu, uuid) (gpuscope_process_idle_since_seconds) "
            f"> {IDLE_FINDING_SECONDS:g} unless {_SAME_GPU} ("
            "count by (instance, uuid) (gpuscope_process_memory_bytes) "
            "> count by (instance, uuid) (gpuscope_process_idle_since_seconds))"
        ),
        live=_is_held_idle,
        for_seconds=HELD_IDLE_SECONDS - IDLE_FINDING_SECONDS,
        inhibited_by=("only_some_work", "hung", "waits_for_disk", "waits_for_network", "waits_for_data"),
        meaning="A process holds the GPU and has not used it for 15 minutes or more.",
        next_step="ask the holder whether the GPU is still needed",
    ),
    Check(
        kind="allocated_unused",
        alert="AllocatedUnused",
        subject=Subject.GPU,
        severity=Severity.INFO,
        promql=f"gpuscope_allocation_used == 0 and {_SAME_GPU} gpuscope_gpu_processes",
        live=lambda gpu, now: gpu.has_process_list and any(0 in one.plain.values() for one in gpu.allocations),
        for_seconds=HELD_IDLE_SECONDS,
        meaning="The GPU was given to a pod or job that has no process on it.",
        next_step="ask its owner; let the job ask for fewer GPUs",
    ),
    Check(
        kind="only_some_work",
        alert="OnlySomeGpusWork",
        subject=Subject.OWNER,
        severity=Severity.INFO,
        promql=f"{_UNEVEN_PODS_AND_JOBS} or {_UNEVEN_PROGRAMS}",
        live=_only_some_work,
        for_seconds=900,
        meaning="An owner works on some of its GPUs and leaves the others idle.",
        next_step="start one process per GPU (torchrun), or set device_map or tensor parallelism",
    ),
    Check(
        kind="orphan_memory",
        alert="OrphanMemory",
        subject=Subject.GPU,
        severity=Severity.WARNING,
        promql=(
            f'gpuscope_owner_unattributed_memory_bytes{{kind="user"}} > {ORPHAN_MEMORY_BYTES:g} '
            f"and {_SAME_GPU} gpuscope_gpu_utilization_ratio < {WORKING_RATIO:g}"
        ),
        live=_has_orphan_memory,
        for_seconds=1800,
        meaning="GPU memory is taken and no process owns it.",
        next_step="fuser -v /dev/nvidia*; reset the GPU if nobody is found",
    ),
    Check(
        kind="memory_leak",
        alert="MemoryLeak",
        subject=Subject.PROCESS,
        severity=Severity.INFO,
        promql=(
            "predict_linear(gpuscope_process_memory_bytes[1h], 7200) "
            # max: an agent that two jobs scrape has two series of each GPU, which cannot be joined.
            f"> {_SAME_GPU} group_left () max by (instance, uuid) (gpuscope_gpu_memory_total_bytes) "
            "and deriv(gpuscope_process_memory_bytes[1h]) > 0"
        ),
        one_form_because="it looks at the last hour",
        for_seconds=3600,
        inhibited_by=("memory_full",),
        meaning="A process will need more memory than the GPU has within two hours.",
        next_step="tell its owner before it fails",
    ),
    Check(
        kind="long_running",
        alert="LongRunning",
        subject=Subject.PROCESS,
        severity=Severity.INFO,
        promql=f"time() - gpuscope_process_start_time_seconds > {LONG_RUNNING_SECONDS:g}",
        live=lambda process, now: is_above(
            process.age("gpuscope_process_start_time_seconds", now), LONG_RUNNING_SECONDS
        ),
        meaning="A process has been on the GPU for more than a week.",
        next_step="ask its owner whether it is meant to be",
    ),
)
