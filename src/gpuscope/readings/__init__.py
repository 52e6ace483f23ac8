"""What was read: frozen values, no I/O, imports nothing else of the program."""

from gpuscope.readings.absent import ABSENT, Absent, Maybe
from gpuscope.readings.device import Device, MigInstance, Uuid
from gpuscope.readings.event import GpuEvent, XidEvent, XidTotal
from gpuscope.readings.host import Filesystem, FilesystemError, Host
from gpuscope.readings.ownership import Allocation, OwnerKey, Ownership, OwnerUse, Unattributed
from gpuscope.readings.process import ACTIVE, IDLE, NOBODY, UNKNOWN, Owner, Pid, Process, ProcessLabels
from gpuscope.readings.slurm import SlurmState
from gpuscope.readings.snapshot import AgentCost, Counters, Driver, Reading, Snapshot, SourceStatus

__all__ = [
    "ABSENT",
    "ACTIVE",
    "IDLE",
    "NOBODY",
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
    "Host",
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
    "SlurmState",
    "Snapshot",
    "SourceStatus",
    "Unattributed",
    "Uuid",
    "XidEvent",
    "XidTotal",
]
