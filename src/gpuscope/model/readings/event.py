"""Events: XID errors, and GPUs that were lost or recovered."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One XID. The kernel log identifies the GPU by PCI address, the driver's events by UUID."""

    xid: int
    at: float  # seconds since the epoch
    reporter: str  # "kernel_log" or "nvml": the same XID may come from both
    gpu_uuid: Maybe[Uuid] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT
    message: str = ""
    monotonic: Maybe[float] = ABSENT  # when, on the agent's monotonic clock
    # The position in the kernel log: a restarted agent reads the log again and must not count an XID twice.
    log_sequence: Maybe[int] = ABSENT  # the record's sequence number in this boot
    log_microseconds: Maybe[int] = ABSENT  # the record's timestamp since boot


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """An event of one GPU. An XID of a GPU that was never seen has only the PCI address."""

    kind: str  # "lost", "returned" or "xid"
    at: float  # seconds since the epoch
    text: str  # the sentence in the log
    gpu_uuid: Maybe[Uuid] = ABSENT
    index: Maybe[int] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT
    xid: Maybe[int] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class XidTotal:
    """How many times an XID occurred on a GPU, and when last."""

    gpu_uuid: Uuid
    xid: int
    count: int
    last_at: float
    last_monotonic: Maybe[float] = ABSENT  # ABSENT for one of an earlier boot
