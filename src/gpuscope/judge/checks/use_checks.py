"""How GPUs are used: held idle, allocated and unused, only some of a program's GPUs at work, memory without an
owner.

Each of these findings names a person, so it needs proof: a process whose activity is not known is never idle,
one that has just started is left alone, and a service of the node (display, MPS) holds nothing.
"""

from __future__ import annotations

from typing import Final

from gpuscope.agent.owners.gpu_work import SERVICE_MATCHERS
from gpuscope.base.time_text import duration_text
from gpuscope.judge.checks.check import OWNER_LABELS, Check, Severity, Share, Subject
from gpuscope.judge.checks.thresholds import (
    HELD_IDLE_SECONDS,
    IDLE_FINDING_SECONDS,
    LONG_RUNNING_SECONDS,
    ORPHAN_MEMORY_BYTES,
    UNUSED_SECONDS,
    WORKING_RATIO,
)

NOT_SERVICES: Final = SERVICE_MATCHERS
"""Matchers of processes that can hold a GPU."""
SAME_GPU: Final = "on (instance, uuid)"
_SAME_PROCESS: Final = "on (instance, uuid, pid)"
BY_OWNER: Final = f"by (instance, gpu, uuid, {', '.join(OWNER_LABELS)})"
_IDLE_FOR: Final = duration_text(round(IDLE_FINDING_SECONDS * 1000))

_IDLE_SECONDS: Final = f"gpuscope_process_idle_seconds{{{NOT_SERVICES}}}"
_ACTIVE: Final = f"gpuscope_process_active{{{NOT_SERVICES}}}"
# An agent that restarts forgets how long a process has been idle; the samples of the last minutes know it.
IDLE_PROCESS: Final = (
    f"({_IDLE_SECONDS} > {IDLE_FINDING_SECONDS:g} or ({_IDLE_SECONDS} > 0 "
    f"and max_over_time({_ACTIVE}[{_IDLE_FOR}]) == 0 and {_ACTIVE} offset {_IDLE_FOR}))"
)
"""Processes that have not worked for 15 minutes; the value is for how long, as far as the agent knows."""
PROGRAM: Final = (
    "* on (instance, uuid, pid) group_left (program) "
    # max: an agent that two jobs scrape has two series of each process, which cannot be joined.
    'max by (instance, uuid, pid, program) (gpuscope_process_info{program!=""})'
)
"""Adds the label of the program that a process is a part of."""
_NOT_IDLE: Final = f"(gpuscope_process_memory_bytes{{{NOT_SERVICES}}} unless {_SAME_PROCESS} {IDLE_PROCESS})"


_IN_A_JOB: Final = 'slurm_job!=""'
"""A job's step is one program on all of its nodes."""
_IN_NO_JOB: Final = 'slurm_job=""'


def _leaves_idle(matchers: str, together: str) -> str:
    """Idle processes of programs whose other processes work on other GPUs."""
    idle = f"({IDLE_PROCESS} {PROGRAM})"
    working = f"((gpuscope_process_active{{{NOT_SERVICES},{matchers}}} == 1) {PROGRAM})"
    only = f"and on (instance, uuid, pid) gpuscope_process_memory_bytes{{{matchers}}}"
    return f"({idle} {only} and on ({together}) {working} unless {SAME_GPU} {working})"


ONLY_SOME_WORK: Final = (
    f"max {BY_OWNER} ({_leaves_idle(_IN_A_JOB, 'program')} or {_leaves_idle(_IN_NO_JOB, 'instance, program')})"
)
NO_PROCESS: Final = (
    f"(sum by (instance, gpu, uuid) (gpuscope_gpu_processes) == 0 unless {SAME_GPU} gpuscope_allocation_used)"
)
"""GPUs and MIG instances that nobody holds."""
_SHORT: Final = '"node", "$1", "node", "([^.]+).*"'
"""Slurm calls a node by its short name, an agent perhaps by the full one."""
_GPUS: Final = f"label_replace(gpuscope_gpu_info, {_SHORT})"
_NUMBERED_GPUS: Final = f"({_GPUS} unless on (node, minor) count by (node, minor) ({_GPUS}) > 1)"
"""Without GPUs that two agents report: which one Slurm means is not known."""
SLURM_NODES: Final = (
    f'group by (instance) ((sum by (node) (label_replace(gpuscope_slurm_node_gpus{{gres="gpu"}}, {_SHORT})) '
    f"== on (node) count by (node) (label_replace(gpuscope_gpu_info, {_SHORT}))) "
    f"* on (node) group_right () label_replace(gpuscope_gpu_info, {_SHORT}) "
    "unless on (instance) gpuscope_gpu_unallocated_processes)"
)
"""Nodes of which Slurm has all GPUs: its index of a GPU is the minor number there. Without those whose own
agent knows the allocations, from the prolog."""
PLACED_BY_SLURM: Final = (
    "max by (instance, gpu, uuid, slurm_job, user) ("
    f"label_replace(label_replace(gpuscope_slurm_job_gres_info, {_SHORT}), "
    '"minor", "$1", "index", "(.+)") * on (instance, slurm_job) group_left (user) '
    "max by (instance, slurm_job, user) (gpuscope_slurm_job_info) "
    f"* on (node, minor) group_left (instance, gpu, uuid) {_NUMBERED_GPUS}) and on (instance) {SLURM_NODES}"
)
"""Which GPU Slurm has given to which job, for nodes without a prolog."""
_ALLOCATED_BY_NODE: Final = (
    f'sum by (node) (label_replace(gpuscope_slurm_node_gpus{{gres="gpu",state="allocated"}}, {_SHORT}))'
)
_INDEXED_BY_SLURM: Final = (
    f"({_NUMBERED_GPUS} and on (node, minor) label_replace(label_replace("
    f'gpuscope_slurm_job_gres_info{{gres="gpu"}}, {_SHORT}), "minor", "$1", "index", "(.+)") '
    f'unless {SAME_GPU} label_replace(gpuscope_mig_info, "uuid", "$1", "parent_uuid", "(.+)"))'
)
MAY_BE_ALLOCATED: Final = (
    f"(label_replace(gpuscope_gpu_info, {_SHORT}) and on (node) ({_ALLOCATED_BY_NODE} > on (node) "
    f"(count by (node) ({_INDEXED_BY_SLURM}) or on (node) 0 * {_ALLOCATED_BY_NODE})))"
)
"""GPUs of nodes of which Slurm has given away more GPUs than those whose index is known."""
_UNUSED: Final = (
    f"(gpuscope_allocation_used == 0 and max_over_time(gpuscope_allocation_used[{_IDLE_FOR}]) == 0 "
    f"and gpuscope_allocation_used offset {_IDLE_FOR} and {SAME_GPU} gpuscope_gpu_processes)"
)
_UNUSED_ALLOCATION: Final = (
    f"{_UNUSED} * on (instance, slurm_job) group_left (user) max by (instance, slurm_job, user) "
    f"(gpuscope_job_info) or on (instance, uuid, namespace, pod, slurm_job) {_UNUSED} "
    f"or ({PLACED_BY_SLURM} and on (slurm_job) gpuscope_slurm_job_info offset {_IDLE_FOR} "
    f"and {SAME_GPU} gpuscope_gpu_processes unless {SAME_GPU} gpuscope_allocation_used "
    f"unless on (instance, uuid, slurm_job) max_over_time(gpuscope_process_memory_bytes[{_IDLE_FOR}]) "
    # Of a process whose job the agent does not see, nobody knows whether it is this one.
    f'unless {SAME_GPU} max_over_time(gpuscope_process_memory_bytes{{slurm_job=""}}[{_IDLE_FOR}]))'
)
"""What the node's agent knows of its prolog; else what Slurm's queue says."""

IDLE_KINDS: Final = ("held_idle", "only_some_work", "allocated_unused")
"""The findings that say: its holder leaves the GPU idle."""

USE_CHECKS: Final = (
    Check(
        kind="held_idle",
        alert="HeldIdle",
        subject=Subject.OWNER,
        severity=Severity.INFO,
        promql=f"max {BY_OWNER} ({IDLE_PROCESS}) unless {SAME_GPU} {_NOT_IDLE}",
        for_seconds=HELD_IDLE_SECONDS - IDLE_FINDING_SECONDS,
        lead_seconds=IDLE_FINDING_SECONDS,
        value_is_age=True,
        nothing_works=True,
        share=Share.WHOLE,
        inhibited_by=("only_some_work", "hung", "waits_for_disk", "waits_for_network", "waits_for_data"),
        meaning="A process holds the GPU and has not used it for 15 minutes or more.",
        next_step="ask the holder whether the GPU is still needed",
    ),
    Check(
        kind="allocated_unused",
        alert="AllocatedUnused",
        subject=Subject.OWNER,
        severity=Severity.INFO,
        promql=_UNUSED_ALLOCATION,
        others="gpuscope_allocation_used == 1",
        for_seconds=HELD_IDLE_SECONDS - IDLE_FINDING_SECONDS,
        lead_seconds=IDLE_FINDING_SECONDS,
        share=Share.WHOLE,
        meaning="The GPU was given to a pod or job that has no process on it.",
        next_step="ask its owner; let the job ask for fewer GPUs",
    ),
    Check(
        kind="only_some_work",
        alert="OnlySomeGpusWork",
        subject=Subject.OWNER,
        severity=Severity.INFO,
        promql=ONLY_SOME_WORK,
        others=f"max {BY_OWNER} ({_ACTIVE} == 1)",
        for_seconds=900,
        lead_seconds=IDLE_FINDING_SECONDS,
        value_is_age=True,
        nothing_works=True,
        share=Share.WHOLE,
        meaning="A program works on some of its GPUs and leaves the others idle.",
        next_step="start one process per GPU (torchrun), or set device_map or tensor parallelism",
    ),
    Check(
        kind="orphan_memory",
        alert="OrphanMemory",
        subject=Subject.GPU,
        severity=Severity.WARNING,
        promql=(
            f"gpuscope_gpu_unlisted_memory_bytes > {ORPHAN_MEMORY_BYTES:g} "
            f"and {SAME_GPU} gpuscope_gpu_utilization_ratio < {WORKING_RATIO:g}"
        ),
        for_seconds=1800,
        share=Share.VALUE,
        lost=(
            f"(gpuscope_gpu_unlisted_memory_bytes > {ORPHAN_MEMORY_BYTES:g} and {SAME_GPU} "
            f"gpuscope_gpu_utilization_ratio < {WORKING_RATIO:g}) "
            f"/ {SAME_GPU} group_left () max by (instance, uuid) (gpuscope_gpu_memory_total_bytes)"
        ),
        meaning="GPU memory is taken and no process owns it.",
        next_step="look for programs that have its device file open; reset the GPU if there is none",
    ),
    Check(
        kind="memory_leak",
        alert="MemoryLeak",
        subject=Subject.PROCESS,
        severity=Severity.INFO,
        # It grows and never falls: neither a second model nor batches of different lengths are a leak.
        promql=(
            "(gpuscope_process_memory_bytes > gpuscope_process_memory_bytes offset 40m) "
            "+ 7200 * deriv(gpuscope_process_memory_bytes[30m]) "
            # max: an agent that two jobs scrape has two series of each GPU, which cannot be joined.
            f"> {SAME_GPU} group_left () max by (instance, uuid) (gpuscope_gpu_memory_total_bytes) "
            "and min_over_time(deriv(gpuscope_process_memory_bytes[10m])[30m:5m]) > 0 "
            "and resets(gpuscope_process_memory_bytes[40m]) == 0"
        ),
        inhibited_by=("memory_full",),
        meaning="A process will need more memory than the GPU has within two hours.",
        next_step="tell its owner before it fails",
    ),
    Check(
        kind="long_running",
        alert="LongRunning",
        subject=Subject.PROCESS,
        severity=Severity.INFO,
        promql=f"gpuscope_process_age_seconds{{{NOT_SERVICES}}} > {LONG_RUNNING_SECONDS:g}",
        value_is_age=True,
        meaning="A process has been on the GPU for more than a week.",
        next_step="ask its owner whether it is meant to be",
    ),
    Check(
        kind="unused",
        alert="GpuUnused",
        subject=Subject.GPU,
        severity=Severity.INFO,
        # The agent of a node without a prolog does not see what Slurm has given away.
        promql=(
            f"gpuscope_gpu_free_for_seconds > {UNUSED_SECONDS:g} unless {SAME_GPU} {_INDEXED_BY_SLURM} "
            f"unless on (instance) {MAY_BE_ALLOCATED}"
        ),
        for_seconds=3600,
        value_is_age=True,
        lead_seconds=UNUSED_SECONDS,
        nothing_works=True,
        share=Share.WHOLE,
        inhibited_by=("orphan_memory", "gpu_lost"),
        meaning="Nobody has had a process on the GPU for a day, and it is allocated to nobody.",
        next_step="offer idle GPUs to users, or switch the node off",
    ),
)
