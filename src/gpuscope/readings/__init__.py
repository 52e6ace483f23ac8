"""Readings: frozen values without I/O. Imports nothing else of the program."""

from gpuscope.readings.absent import ABSENT, Absent, Maybe
from gpuscope.readings.device import Device, MigInstance, Uuid, unit_uuid
from gpuscope.readings.event import GpuEvent, XidEvent, XidTotal
from gpuscope.readings.host import Filesystem, FilesystemError, HostReading
from gpuscope.readings.ownership import (
    Allocation,
    GpuTime,
    OwnerKey,
    Ownership,
    OwnerUse,
    Unattributed,
    UnitTime,
)
from gpuscope.readings.process import ACTIVE, IDLE, NO_OWNER, UNKNOWN, Owner, Pid, Process, ProcessLabels
from gpuscope.readings.snapshot import AgentCost, Counters, Driver, Reading, Snapshot, SourceStatus

__all__ = [
    "ABSENT",
    "ACTIVE",
    "IDLE",
    "NO_OWNER",
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
    "HostReading",
    "Maybe",
    "MigInstance",
    "Owner",
    "OwnerKey",
    "OwnerUse",
    "Ownership",
    "Pid",
    "Process",
    "ProcessLabels",
    "Reading",
    "Snapshot",
    "SourceStatus",
    "Unattributed",
    "UnitTime",
    "Uuid",
    "XidEvent",
    "XidTotal",
    "unit_uuid",
]
