"""Readings: frozen values without I/O. Imports nothing else of the program."""

from gpuscope.readings.absent import ABSENT, Absent, Maybe
from gpuscope.readings.device import Device, MigInstance, Uuid, unit_uuid
from gpuscope.readings.event import GpuEvent, XidEvent, XidTotal
from gpuscope.readings.host import Filesystem, FilesystemError, HostReading
from gpuscope.readings.ownership import (
    Allocation,
    GpuTime,
    JobFacts,
    OwnerKey,
    Ownership,
    OwnerUse,
    Unattributed,
    UnitTime,
)
from gpuscope.readings.process import (
    ACTIVE,
    IDLE,
    NO_OWNER,
    NO_WORK,
    UNKNOWN,
    Owner,
    Pid,
    Process,
    ProcessLabels,
    ProcessWork,
)
from gpuscope.readings.slurm import SlurmState
from gpuscope.readings.snapshot import (
    NO_TREND,
    AgentCost,
    Counters,
    Driver,
    GpuTrend,
    Reading,
    Snapshot,
    SourceStatus,
)

__all__ = [
    "ABSENT",
    "ACTIVE",
    "IDLE",
    "NO_OWNER",
    "NO_TREND",
    "NO_WORK",
    "UNKNOWN",
    "Absent",
    "AgentCost",
    "Allocation",
    "Counters",
    "Device",
    "Driver",
    "Filesystem",
    "FilesystemError",
    "GpuEvent",
    "GpuTime",
    "GpuTrend",
    "HostReading",
    "JobFacts",
    "Maybe",
    "MigInstance",
    "Owner",
    "OwnerKey",
    "OwnerUse",
    "Ownership",
    "Pid",
    "Process",
    "ProcessLabels",
    "ProcessWork",
    "Reading",
    "SlurmState",
    "Snapshot",
    "SourceStatus",
    "Unattributed",
    "UnitTime",
    "Uuid",
    "XidEvent",
    "XidTotal",
    "unit_uuid",
]
