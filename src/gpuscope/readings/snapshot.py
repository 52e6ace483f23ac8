"""What one source answered, and the whole node at one moment.

A `Reading` is one source's answer and says nothing of what the source does not know. A `Snapshot` is what the
rest of the program works on: immutable, made once per cycle from every source's latest fresh reading.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.readings.absent import ABSENT, Maybe
from gpuscope.readings.device import NOTHING, Device, Uuid
from gpuscope.readings.event import GpuEvent, XidEvent, XidTotal
from gpuscope.readings.host import Host
from gpuscope.readings.ownership import UNOWNED, Ownership
from gpuscope.readings.process import Process
from gpuscope.readings.slurm import SlurmState


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """The software between us and the GPUs."""

    driver_version: Maybe[str] = ABSENT
    nvml_version: Maybe[str] = ABSENT
    cuda_version: Maybe[str] = ABSENT
    confidential_compute: Maybe[int] = ABSENT  # 1 if the machine's GPUs run in confidential computing mode


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One source's answer. `failures` counts, by call, what failed while the rest went on."""

    driver: Maybe[Driver] = ABSENT
    devices: tuple[Device, ...] = ()
    processes: Maybe[tuple[Process, ...]] = ABSENT  # () is "none run", ABSENT is "cannot tell"
    host: Maybe[Host] = ABSENT
    slurm: Maybe[SlurmState] = ABSENT
    xids: tuple[XidEvent, ...] = ()
    failures: Mapping[str, int] = NOTHING
    simulated: bool = False
    down: str = ""  # why the source is down, where the reading itself says so; what else it has still counts
    unfinished: bool = False  # some numbers are still being read, and come with the next reading


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceStatus:
    """How one source does. Always exported, most of all when it does badly."""

    name: str
    up: bool
    why: str  # one sentence for people: what it gives, or why it gives nothing
    failures: int = 0  # reads and calls that failed since the start
    failed_reads: int = 0  # of these, the reads that gave nothing at all
    code: Maybe[int] = ABSENT  # of the last read: 0, or the exit or return code it failed with; -1 has none
    duration_seconds: Maybe[float] = ABSENT
    last_success_at: Maybe[float] = ABSENT


@dataclass(frozen=True, slots=True, kw_only=True)
class Counters:
    """What the agent integrates at its own clock: no burst between two scrapes is lost."""

    busy_seconds: Maybe[float] = ABSENT
    energy_joules: Maybe[float] = ABSENT
    throttled_seconds: Mapping[str, float] = NOTHING  # by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCost:
    """What watching costs: the agent's own time and memory."""

    started_at: float
    snapshots: int
    cpu_seconds: float
    memory_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    node: str
    taken_at: float
    simulated: bool = False
    driver: Driver = Driver()
    devices: tuple[Device, ...] = ()
    processes: Maybe[tuple[Process, ...]] = ABSENT
    ownership: Ownership = UNOWNED
    host: Maybe[Host] = ABSENT
    slurm: Maybe[SlurmState] = ABSENT  # on the one machine that reads the cluster
    cpu_ratio: Maybe[float] = ABSENT  # share of the machine's CPU time that was not idle
    counters: Mapping[Uuid, Counters] = NOTHING
    xids: tuple[XidTotal, ...] = ()
    events: tuple[GpuEvent, ...] = ()  # the latest, oldest first
    sources: tuple[SourceStatus, ...] = ()
    expected_gpus: Maybe[int] = ABSENT
    agent: Maybe[AgentCost] = ABSENT
