"""Events: errors that a GPU or its driver reports by a code, and GPUs that were lost or recovered."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorEvent:
    """One error. `code` is the vendor's: NVIDIA's XID "79". The kernel log identifies the GPU by PCI address,
    the driver's events by UUID."""

    vendor: str
    code: str
    at: float  # seconds since the epoch
    reporter: str  # "kernel_log" or a source: the same error may come from both
    gpu_uuid: Maybe[Uuid] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT
    message: str = ""
    monotonic: Maybe[float] = ABSENT  # when, on the agent's monotonic clock
    # The position in the kernel log: a restarted agent reads the log again and must not count an error twice.
    log_sequence: Maybe[int] = ABSENT  # the record's sequence number in this boot
    log_microseconds: Maybe[int] = ABSENT  # the record's timestamp since boot


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """An event of one GPU. An error of a GPU that was never seen has only the PCI address."""

    kind: str  # "lost", "returned" or the word for the vendor's errors: "xid"
    at: float  # seconds since the epoch
    text: str  # the sentence in the log
    gpu_uuid: Maybe[Uuid] = ABSENT
    index: Maybe[int] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT
    code: Maybe[str] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorTotal:
    """How many times an error occurred on a GPU, and when last."""

    gpu_uuid: Uuid
    vendor: str
    code: str
    count: int
    last_at: float
    last_monotonic: Maybe[float] = ABSENT  # ABSENT for one of an earlier boot
