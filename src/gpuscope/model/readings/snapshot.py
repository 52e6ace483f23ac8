"""The reading of one source, and the snapshot of the whole node.

A `Reading` contains only what its source can read. A `Snapshot` is built once per cycle from the latest fresh
reading of every source and is the input of the rest of the program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import NO_VALUES, Device, Uuid
from gpuscope.model.readings.host import HostReading, InfinibandReading
from gpuscope.model.readings.ownership import NO_OWNERSHIP, Ownership
from gpuscope.model.readings.process import Process
from gpuscope.model.readings.slurm import SlurmState

# Jobs that communicate with NCCL, as their RAS service describes them: ranks, and which of them are behind.
#
# A job is seen by the agent of each node that has its processes; only the one with the lowest rank follows it
# (`followed`), the others know their own ranks. Host and PID of a rank are the job's own: an address, and a
# PID in the process' namespace. Operations are counted when they are launched, not when they end.

BEHIND = "behind"
SILENT = "silent"
DEAD = "dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalRank:
    """A rank whose process runs on this node."""

    rank: int  # in the job's largest communicator
    host: str
    host_pid: int
    pid: int  # as this machine numbers it
    gpu_uuid: Maybe[Uuid] = ABSENT
    operations: Maybe[int] = ABSENT  # launched in the largest communicator; only of a job that is followed


@dataclass(frozen=True, slots=True, kw_only=True)
class StalledRank:
    """A rank that others wait for while nothing moves."""

    communicator: str
    rank: int  # in the job's largest communicator, or else in this one
    host: str
    host_pid: int
    reason: str  # behind, silent or dead
    seconds: float  # for how long no rank of the communicator has launched anything
    operation: str = ""  # AllReduce; empty if it is not known
    launched: Maybe[int] = ABSENT
    furthest: Maybe[int] = ABSENT  # what the others have launched
    waiting: Maybe[int] = ABSENT  # how many have
    pid: Maybe[int] = ABSENT  # if it runs on this node


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveJob:
    name: str  # host and PID of its lowest process, the same on every node
    uid: int
    pids: tuple[int, ...]  # on this node; the first one's owner is the job's
    followed: bool
    version: str = ""
    ranks: Maybe[int] = ABSENT
    missing: Maybe[int] = ABSENT  # ranks that do not answer
    behind: Maybe[int] = ABSENT  # ranks that have launched less than others, which is normal for a moment
    failed: Maybe[int] = ABSENT  # ranks with an error of NCCL
    communicators: Maybe[int] = ABSENT
    stalled_seconds: Maybe[float] = ABSENT  # 0 while operations are launched, or all have launched the same
    local: tuple[LocalRank, ...] = ()
    stalled: tuple[StalledRank, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveReading:
    jobs: tuple[CollectiveJob, ...] = ()
    requests: Mapping[str, int] = NO_VALUES  # since the source was opened, by result: answered, failed


# Events: errors that a GPU or its driver reports by a code, and GPUs that were lost or recovered.


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """Versions and modes of one vendor's driver."""

    driver_version: Maybe[str] = ABSENT
    library_versions: Mapping[str, str] = NO_VALUES  # by library: NVIDIA's nvml, cuda
    modes: Mapping[str, int] = NO_VALUES  # of all its GPUs, by name: NVIDIA's confidential_compute
    gpu_count: Maybe[int] = ABSENT  # that the driver lists, also one that was lost before the agent started


NO_DRIVER: Final = Driver()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One source's reading. `failures` counts failed calls by name; other numbers are still valid."""

    drivers: Mapping[str, Driver] = NO_VALUES  # by vendor
    devices: tuple[Device, ...] = ()
    processes: Maybe[tuple[Process, ...]] = ABSENT  # (): no processes; ABSENT: unknown
    host: Maybe[HostReading] = ABSENT
    infiniband: Maybe[InfinibandReading] = ABSENT
    collectives: Maybe[CollectiveReading] = ABSENT
    slurm: Maybe[SlurmState] = ABSENT
    errors: tuple[ErrorEvent, ...] = ()
    failures: Mapping[str, int] = NO_VALUES
    simulated: bool = False
    down: str = ""  # why the source is down, if the reading itself says so; its other values still count
    unfinished: bool = False  # some numbers are still being read and follow in the next reading


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """The state of one source. Always exported, also when the source fails."""

    name: str
    up: bool
    why: str  # one sentence: what it reads, or why it reads nothing
    failures: int = 0  # failed reads and calls since the start
    failed_reads: int = 0  # those of `failures` that were whole reads
    code: Maybe[int] = ABSENT  # of the last read: 0, or its exit or return code; -1 if it has none
    duration_seconds: Maybe[float] = ABSENT
    last_success_at: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """Counters that the agent integrates every cycle, so that they include bursts between two scrapes."""

    busy_seconds: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT
    throttled_seconds: Mapping[str, float] = NO_VALUES  # by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTrend:
    """The recent past of a GPU or instance, which a single reading does not show.

    Durations are whole seconds of the monotonic clock: setting the machine's clock does not change them.
    `*_since` are the same as times since the epoch, for one more version."""

    utilization_minute_ratio: Maybe[float] = ABSENT
    power_minute_watts: Maybe[float] = ABSENT
    hung_seconds: Maybe[float] = ABSENT  # full utilisation, little power, no traffic; 0 while it does not hang
    free_seconds: Maybe[float] = ABSENT  # no process and no allocation; 0 while it is held
    hung_since: Maybe[float] = ABSENT
    free_since: Maybe[float] = ABSENT


NO_TREND: Final = GpuTrend()


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCost:
    """The agent's own CPU time and memory."""

    started_at: float
    snapshots: int
    cpu_seconds: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    node: str
    taken_at: float
    monotonic: Maybe[float] = ABSENT  # the agent's monotonic clock at that time
    simulated: bool = False
    drivers: Mapping[str, Driver] = NO_VALUES  # by vendor
    devices: tuple[Device, ...] = ()
    processes: Maybe[tuple[Process, ...]] = ABSENT
    ownership: Ownership = NO_OWNERSHIP
    host: Maybe[HostReading] = ABSENT
    infiniband: Maybe[InfinibandReading] = ABSENT
    collectives: Maybe[CollectiveReading] = ABSENT
    slurm: Maybe[SlurmState] = ABSENT  # on the one machine that reads the cluster
    cpu_ratio: Maybe[float] = ABSENT  # share of the machine's CPU time that is not idle
    counters: Mapping[Uuid, Counters] = NO_VALUES
    trends: Mapping[Uuid, GpuTrend] = NO_VALUES
    errors: tuple[ErrorTotal, ...] = ()
    events: tuple[GpuEvent, ...] = ()  # the most recent events, oldest first
    sources: tuple[SourceStatus, ...] = ()
    expected_gpus: Maybe[int] = ABSENT
    agent: Maybe[AgentCost] = ABSENT

    def driver_of(self, vendor: Maybe[str]) -> Driver:
        """Without versions if no source read them."""
        return NO_DRIVER if vendor is ABSENT else self.drivers.get(vendor, NO_DRIVER)
