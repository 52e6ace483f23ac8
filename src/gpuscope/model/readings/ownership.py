"""Allocations of GPUs and their use by owners, which need not agree.

An `Allocation` comes from the scheduler, an `OwnerUse` from the owner's processes. A pod may leave its GPU
unused, and a privileged pod may use a GPU that it was not allocated. Use without an owner is `Unattributed`; it
is never distributed among the owners.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import NO_VALUES, Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """A GPU or instance allocated to a container or a job. A shared GPU has several allocations."""

    gpu_uuid: Maybe[Uuid] = ABSENT  # ABSENT: no visible GPU has this device id
    instance_uuid: Maybe[Uuid] = ABSENT
    device_id: str = ""  # the scheduler's id
    resource: str = ""  # of Kubernetes: nvidia.com/gpu
    replica: Maybe[str] = ABSENT  # of a shared GPU: "3" in GPU-…::3
    namespace: Maybe[str] = ABSENT
    pod: Maybe[str] = ABSENT
    pod_uid: Maybe[str] = ABSENT
    pod_labels: Maybe[tuple[tuple[str, str], ...]] = ABSENT
    container: Maybe[str] = ABSENT
    job: Maybe[str] = ABSENT
    account: Maybe[str] = ABSENT  # the job's
    user: Maybe[str] = ABSENT  # the job's
    used: bool = False  # whether a process of the owner uses it


@dataclass(frozen=True, slots=True, order=True)
class OwnerKey:
    """`kind` is user, pod, job or account (a job's); only pods have a namespace."""

    kind: str
    name: str
    namespace: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A job of a batch system on this node, as its prolog, Slurm or its processes describe it."""

    user: Maybe[str] = ABSENT
    account: Maybe[str] = ABSENT
    partition: Maybe[str] = ABSENT
    array: Maybe[str] = ABSENT  # "9_1": the array's job and the task in it
    ends_at: Maybe[float] = ABSENT  # by its time limit


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerUse:
    """One owner's use of one GPU or instance: now, and in total since it was first seen."""

    owner: OwnerKey
    gpu_uuid: Uuid
    instance_uuid: Maybe[Uuid] = ABSENT
    here: bool = True  # False: it has ended; its counters are kept for a while so that a last scrape gets them
    processes: int = 0
    allocated: Maybe[bool] = ABSENT  # ABSENT without a scheduler
    memory_bytes: Maybe[float] = ABSENT
    sm_ratio: Maybe[float] = ABSENT
    held_seconds: float = 0.0
    gpu_seconds: float = 0.0  # its share of the held time: shared GPUs are split, instances count by slices
    busy_seconds: Maybe[float] = ABSENT  # SM time; of an instance by its slices
    unknown_seconds: float = 0.0  # of gpu_seconds: the work is not known
    idle_gpu_seconds: float = 0.0  # of gpu_seconds: stretches of 15 minutes and more without work
    idle_seconds: Maybe[float] = ABSENT  # how long it has not worked; 0 while it works
    energy_joules: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitTime:
    """A whole GPU or an instance: GPU-seconds in which somebody or nobody held it, and what its holders did
    together."""

    uuid: Uuid
    held_seconds: float
    free_seconds: float
    busy_seconds: Maybe[float] = ABSENT
    unknown_seconds: float = 0.0
    idle_seconds: float = 0.0
    energy_joules: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTime:
    """The time of one board: how long it was read, and the part of its slices that no instance has."""

    gpu_uuid: Uuid
    observed_seconds: float
    stranded_seconds: float
    units: tuple[UnitTime, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Unattributed:
    """The use of a GPU or instance that no owner of one kind accounts for."""

    kind: str
    gpu_uuid: Uuid
    instance_uuid: Maybe[Uuid] = ABSENT
    processes: int = 0
    memory_bytes: Maybe[float] = ABSENT
    sm_ratio: Maybe[float] = ABSENT
    gpu_seconds: Maybe[float] = ABSENT  # ABSENT for the board of a split GPU: its instances have them
    busy_seconds: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """Owners in one snapshot. `allocations` is ABSENT if no scheduler could be queried."""

    allocations: Maybe[tuple[Allocation, ...]] = ABSENT
    unallocated: Mapping[Uuid, int] = NO_VALUES  # processes by unit that none of its holders has
    unlisted_memory: Mapping[Uuid, float] = NO_VALUES  # bytes by unit that no process listed by the driver has
    jobs: Mapping[str, JobFacts] = NO_VALUES  # by job id: those that hold or use a GPU of this node
    uses: tuple[OwnerUse, ...] = ()
    unattributed: tuple[Unattributed, ...] = ()
    times: tuple[GpuTime, ...] = ()
    job_lines: Mapping[str, tuple[str, ...]] = NO_VALUES  # of a batch system's job files, by file name
    failures: Mapping[str, int] = NO_VALUES  # failed lookups since the start, by kind of lookup


NO_OWNERSHIP = Ownership()
