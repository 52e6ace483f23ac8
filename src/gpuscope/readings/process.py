"""A process that holds a GPU or a MIG instance, and whom it belongs to.

The PID is the one nvidia-smi shows. A process on two GPUs is two of these. `started_at` belongs to the key:
a PID alone names another process after reuse.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NewType

from gpuscope.readings.absent import ABSENT, Maybe
from gpuscope.readings.device import Uuid

Pid = NewType("Pid", int)


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """Whose a process is, as far as it could be told; an unknown part is ABSENT, never an empty string."""

    user: Maybe[str] = ABSENT
    group: Maybe[str] = ABSENT
    container_id: Maybe[str] = ABSENT
    container: Maybe[str] = ABSENT
    image: Maybe[str] = ABSENT
    pod: Maybe[str] = ABSENT
    namespace: Maybe[str] = ABSENT
    pod_uid: Maybe[str] = ABSENT
    pod_labels: tuple[tuple[str, str], ...] = ()  # only those the settings allow
    job: Maybe[str] = ABSENT
    job_step: Maybe[str] = ABSENT
    job_array: Maybe[str] = ABSENT  # "9_1": the array's job and the task in it
    job_account: Maybe[str] = ABSENT
    job_partition: Maybe[str] = ABSENT


NOBODY = Owner()


@dataclass(frozen=True, slots=True)
class ProcessLabels:
    """How the series of a process are labelled: fixed when it is first published, whatever is learned later.

    Programs rename themselves, and a pod's name may come late: a label that changes would cut the series.
    """

    kind: str
    command: Maybe[str]
    owner: Owner


ACTIVE: Final = "active"
IDLE: Final = "idle"
UNKNOWN: Final = "unknown"

_ACTIVE: Final = {ACTIVE: 1, IDLE: 0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    pid: Pid
    gpu_uuid: Uuid  # of the whole GPU
    instance_uuid: Maybe[Uuid] = ABSENT  # of the MIG instance, where it runs on one
    kind: str = "C"  # C compute, G graphics, M MPS client
    command: Maybe[str] = ABSENT  # short: the executable's name
    driver_name: Maybe[str] = ABSENT  # as the driver and nvidia-smi spell it: often the whole path
    started_at: Maybe[float] = ABSENT  # seconds since the epoch
    memory_bytes: Maybe[float] = ABSENT
    sm_ratio: Maybe[float] = ABSENT
    memory_ratio: Maybe[float] = ABSENT
    encoder_ratio: Maybe[float] = ABSENT
    decoder_ratio: Maybe[float] = ABSENT
    owner: Owner = NOBODY
    state: str = UNKNOWN  # active, idle (no SM activity for a while), or unknown: the driver does not say
    idle_since: Maybe[float] = ABSENT  # seconds since the epoch; only of an idle one
    labels: Maybe[ProcessLabels] = ABSENT  # of its series; ABSENT: kind, command and owner as they are now
    looked_up: bool = True  # False: its owner is still being looked up, so it has no series yet

    @property
    def active(self) -> Maybe[int]:
        """1, 0, or ABSENT where the driver does not say."""
        return _ACTIVE.get(self.state, ABSENT)
