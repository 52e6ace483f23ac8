"""A process that uses a GPU or an instance, and its owner.

The PID is the one that the driver shows. A process on two GPUs is two `Process` objects. A process is
identified by PID and `started_at`, because PIDs are reused.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import Uuid

Pid = NewType("Pid", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """The owner of a process; an unknown attribute is ABSENT, never an empty string."""

    user: Maybe[str] = ABSENT
    group: Maybe[str] = ABSENT
    container_id: Maybe[str] = ABSENT
    container: Maybe[str] = ABSENT
    image: Maybe[str] = ABSENT
    pod: Maybe[str] = ABSENT
    namespace: Maybe[str] = ABSENT
    pod_uid: Maybe[str] = ABSENT
    pod_labels: Maybe[tuple[tuple[str, str], ...]] = ABSENT  # only those that the settings allow
    job: Maybe[str] = ABSENT
    job_step: Maybe[str] = ABSENT
    job_array: Maybe[str] = ABSENT  # "9_1": the array's job and the task in it
    job_account: Maybe[str] = ABSENT
    job_partition: Maybe[str] = ABSENT


NO_OWNER = Owner()


@dataclass(frozen=True, slots=True)
class ProcessLabels:
    """The labels of a process's series, fixed when the process is first exported.

    Programs rename themselves, and a pod's name may be found later; a changed label would start a new series.
    """

    kind: str
    command: Maybe[str]
    owner: Owner


ACTIVE: Final = "active"
IDLE: Final = "idle"
UNKNOWN: Final = "unknown"

_ACTIVE: Final = {ACTIVE: 1, IDLE: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessWork:
    """What a process does on the CPU: means over the last minute, as shares of the time or of one core."""

    cpu_ratio: Maybe[float] = ABSENT
    run_ratio: Maybe[float] = ABSENT  # of its main thread
    busiest_thread_ratio: Maybe[float] = ABSENT  # ran or waited for a core; its children's main threads too
    io_wait_ratio: Maybe[float] = ABSENT  # of the process or the child that waits most
    network_wait_ratio: Maybe[float] = ABSENT
    resident_memory_bytes: Maybe[float] = ABSENT
    children: Maybe[int] = ABSENT
    children_cpu_ratio: Maybe[float] = ABSENT
    read_bytes: Maybe[float] = ABSENT  # since its start, with its children


NO_WORK: Final = ProcessWork()


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: Pid
    gpu_uuid: Uuid  # of the whole GPU
    instance_uuid: Maybe[Uuid] = ABSENT  # of the instance, if it runs on one
    kind: str = "C"  # C compute, G graphics, M MPS client
    command: Maybe[str] = ABSENT  # short: the executable's name
    driver_name: Maybe[str] = ABSENT  # from the driver: often the whole path
    started_at: Maybe[float] = ABSENT  # seconds since the epoch
    memory_bytes: Maybe[float] = ABSENT
    sm_ratio: Maybe[float] = ABSENT
    memory_ratio: Maybe[float] = ABSENT
    encoder_ratio: Maybe[float] = ABSENT
    decoder_ratio: Maybe[float] = ABSENT
    jpeg_ratio: Maybe[float] = ABSENT
    ofa_ratio: Maybe[float] = ABSENT  # optical flow
    work: ProcessWork = NO_WORK
    owner: Owner = NO_OWNER
    program: Maybe[str] = ABSENT  # equal for the processes that belong together
    state: str = UNKNOWN  # active, idle (no work for a while), or unknown (the driver does not report it)
    age_seconds: Maybe[float] = ABSENT  # since its start, by the kernel's clock since boot
    idle_seconds: Maybe[float] = ABSENT  # without work; 0 while it works, ABSENT if that is not known
    idle_since: Maybe[float] = ABSENT  # seconds since the epoch; only if idle
    labels: Maybe[ProcessLabels] = ABSENT  # of its series; ABSENT: use the current kind, command and owner
    looked_up: bool = True  # False: the owner lookup is not finished, so it has no series yet

    @property
    def active(self) -> Maybe[int]:
        """1, 0, or ABSENT if the state is unknown."""
        return _ACTIVE.get(self.state, ABSENT)
