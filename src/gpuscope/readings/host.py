"""The machine around the GPUs, in node_exporter's terms and units.

Counters are the kernel's, since boot. A filesystem that does not answer or may not be read is among the
`filesystem_errors`, not 0 bytes large.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.readings.absent import ABSENT, Maybe
from gpuscope.readings.device import NOTHING


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
    """A mounted filesystem that did not tell its size, and why."""

    device: str
    mountpoint: str
    fstype: str
    error: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    uname: Mapping[str, str] = NOTHING  # by node_uname_info's labels
    boot_time_seconds: Maybe[float] = ABSENT
    time_seconds: Maybe[float] = ABSENT
    load1: Maybe[float] = ABSENT
    load5: Maybe[float] = ABSENT
    load15: Maybe[float] = ABSENT
    cpu_seconds: Mapping[tuple[str, ...], float] = NOTHING  # by (cpu, mode)
    cpu_guest_seconds: Mapping[tuple[str, ...], float] = NOTHING  # by (cpu, mode)
    memory: Mapping[str, float] = NOTHING  # by suffix: MemTotal_bytes, HugePages_Free
    kernel: Mapping[str, float] = NOTHING  # by name without node_: context_switches_total, procs_running
    vmstat: Mapping[str, float] = NOTHING  # by /proc/vmstat's own names
    filesystems: tuple[Filesystem, ...] = ()
    filesystem_errors: tuple[FilesystemError, ...] = ()
    disks: Mapping[str, Mapping[str, float]] = NOTHING  # device -> suffix -> value
    disk_info: Mapping[str, Mapping[str, str]] = NOTHING  # device -> node_disk_info's other labels
    networks: Mapping[str, Mapping[str, float]] = NOTHING  # interface -> suffix -> value
