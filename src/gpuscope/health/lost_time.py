"""What findings cost over time: for each kind a PromQL form whose value is the share of a GPU that is lost.

`reports/finding_windows.py` evaluates these rows over a range. They stand in the order in which they claim a
GPU's time: time that an earlier row claimed is not counted again, so that costs never add up to more than the
time of the GPUs. Live kinds without a row of their own cost no GPU time by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from gpuscope.health.check import Subject
from gpuscope.health.checks import CHECKS, LIVE_CHECKS
from gpuscope.health.finding_texts import NOT_FINDINGS
from gpuscope.health.findings import ONE_PER_GPU
from gpuscope.health.gpu_checks import ENDED_BY_XID, MEAN_CLOCK, MEDIAN_CLOCK, SIBLINGS_BUSY
from gpuscope.health.slurm_checks import JOBS_WAIT
from gpuscope.health.thresholds import (
    FAILED_JOBS,
    HUNG_SECONDS,
    IDLE_FINDING_SECONDS,
    SLOW_SIBLING_SHARE,
    THROTTLED_SECONDS,
    UNUSED_STRETCH_SECONDS,
)
from gpuscope.health.throttles import HINDERING
from gpuscope.health.use_checks import IDLE_SINCE, UNEVEN_IDLE_PROMQL
from gpuscope.health.wait_checks import MINUTE_POWER, MINUTE_UTILIZATION, WAIT_THRESHOLDS


class LossScope(StrEnum):
    """By which labels the series of a row say what they are about."""

    GPU = "gpu"
    OWNER = "owner"
    """A GPU and the labels of an owner; several owners of one GPU share its time."""
    PROCESS = "process"
    """A GPU and the labels of one process; a finding is about the GPU."""
    NODE = "node"
    """All GPUs of a node."""


class GroupBy(StrEnum):
    """What is one finding; with the scope OWNER it is the owner."""

    GPU = "gpu"
    NODE = "node"
    FLEET = "fleet"
    """All GPUs of a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LostTime:
    kind: str
    promql: str
    scope: LossScope = LossScope.GPU
    group_by: GroupBy = GroupBy.GPU
    is_priced: bool = True
    value_is_share: bool = False
    """The value is the share that is lost, 0 to 1; else it is the whole GPU."""
    value_is_seconds: bool = False
    """The value when a stretch begins is the work that is lost, once; it claims no time of the GPU."""
    min_owners: int = 0
    """A finding is about at least this many processes."""
    lead_seconds: float = 0.0
    """How long the condition has lasted when the expression begins to see it."""
    min_stretch_seconds: float = 0.0
    """A shorter stretch does not count."""
    min_seconds: float = 0.0
    """A finding lasts at least this long in total."""


_SAME_GPU: Final = "on (instance, uuid)"
_HINDERED: Final = f'gpuscope_gpu_throttle_reason{{reason=~"{"|".join(HINDERING)}"}} == 1'
NO_PROCESS: Final = (
    f"(sum by (instance, gpu, uuid) (gpuscope_gpu_processes) == 0 unless {_SAME_GPU} gpuscope_allocation_used)"
)
"""GPUs and MIG instances that nobody holds."""


def _on_processes(kind: str) -> str:
    """The processes on the GPUs of a check, with their owners' labels."""
    return f"gpuscope_process_memory_bytes and {_SAME_GPU} ({CHECKS[kind].promql})"


def _unused_share(kind: str) -> str:
    """1 minus the utilisation of the GPU, for each process that waits."""
    return f"1 - {MINUTE_UTILIZATION} + {_SAME_GPU} group_right () 0 * ({CHECKS[kind].promql})"


PRICED: Final = (
    LostTime(kind="node_down", promql="up == 0", scope=LossScope.NODE, group_by=GroupBy.NODE),
    LostTime(kind="gpu_lost", promql=CHECKS["gpu_lost"].promql),
    LostTime(kind="hung", promql=_on_processes("hung"), scope=LossScope.OWNER, lead_seconds=HUNG_SECONDS),
    LostTime(
        kind="orphan_memory",
        promql=(f"({CHECKS['orphan_memory'].promql}) / {_SAME_GPU} gpuscope_gpu_memory_total_bytes"),
        value_is_share=True,
    ),
    LostTime(kind="allocated_unused", promql=CHECKS["allocated_unused"].promql, scope=LossScope.OWNER),
    LostTime(kind="only_some_work", promql=UNEVEN_IDLE_PROMQL, scope=LossScope.OWNER),
    LostTime(
        kind="waits_for_rank",
        promql=(
            f'1 - ({MINUTE_POWER} / ignoring (limit) gpuscope_gpu_power_limit_watts{{limit="enforced"}}) '
            f"+ {_SAME_GPU} group_right () 0 * ({CHECKS['waits_for_rank'].promql})"
        ),
        scope=LossScope.OWNER,
        value_is_share=True,
    ),
    *(
        LostTime(kind=kind, promql=_unused_share(kind), scope=LossScope.OWNER, value_is_share=True)
        for kind in WAIT_THRESHOLDS
    ),
    LostTime(
        kind="held_idle",
        promql=f"{IDLE_SINCE} and {_SAME_GPU} ({CHECKS['held_idle'].promql})",
        scope=LossScope.OWNER,
        lead_seconds=IDLE_FINDING_SECONDS,
    ),
    LostTime(
        kind="queue_waits",
        promql=(
            f"({NO_PROCESS} * {_SAME_GPU} group_left (node) gpuscope_gpu_info) and on (node) "
            f'(gpuscope_slurm_node_gpus{{gres="gpu",state="idle"}} > 0) and on () ({JOBS_WAIT})'
        ),
        group_by=GroupBy.FLEET,
    ),
    LostTime(
        kind="unused",
        promql=NO_PROCESS,
        group_by=GroupBy.FLEET,
        min_stretch_seconds=UNUSED_STRETCH_SECONDS,
    ),
    LostTime(
        kind="throttled",
        promql=(
            '1 - gpuscope_gpu_clock_hertz{clock="sm"} / gpuscope_gpu_clock_max_hertz{clock="sm"} '
            f"and {_SAME_GPU} ({_HINDERED})"
        ),
        value_is_share=True,
        min_seconds=THROTTLED_SECONDS,
    ),
    LostTime(
        kind="slow_sibling",
        promql=(
            f"1 - ({MEAN_CLOCK} / on (instance, model) group_left () {MEDIAN_CLOCK} < {SLOW_SIBLING_SHARE:g}) "
            f"and on (instance, model) {SIBLINGS_BUSY}"
        ),
        value_is_share=True,
    ),
    LostTime(
        kind="failed_jobs",
        promql=ENDED_BY_XID,
        scope=LossScope.PROCESS,
        value_is_seconds=True,
        min_owners=FAILED_JOBS,
    ),
)


def _unpriced() -> Iterator[LostTime]:
    priced = {row.kind for row in PRICED}
    for check in LIVE_CHECKS:
        if check.kind in priced or check.kind in NOT_FINDINGS:
            continue
        scope = LossScope.NODE if check.subject is Subject.NODE else LossScope.GPU
        if check.subject is Subject.PROCESS:
            scope = LossScope.OWNER
        group_by = GroupBy.GPU if check.kind in ONE_PER_GPU else GroupBy.NODE
        yield LostTime(kind=check.kind, promql=check.promql, scope=scope, group_by=group_by, is_priced=False)


LOST_TIME: Final = (*PRICED, *_unpriced())
