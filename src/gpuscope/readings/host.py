"""The machine around the GPUs, in node_exporter's terms and units.

Counters are the kernel's, since boot. A filesystem that does not answer or may not be read is absent from the
list rather than 0 bytes large.
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
    filesystems: tuple[Filesystem, ...] = ()
    disks: Mapping[str, Mapping[str, float]] = NOTHING  # device -> suffix -> value
    networks: Mapping[str, Mapping[str, float]] = NOTHING  # interface -> suffix -> value
