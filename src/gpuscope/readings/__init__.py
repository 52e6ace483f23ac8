"""What was read: frozen values, no I/O, imports nothing else of the program."""

from gpuscope.readings.absent import ABSENT, Absent, Maybe
from gpuscope.readings.device import Device, MigInstance, Uuid
from gpuscope.readings.event import XidEvent, XidTotal
from gpuscope.readings.host import Filesystem, FilesystemError, Host
from gpuscope.readings.process import NOBODY, Owner, Pid, Process
from gpuscope.readings.snapshot import AgentCost, Counters, Driver, Reading, Snapshot, SourceStatus

__all__ = [
    "ABSENT",
    "NOBODY",
    "Absent",
    "AgentCost",
    "Counters",
    "Device",
    "Driver",
    "Filesystem",
    "FilesystemError",
    "Host",
    "Maybe",
    "MigInstance",
    "Owner",
    "Pid",
    "Process",
    "Reading",
    "Snapshot",
    "SourceStatus",
    "Uuid",
    "XidEvent",
    "XidTotal",
]
