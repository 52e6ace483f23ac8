"""Readings: frozen values without I/O. Imports nothing else of the program."""

from gpuscope.model.readings.absent import ABSENT, Absent, Maybe
from gpuscope.model.readings.device import Device, MigInstance, Uuid, unit_uuid
from gpuscope.model.readings.event import GpuEvent, XidEvent, XidTotal
from gpuscope.model.readings.host import Filesystem, FilesystemError, HostReading
from gpuscope.model.readings.ownership import (
    Allocation,
    GpuTime,
    JobFacts,
    OwnerKey,
    Ownership,
    OwnerUse,
    Unattributed,
    UnitTime,
)
from gpuscope.model.readings.process import (
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
from gpuscope.model.readings.slurm import SlurmState
from gpuscope.model.readings.snapshot import (
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
