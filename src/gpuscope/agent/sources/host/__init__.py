"""Source `host`: the machine's CPU, memory, disks and network from /proc and /sys, as node_exporter reads them.

One read returns a `HostReading`. If one file fails, only its numbers are absent. A file that this kernel does
not have is not a failure. Counters are the kernel's, since boot.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gpuscope.agent.sources.host.mounts import FilesystemSizes, Mount, parse_mountinfo, to_filesystems
from gpuscope.agent.sources.host.proc_files import (
    CPU_MODES,
    TICKS_PER_SECOND,
    DiskStats,
    parse_diskstats,
    parse_loadavg,
    parse_meminfo,
    parse_net_dev,
    parse_stat,
    parse_udev,
    parse_vmstat,
    valid_text,
)
from gpuscope.base.errors import SourceMissing
from gpuscope.base.settings import Settings
from gpuscope.model.readings import HostReading, Reading
from gpuscope.model.source import SourceSpec, Tier

# CPU seconds as counters that never decrease.
#
# The kernel's idle and iowait times may decrease slightly, which a rate would see as a counter reset. After a
# small decrease the last value is kept. If idle time decreases by more than `HOTPLUG_SECONDS`, the CPU was
# removed and added again, and all its times restart. node_exporter does the same.

HOTPLUG_SECONDS = 3.0
_IDLE = CPU_MODES.index("idle")
_GUEST_MODES = ("user", "nice")

Seconds = dict[tuple[str, str], float]


class MonotonicCpu:
    def __init__(self) -> None:
        self._last: dict[str, list[float]] = {}
        self._keys: dict[str, tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]] = {}

    def advance(self, ticks_by_cpu: Mapping[str, Sequence[float]]) -> tuple[Seconds, Seconds]:
        """Seconds by (cpu, mode), and the part spent in guests; an offline CPU has none."""
        last: dict[str, list[float]] = {}
        seconds: Seconds = {}
        guest_seconds: Seconds = {}
        for cpu, ticks in ticks_by_cpu.items():
            now = [tick / TICKS_PER_SECOND for tick in ticks]
            before = self._last.get(cpu)
            if before is not None and _is_same_cpu(before, now):
                now = list(map(max, before, now))
            last[cpu] = now
            modes, guests = self._keys_of(cpu)
            seconds.update(zip(modes, now, strict=False))
            guest_seconds.update(zip(guests, now[len(CPU_MODES) :], strict=False))
        self._last = last
        return seconds, guest_seconds

    def _keys_of(self, cpu: str) -> tuple[tuple[tuple[str, str], ...], tuple[tuple[str, str], ...]]:
        keys = self._keys.get(cpu)
        if keys is None:
            keys = (
                tuple((cpu, mode) for mode in CPU_MODES),
                tuple((cpu, mode) for mode in _GUEST_MODES),
            )
            self._keys[cpu] = keys
        return keys


def _is_same_cpu(before: Sequence[float], now: Sequence[float]) -> bool:
    return len(before) == len(now) > _IDLE and before[_IDLE] - now[_IDLE] < HOTPLUG_SECONDS


# The kernel's estimate of its clock error, from adjtimex(2), as node_exporter reads it.
#
# Reading needs no privilege. The offset is the kernel's own and is 0 where nothing disciplines the clock;
# then `sync_status` is 0. Containers see the host's clock.

STA_NANO = 0x2000
TIME_ERROR = 5
"""The clock is not synchronised."""


class _TimeValue(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("fraction", ctypes.c_long))


class Timex(ctypes.Structure):
    """struct timex of <sys/timex.h>."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("constant", ctypes.c_long),
        ("precision", ctypes.c_long),
        ("tolerance", ctypes.c_long),
        ("time", _TimeValue),
        ("tick", ctypes.c_long),
        ("pps", ctypes.c_long * 8),
        ("tai", ctypes.c_int),
        ("reserved", ctypes.c_int * 11),
    )


def read_clock_state() -> dict[str, float]:
    """By suffix of node_timex_*. Raises OSError; FileNotFoundError where the system has no adjtimex."""
    try:
        adjtimex = ctypes.CDLL(None, use_errno=True).adjtimex
    except (OSError, AttributeError):
        raise FileNotFoundError("adjtimex") from None
    state = Timex()  # modes is 0: nothing is changed
    result = adjtimex(ctypes.byref(state))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return to_clock_state(state, result)


def to_clock_state(state: Timex, result: int) -> dict[str, float]:
    divisor = 1e9 if state.status & STA_NANO else 1e6
    return {
        "estimated_error_seconds": state.esterror / 1e6,
        "maxerror_seconds": state.maxerror / 1e6,
        "offset_seconds": state.offset / divisor,
        "sync_status": 0.0 if result == TIME_ERROR else 1.0,
    }


INTERVAL_SECONDS = 5.0
DEADLINE_SECONDS = 20.0
DISK_IDENTITY = {  # node_disk_info's label -> udev properties; the first that exists is used
    "model": ("ID_MODEL",),
    "path": ("ID_PATH",),
    "revision": ("ID_REVISION",),
    "serial": ("SCSI_IDENT_SERIAL", "ID_SERIAL_SHORT", "ID_SERIAL"),
    "wwn": ("ID_WWN",),
}

Fields = dict[str, Any]  # of HostReading


class HostSource:
    def __init__(self, settings: Settings) -> None:
        self._procfs = settings.path_procfs.rstrip("/")
        self._sysfs = settings.path_sysfs.rstrip("/")
        self._rootfs = settings.path_rootfs.rstrip("/")
        self._cpu = MonotonicCpu()
        self._sizes = FilesystemSizes()
        self._mountinfo = ""
        self._mounts: list[Mount] = []
        self._disk_info: dict[str, Mapping[str, str]] = {}
        self._parts: Mapping[str, Callable[[], Fields]] = {
            "uname": self._read_uname,
            "stat": self._read_stat,
            "loadavg": self._read_loadavg,
            "meminfo": lambda: {"memory": parse_meminfo(self._text("meminfo"))},
            "vmstat": lambda: {"vmstat": parse_vmstat(self._text("vmstat"))},
            "adjtimex": lambda: {"clock": read_clock_state()},
            "net/dev": lambda: {"networks": parse_net_dev(self._text("net/dev"))},
            "diskstats": self._read_disks,
            "filesystems": self._read_filesystems,
        }

    def read(self, due: frozenset[Tier]) -> Reading:
        if Tier.SLOW in due:
            self._disk_info.clear()
        fields: Fields = {"time_seconds": time.time()}
        failures = {}
        for name, read in self._parts.items():
            try:
                fields.update(read())
            except FileNotFoundError:
                continue
            except (OSError, ValueError, RuntimeError):  # RuntimeError: no thread could be started for statvfs
                failures[name] = 1
        return Reading(host=HostReading(**fields), failures=failures)

    def close(self) -> None:
        pass

    def _text(self, name: str) -> str:
        return _read_text(f"{self._procfs}/{name}")

    def _read_uname(self) -> Fields:
        uname = os.uname()
        try:
            domainname = self._text("sys/kernel/domainname").rstrip("\n")
        except OSError:
            domainname = ""
        return {
            "uname": {
                "domainname": valid_text(domainname),
                "machine": uname.machine,
                "nodename": valid_text(uname.nodename),
                "release": valid_text(uname.release),
                "sysname": uname.sysname,
                "version": valid_text(uname.version),
            }
        }

    def _read_stat(self) -> Fields:
        stat = parse_stat(self._text("stat"))
        seconds, guest_seconds = self._cpu.advance(stat.cpu_ticks)
        return {
            "boot_time_seconds": stat.boot_time_seconds,
            "cpu_seconds": seconds,
            "cpu_guest_seconds": guest_seconds,
            "kernel": stat.kernel,
        }

    def _read_loadavg(self) -> Fields:
        return dict(zip(("load1", "load5", "load15"), parse_loadavg(self._text("loadavg")), strict=True))

    def _read_disks(self) -> Fields:
        disks = list(parse_diskstats(self._text("diskstats")))
        for disk in disks:
            if disk.name not in self._disk_info:
                self._disk_info[disk.name] = self._read_disk_info(disk)
        return {
            "disks": {disk.name: disk.values for disk in disks},
            "disk_info": {disk.name: self._disk_info[disk.name] for disk in disks},
        }

    def _read_disk_info(self, disk: DiskStats) -> dict[str, str]:
        """As in node_exporter, an unknown property is empty and an unknown disk is not rotational."""
        try:
            udev = parse_udev(_read_text(f"{self._rootfs}/run/udev/data/b{disk.major}:{disk.minor}"))
        except OSError:
            udev = {}
        try:
            rotational = _read_text(f"{self._sysfs}/block/{disk.name}/queue/rotational").strip()
        except (OSError, ValueError):
            rotational = "0"
        info = {
            label: next((udev[name] for name in names if udev.get(name)), "")
            for label, names in DISK_IDENTITY.items()
        }
        return {
            **info,
            "major": disk.major,
            "minor": disk.minor,
            "rotational": "1" if rotational == "1" else "0",
        }

    def _read_filesystems(self) -> Fields:
        # In a container our own mounts are not the machine's; those of process 1 are.
        try:
            text = self._text("1/mountinfo")
        except OSError:
            text = self._text("self/mountinfo")
        if text != self._mountinfo:  # hundreds of lines on a container host, which rarely change
            self._mountinfo, self._mounts = text, parse_mountinfo(text, self._rootfs)
        mounts = self._mounts
        found, failed = to_filesystems(mounts, self._sizes.read(mount.path for mount in mounts))
        return {"filesystems": found, "filesystem_errors": failed}


def _read_text(path: str) -> str:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path for each of ten files a read costs more
        return file.readall().decode("utf-8", "surrogateescape")


def open_host(settings: Settings) -> HostSource:
    if not Path(settings.path_procfs, "stat").exists():
        raise SourceMissing(
            f"no procfs at {settings.path_procfs}: mount it there, or set its path with --path-procfs"
        )
    return HostSource(settings)


SOURCE = SourceSpec(
    name="host",
    summary="CPU, load, memory, filesystems, disks and network of this machine from procfs",
    open=open_host,
    interval_seconds=lambda settings: max(INTERVAL_SECONDS, settings.interval),
    deadline_seconds=lambda settings: max(DEADLINE_SECONDS, 4 * settings.interval),
)
