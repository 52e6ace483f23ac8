"""The machine's CPU, memory, filesystems, disks and network, with node_exporter's names and units.

Counters are the kernel's, since boot. A filesystem that does not answer or cannot be read is in
`filesystem_errors` and has no size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import NO_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class Filesystem:
    device: str
    mountpoint: str
    fstype: str
    size_bytes: float
    free_bytes: float
    available_bytes: float
    files: float
    files_free: float
    read_only: bool
    device_number: Maybe[tuple[str, str]] = ABSENT  # (major, minor)


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemError:
    """A mounted filesystem whose size could not be read, and the reason."""

    device: str
    mountpoint: str
    fstype: str
    error: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    uname: Mapping[str, str] = NO_VALUES  # by node_uname_info's labels
    boot_time_seconds: Maybe[float] = ABSENT
    time_seconds: Maybe[float] = ABSENT
    load1: Maybe[float] = ABSENT
    load5: Maybe[float] = ABSENT
    load15: Maybe[float] = ABSENT
    cpu_seconds: Mapping[tuple[str, ...], float] = NO_VALUES  # by (cpu, mode)
    cpu_guest_seconds: Mapping[tuple[str, ...], float] = NO_VALUES  # by (cpu, mode)
    memory: Mapping[str, float] = NO_VALUES  # by suffix: MemTotal_bytes, HugePages_Free
    kernel: Mapping[str, float] = NO_VALUES  # by name without node_: context_switches_total, procs_running
    vmstat: Mapping[str, float] = NO_VALUES  # by the names in /proc/vmstat
    clock: Mapping[str, float] = NO_VALUES  # by suffix of node_timex_*: offset_seconds, sync_status
    filesystems: tuple[Filesystem, ...] = ()
    filesystem_errors: tuple[FilesystemError, ...] = ()
    disks: Mapping[str, Mapping[str, float]] = NO_VALUES  # device -> suffix -> value
    disk_info: Mapping[str, Mapping[str, str]] = NO_VALUES  # device -> node_disk_info's other labels
    networks: Mapping[str, Mapping[str, float]] = NO_VALUES  # interface -> suffix -> value
