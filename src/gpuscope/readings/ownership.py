"""Who was given a GPU, and what each owner has of it: two facts that need not agree.

An `Allocation` is what the scheduler says; an `OwnerUse` is what the owner's processes do. A pod may be given a
GPU and leave it unused, and a privileged pod may use one it was never given. What belongs to no owner is an
`Unattributed`, never shared out among the owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.readings.absent import ABSENT, Maybe
from gpuscope.readings.device import NOTHING, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A GPU or MIG instance handed to a container or a job. Of a shared GPU several hold the same one."""

    gpu_uuid: Maybe[Uuid] = ABSENT  # ABSENT: an id that no visible GPU answers to
    instance_uuid: Maybe[Uuid] = ABSENT
    device_id: str = ""  # as the scheduler spells it
    resource: str = ""  # nvidia.com/gpu
    replica: Maybe[str] = ABSENT  # of a shared GPU: "3" of GPU-…::3
    namespace: Maybe[str] = ABSENT
    pod: Maybe[str] = ABSENT
    pod_uid: Maybe[str] = ABSENT
    pod_labels: tuple[tuple[str, str], ...] = ()
    container: Maybe[str] = ABSENT
    job: Maybe[str] = ABSENT
    used: bool = False  # a process of this owner is on it


@dataclass(frozen=True, slots=True, order=True)
class OwnerKey:
    """`kind` is user, pod or job; only pods have a namespace."""

    kind: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUse:
    """What one owner has of one GPU or instance now, and has had since it was first seen."""

    owner: OwnerKey
    gpu_uuid: Uuid
    instance_uuid: Maybe[Uuid] = ABSENT
    here: bool = True  # False: gone, its counters stay for a while so that the last scrape sees them
    processes: int = 0
    allocated: Maybe[bool] = ABSENT  # ABSENT where no scheduler tells
    memory_bytes: Maybe[float] = ABSENT
    sm_ratio: Maybe[float] = ABSENT
    held_seconds: float = 0.0
    busy_seconds: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattributed:
    """What a GPU or instance has in use beyond what one kind of owner accounts for."""

    kind: str
    gpu_uuid: Uuid
    instance_uuid: Maybe[Uuid] = ABSENT
    processes: int = 0
    memory_bytes: Maybe[float] = ABSENT
    sm_ratio: Maybe[float] = ABSENT
    busy_seconds: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Everything about owners in one snapshot. `allocations` is ABSENT where no scheduler could be asked."""

    allocations: Maybe[tuple[Allocation, ...]] = ABSENT
    uses: tuple[OwnerUse, ...] = ()
    unattributed: tuple[Unattributed, ...] = ()
    job_lines: Mapping[str, tuple[str, ...]] = NOTHING  # of a batch system's job files, by file name
    failures: Mapping[str, int] = NOTHING  # lookups that failed since the start, by what failed


UNOWNED = Ownership()
