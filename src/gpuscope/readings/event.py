"""Something that happened once: an XID error the driver reported, a GPU that was lost or came back."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.readings.absent import ABSENT, Maybe
from gpuscope.readings.device import Uuid


@dataclass(frozen=True, slots=True, kw_only=True)
class XidEvent:
    """One XID. The kernel log knows the GPU by PCI address, the driver's events by UUID."""

    xid: int
    at: float  # seconds since the epoch
    channel: str  # "kernel_log" or "nvml": the same XID may come both ways
    gpu_uuid: Maybe[Uuid] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT
    message: str = ""
    # Where the kernel log has it: a restarted agent reads the log again and must know what it has counted.
    log_sequence: Maybe[int] = ABSENT  # the record's number in this boot
    log_microseconds: Maybe[int] = ABSENT  # its time stamp since boot


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEvent:
    """What happened to one GPU. An XID of a GPU that was never seen has its PCI address only."""

    kind: str  # "lost", "returned" or "xid"
    at: float  # seconds since the epoch
    text: str  # one sentence, as it stands in the log
    gpu_uuid: Maybe[Uuid] = ABSENT
    index: Maybe[int] = ABSENT
    pci_bus_id: Maybe[str] = ABSENT
    xid: Maybe[int] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class XidTotal:
    """How often one XID was seen on one GPU, each occurrence once, and when last."""

    gpu_uuid: Uuid
    xid: int
    count: int
    last_at: float
