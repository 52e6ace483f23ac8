"""Why a GPU waits: for its data loader, a disk, the network or a slower rank; or it hangs, or nobody uses it.

The facts are means over the last minute, which the agent makes of readings every second: one reading of a
load that comes and goes says nothing. Without a fact there is no finding. A rank that waits for another one is
busy by its utilisation, because the collective's kernel spins; its power shows that it does not compute.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpuscope.health.check import Check, GpuKey, Severity, Subject, is_above, is_below
from gpuscope.health.facts import FleetFacts, GpuFacts, ProcessFacts
from gpuscope.health.thresholds import (
    BUSY_THREAD_RATIO,
    FULL_RATIO,
    HUNG_SECONDS,
    IO_WAIT_RATIO,
    NETWORK_WAIT_RATIO,
    RANK_WAITS_POWER_SHARE,
    RANK_WORKS_POWER_SHARE,
    UNUSED_SECONDS,
    WAITING_RATIO,
)
from gpuscope.health.use_checks import owner_of
from gpuscope.readings import ABSENT

MINUTE_UTILIZATION: Final = "gpuscope_gpu_utilization_minute_ratio"
MINUTE_POWER: Final = "gpuscope_gpu_power_minute_watts"
HUNG_SINCE: Final = "gpuscope_gpu_hung_since_seconds"
FREE_SINCE: Final = "gpuscope_gpu_free_since_seconds"
IO_WAIT: Final = "gpuscope_process_io_wait_ratio"
NETWORK_WAIT: Final = "gpuscope_process_network_wait_ratio"
BUSIEST_THREAD: Final = "gpuscope_process_busiest_thread_ratio"

WAIT_THRESHOLDS: Final = {
    "waits_for_disk": (IO_WAIT, IO_WAIT_RATIO),
    "waits_for_network": (NETWORK_WAIT, NETWORK_WAIT_RATIO),
    "waits_for_data": (BUSIEST_THREAD, BUSY_THREAD_RATIO),
}
"""What a process does while its GPU waits, by kind: the first that holds is the cause."""
_SAME_GPU: Final = "on (instance, uuid)"


def waits_for(kind: str, process: ProcessFacts) -> bool:
    """Whether the process itself shows this cause; that its GPU waits is another question."""
    metric, threshold = WAIT_THRESHOLDS[kind]
    return is_above(process.number(metric), threshold)


def is_waiting(gpu: GpuFacts) -> bool:
    return is_below(gpu.number(MINUTE_UTILIZATION), WAITING_RATIO)


def _wait_promql(kind: str) -> str:
    metric, threshold = WAIT_THRESHOLDS[kind]
    return f"{metric} > {threshold:g} and {_SAME_GPU} {MINUTE_UTILIZATION} < {WAITING_RATIO:g}"


def _wait_check(kind: str, alert: str, inhibited_by: tuple[str, ...], meaning: str, next_step: str) -> Check:
    def live(gpu: GpuFacts, now: float) -> bool:
        return is_waiting(gpu) and any(waits_for(kind, process) for process in gpu.processes)

    return Check(
        kind=kind,
        alert=alert,
        subject=Subject.GPU,
        severity=Severity.INFO,
        promql=_wait_promql(kind),
        live=live,
        for_seconds=900,
        inhibited_by=inhibited_by,
        meaning=meaning,
        next_step=next_step,
    )


def _power_share(gpu: GpuFacts) -> float | None:
    power, limit = gpu.number(MINUTE_POWER), gpu.number("gpuscope_gpu_power_limit_watts", "enforced")
    return None if power is ABSENT or limit is ABSENT or limit <= 0 else power / limit


@dataclass(slots=True)
class Ranks:
    """The GPUs of one owner: those that wait in a collective, and those that the others wait for."""

    waiting: list[GpuFacts] = field(default_factory=list)
    slow: list[GpuFacts] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class RankedGpu:
    """A GPU that waits in a collective of one of its owners, or for which that owner's others wait."""

    owner: tuple[str, ...]
    gpu: GpuFacts
    waits: bool


def ranked_gpus(fleet: FleetFacts) -> list[RankedGpu]:
    """A Slurm job or pod counts over all nodes, a program on its node."""
    found = []
    for (instance, _), gpu in fleet.gpus.items():
        busy, power = gpu.number(MINUTE_UTILIZATION), _power_share(gpu)
        if busy is ABSENT or not gpu.processes:
            continue
        waits = busy >= FULL_RATIO and power is not None and power < RANK_WAITS_POWER_SHARE
        is_slow = busy < WAITING_RATIO or (power is not None and power >= RANK_WORKS_POWER_SHARE)
        if waits or is_slow:
            for owner in {owner_of(process) for process in gpu.processes}:
                key = (*owner, instance) if owner[0] == "program" else owner
                found.append(RankedGpu(key, gpu, waits))
    return found


def ranks_by_owner(ranked: Iterable[RankedGpu]) -> dict[tuple[str, ...], Ranks]:
    """Of owners that have both kinds of GPUs."""
    found: dict[tuple[str, ...], Ranks] = defaultdict(Ranks)
    for one in ranked:
        ranks = found[one.owner]
        (ranks.waiting if one.waits else ranks.slow).append(one.gpu)
    return {owner: ranks for owner, ranks in found.items() if ranks.waiting and ranks.slow}


def _wait_for_rank(fleet: FleetFacts, now: float) -> set[GpuKey]:
    return {
        (gpu.labels["instance"], gpu.labels["uuid"])
        for ranks in ranks_by_owner(ranked_gpus(fleet)).values()
        for gpu in ranks.waiting
    }


_POWER_SHARE: Final = f'({MINUTE_POWER} / ignoring (limit) gpuscope_gpu_power_limit_watts{{limit="enforced"}})'
_WAITING_RANK: Final = (
    f"({_POWER_SHARE} < {RANK_WAITS_POWER_SHARE:g} and {_SAME_GPU} {MINUTE_UTILIZATION} >= {FULL_RATIO:g})"
)
_SLOW_RANK: Final = (
    f"({MINUTE_UTILIZATION} < {WAITING_RATIO:g} or ({_POWER_SHARE} >= {RANK_WORKS_POWER_SHARE:g} "
    f"and {_SAME_GPU} {MINUTE_UTILIZATION}))"
)


def _ranks(matchers: str, labels: str) -> str:
    process = f"gpuscope_process_memory_bytes{{{matchers}}}"
    return (
        f"({process} and {_SAME_GPU} {_WAITING_RANK} "
        f"and on ({labels}) ({process} and {_SAME_GPU} {_SLOW_RANK}))"
    )


WAIT_CHECKS: Final = (
    Check(
        kind="hung",
        alert="GpuHung",
        subject=Subject.GPU,
        severity=Severity.WARNING,
        promql=f"time() - {HUNG_SINCE} > {HUNG_SECONDS:g}",
        live=lambda gpu, now: is_above(gpu.age(HUNG_SINCE, now), HUNG_SECONDS),
        for_seconds=300,
        meaning="The GPU reports full utilisation, draws hardly more power than idle, and transfers nothing.",
        next_step="look at the program with py-spy dump --pid PID; a rank that is missing hangs all others",
    ),
    Check(
        kind="waits_for_rank",
        alert="GpuWaitsForRank",
        subject=Subject.GPU,
        severity=Severity.INFO,
        promql=" or ".join(
            (
                _ranks('pod!=""', "namespace, pod"),
                _ranks('pod="",slurm_job!=""', "slurm_job"),
                _ranks('pod="",slurm_job=""', "instance, user, command"),
            )
        ),
        live_fleet=_wait_for_rank,
        for_seconds=900,
        inhibited_by=("hung",),
        meaning="The GPU spins in a collective operation and waits for another GPU of the same owner.",
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
        "One thread of the process or of its workers uses a whole CPU core, and the GPU waits for it.",
        "raise the number of loader workers, or move decoding and augmentation to the GPU",
    ),
    Check(
        kind="unused",
        alert="GpuUnused",
        subject=Subject.GPU,
        severity=Severity.INFO,
        promql=f"time() - {FREE_SINCE} > {UNUSED_SECONDS:g}",
        live=lambda gpu, now: is_above(gpu.age(FREE_SINCE, now), UNUSED_SECONDS),
        for_seconds=3600,
        inhibited_by=("orphan_memory", "gpu_lost"),
        meaning="Nobody has had a process on the GPU for a day, and it is allocated to nobody.",
        next_step="offer idle GPUs to users, or switch the node off",
    ),
)
