"""Source `host`: the machine's CPU, memory, disks and network from /proc and /sys, as node_exporter reads them.

One read returns a `HostReading`. If one file fails, only its numbers are absent. A file that this kernel does
not have is not a failure. Counters are the kernel's, since boot.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from gpuscope.agent.sources.host.clock_state import read_clock_state
from gpuscope.agent.sources.host.cpu import MonotonicCpu
from gpuscope.agent.sources.host.mounts import FilesystemSizes, Mount, parse_mountinfo, to_filesystems
from gpuscope.agent.sources.host.proc_files import (
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
