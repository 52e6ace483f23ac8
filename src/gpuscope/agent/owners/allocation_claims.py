"""What a scheduler says it allocated, before the device id is matched with a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationClaim:
    """One device of one container, or one GPU of one job."""

    device_id: str
    resource: str = ""
    namespace: Maybe[str] = ABSENT
    pod: Maybe[str] = ABSENT
    container: Maybe[str] = ABSENT
    job: Maybe[str] = ABSENT


POD: Final = "pod"
JOB: Final = "job"
