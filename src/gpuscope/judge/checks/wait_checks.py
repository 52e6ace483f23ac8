"""Why a GPU waits: for its data loader, a disk, the network or a slower rank; or it hangs.

The facts are means over the last minute, which the agent makes of readings every second: one reading of a
load that comes and goes says nothing. Without a fact there is no finding. A rank that waits for another one is
busy by its utilisation, because the collective's kernel spins; its power shows that it does not compute.
"""

from __future__ import annotations

from typing import Final

from gpuscope.judge.checks.check import OWNER_LABELS, Check, Severity, Share, Subject
from gpuscope.judge.checks.thresholds import (
    BUSY_THREAD_RATIO,
    FULL_RATIO,
    HUNG_SECONDS,
    IO_WAIT_RATIO,
    LOADING_BYTES_PER_SECOND,
    LOADING_CHILDREN_RATIO,
    NETWORK_WAIT_RATIO,
    RANK_WAITS_POWER_SHARE,
    RANK_WORKS_POWER_SHARE,
    STARTING_SECONDS,
    WAITING_RATIO,
)
from gpuscope.judge.checks.use_checks import BY_OWNER, NOT_SERVICES, PROGRAM, SAME_GPU

MINUTE_UTILIZATION: Final = "gpuscope_gpu_utilization_minute_ratio"
_MINUTE_POWER: Final = "gpuscope_gpu_power_minute_watts"
_SAME_PROCESS: Final = "on (instance, uuid, pid)"
_LOADS: Final = (
    f"(rate(gpuscope_process_read_bytes_total[5m]) > {LOADING_BYTES_PER_SECOND:g} "
    f"or gpuscope_process_children_cpu_ratio > {LOADING_CHILDREN_RATIO:g})"
)
"""A busy thread or a socket proves nothing: a server polls, or sleeps in a socket, until a request comes."""

WAITS: Final = {
    "waits_for_disk": f"gpuscope_process_io_wait_ratio > {IO_WAIT_RATIO:g}",
    "waits_for_network": (
        f"gpuscope_process_network_wait_ratio > {NETWORK_WAIT_RATIO:g} and {_SAME_PROCESS} {_LOADS}"
    ),
    "waits_for_data": (
        f"gpuscope_process_busiest_thread_ratio > {BUSY_THREAD_RATIO:g} and {_SAME_PROCESS} {_LOADS}"
    ),
}
"""What a process does while its GPU waits, by kind: the first that holds is the cause."""


def _wait_check(kind: str, alert: str, inhibited_by: tuple[str, ...], meaning: str, next_step: str) -> Check:
    promql = (
        f"max {BY_OWNER} ({WAITS[kind]} and {SAME_GPU} {MINUTE_UTILIZATION} < {WAITING_RATIO:g} "
        f"and {_SAME_PROCESS} gpuscope_process_age_seconds > {STARTING_SECONDS:g})"
    )
    lost = f"0 * ({promql}) + {SAME_GPU} group_left () max by (instance, uuid) (1 - {MINUTE_UTILIZATION})"
    return Check(
        kind,
        alert,
        Severity.INFO,
        promql,
        meaning,
        next_step,
        subject=Subject.OWNER,
        for_seconds=900,
        share=Share.VALUE,
        lost=lost,
        inhibited_by=inhibited_by,
    )


_POWER_SHARE: Final = f'({_MINUTE_POWER} / ignoring (limit) gpuscope_gpu_power_limit_watts{{limit="enforced"}})'
_WAITING_RANK: Final = (
    f"({_POWER_SHARE} < {RANK_WAITS_POWER_SHARE:g} and {SAME_GPU} {MINUTE_UTILIZATION} >= {FULL_RATIO:g})"
)
_SLOW_RANK: Final = (
    f"({MINUTE_UTILIZATION} < {WAITING_RATIO:g} or ({_POWER_SHARE} >= {RANK_WORKS_POWER_SHARE:g} "
    f"and {SAME_GPU} {MINUTE_UTILIZATION}))"
)


def _ranks(matchers: str, together: str) -> str:
    process = f"((gpuscope_process_age_seconds{{{matchers}}} > {STARTING_SECONDS:g}) {PROGRAM})"
    # The few GPUs that wait come first: nothing else is evaluated where there is none.
    return (
        f"(max by (instance, uuid) {_WAITING_RANK} * {SAME_GPU} group_right () {process} "
        f"and on ({together}) ({process} and {SAME_GPU} {_SLOW_RANK}))"
    )


_WAITS_FOR_RANK: Final = (
    f"max {BY_OWNER} (" + _ranks('slurm_job!=""', "program") + " or "
    + _ranks('slurm_job=""', "instance, program") + ")"
)  # fmt: skip

_STALLED: Final = f"gpuscope_nccl_stalled_rank_seconds > {HUNG_SECONDS:g}"
_STALLED_GPU: Final = (
    # On the node of the rank, which the agent that asks NCCL knows by address and PID only.
    "gpuscope_nccl_rank_info * on (nccl_job, uid, host, host_pid, rank) group_left (reason) "
    f"max by (nccl_job, uid, host, host_pid, rank, reason) ({_STALLED})"
)
_JOB_HANGS: Final = (
    f"max by (instance, uuid, pid, rank, reason) ({_STALLED_GPU}) "
    f"+ on (instance, uuid, pid) group_right (rank, reason) "
    f"0 * max {BY_OWNER.replace('uuid', 'uuid, pid')} (gpuscope_process_memory_bytes) "
    f"unless {SAME_GPU} {_POWER_SHARE} >= {RANK_WORKS_POWER_SHARE:g} "
    f"or max by (instance, rank, host, {', '.join(OWNER_LABELS)}) "
    f'({_STALLED} unless on (nccl_job, uid, host, host_pid) gpuscope_nccl_rank_info{{uuid!=""}})'
)

_HUNG: Final = f"max by (instance, gpu, uuid) (gpuscope_gpu_hung_seconds > {HUNG_SECONDS:g})"

WAIT_CHECKS: Final = (
    Check(
        kind="hung",
        alert="GpuHung",
        subject=Subject.OWNER,
        severity=Severity.WARNING,
        promql=(
            f"max by (instance, uuid) ({_HUNG}) + {SAME_GPU} group_right () "
            f"0 * max {BY_OWNER} (gpuscope_process_memory_bytes{{{NOT_SERVICES}}}) "
            f"or {_HUNG} unless {SAME_GPU} gpuscope_process_memory_bytes"
        ),
        for_seconds=300,
        lead_seconds=HUNG_SECONDS,
        value_is_age=True,
        share=Share.WHOLE,
        meaning="The GPU reports full utilisation, draws little power, and transfers nothing.",
        next_step="look at the program with py-spy dump --pid PID; a rank that is missing hangs all others",
    ),
    Check(
        kind="job_hangs",
        alert="JobHangs",
        subject=Subject.OWNER,
        severity=Severity.WARNING,
        promql=_JOB_HANGS,
        for_seconds=300,
        lead_seconds=HUNG_SECONDS,
        value_is_age=True,
        inhibited_by=("gpu_lost",),
        meaning="By NCCL's own account the ranks of a job wait for one that has launched less, or that does "
        "not answer, and nothing moves.",
        next_step="look at the process of that rank (py-spy dump --pid PID, /proc/PID/stack) and at its disks",
    ),
    Check(
        kind="waits_for_rank",
        alert="GpuWaitsForRank",
        subject=Subject.OWNER,
        severity=Severity.INFO,
        promql=_WAITS_FOR_RANK,
        others=f"gpuscope_process_age_seconds and {SAME_GPU} {_SLOW_RANK}",
        for_seconds=900,
        share=Share.VALUE,
        lost=f"0 * ({_WAITS_FOR_RANK}) + {SAME_GPU} group_left () max by (instance, uuid) (1 - {_POWER_SHARE})",
        inhibited_by=("hung",),
        meaning="The GPU spins in a collective operation and waits for another GPU of the same program.",
        next_step="find out why the slower rank is slow: its clocks, its data, its share of the batch",
    ),
    _wait_check(
        "waits_for_disk",
        "GpuWaitsForDisk",
        ("hung",),
        "The process or one of its workers is blocked by file I/O most of the time, and the GPU waits.",
        "copy the data to a local disk, read fewer and larger files, or raise the number of loader workers",
    ),
    _wait_check(
        "waits_for_network",
        "GpuWaitsForNetwork",
        ("hung", "waits_for_disk"),
        "The process or one of its workers waits for data from the network, and the GPU waits with it.",
        "cache the data on the node, prefetch it, or raise the number of loader workers",
    ),
    _wait_check(
        "waits_for_data",
        "GpuWaitsForData",
        ("hung", "waits_for_disk", "waits_for_network"),
        "One thread of the process or of its workers uses a whole CPU core to load data, and the GPU waits.",
        "raise the number of loader workers, or move decoding and augmentation to the GPU",
    ),
)
