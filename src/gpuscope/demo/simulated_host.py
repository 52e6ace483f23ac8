"""The machine around the simulated GPUs: its CPUs, memory, disks and network follow what the GPUs do.

Counters are linear in uptime and in the GPUs' busy seconds, so they never decrease. Everything is computed from
totals at a few times; no state is kept between readings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import pi, sin

from gpuscope.model.readings import Filesystem, HostReading

GIB = 1024.0**3
_MODES = {"user": 0.74, "system": 0.17, "iowait": 0.05, "softirq": 0.03, "irq": 0.004, "nice": 0.006}
_QUIET_NETWORK = {
    f"{direction}_{what}_total": 0.0
    for direction, rest in (("receive", "frame multicast"), ("transmit", "colls carrier"))
    for what in f"errs drop fifo compressed {rest}".split()
}
_BUSY_CORES_A_GPU = 0.35  # of its share of the CPUs, at full utilisation


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    name: str
    boot: float
    gpus: int
    cpus: int
    memory_bytes: float
    aarch64: bool = False


def read_host(
    machine: Machine, at: float, busy_seconds: Callable[[float], float], held_gpus: int
) -> HostReading:
    """`busy_seconds(t)`: of all GPUs together, from boot until t."""
    uptime = max(0.0, at - machine.boot)
    busy = busy_seconds(at)
    loads = [_load(machine, at, window, busy, busy_seconds) for window in (60.0, 300.0, 900.0)]
    return HostReading(
        uname={
            "sysname": "Linux",
            "release": "6.8.0-85-generic",
            "version": "#85-Ubuntu SMP PREEMPT_DYNAMIC",
            "machine": "aarch64" if machine.aarch64 else "x86_64",
            "nodename": machine.name,
            "domainname": "(none)",
        },
        boot_time_seconds=machine.boot,
        time_seconds=at,
        load1=loads[0],
        load5=loads[1],
        load15=loads[2],
        cpu_seconds=_cpu_seconds(machine, uptime, busy),
        cpu_guest_seconds=_guest_seconds(machine.cpus),
        memory=_memory(machine, at, held_gpus),
        kernel={
            "context_switches_total": (uptime * 3_000 + busy * 9_000) // 1,
            "intr_total": (uptime * 2_000 + busy * 5_000) // 1,
            "forks_total": (uptime * 1.5) // 1,
            "procs_running": 1.0 + round(loads[0]),
            "procs_blocked": 0.0,
        },
        filesystems=_filesystems(machine, at),
        disks=_disks(uptime, busy),
        networks=_networks(uptime, busy),
    )


def _busy_cores(machine: Machine) -> float:
    return _BUSY_CORES_A_GPU * machine.cpus / max(1, machine.gpus)


def _load(
    machine: Machine, at: float, window: float, busy: float, busy_seconds: Callable[[float], float]
) -> float:
    mean = (busy - busy_seconds(at - window)) / window
    return round(0.02 * machine.cpus + mean * _busy_cores(machine), 2)


@cache
def _guest_seconds(cpus: int) -> dict[tuple[str, ...], float]:
    """The same for ever: nothing runs virtual machines here."""
    return {(str(cpu), mode): 0.0 for cpu in range(cpus) for mode in ("user", "nice")}


@cache
def _cpu_rows(cpus: int) -> tuple[tuple[float, tuple[tuple[tuple[str, str], float], ...], str], ...]:
    """For each CPU its weight, its share by (cpu, mode), and its label."""
    # Data loaders keep to the first CPUs: the weights fall from 1.5 to 0.5 and are 1 in the mean.
    return tuple(
        (
            1.0 if cpus == 1 else 1.5 - cpu / (cpus - 1),
            tuple(((str(cpu), mode), share) for mode, share in _MODES.items()),
            str(cpu),
        )
        for cpu in range(cpus)
    )


def _cpu_seconds(machine: Machine, uptime: float, busy: float) -> dict[tuple[str, ...], float]:
    base = 0.015 * uptime + busy * _busy_cores(machine) / machine.cpus
    seconds: dict[tuple[str, ...], float] = {}
    for weight, shares, label in _cpu_rows(machine.cpus):
        worked = base * weight
        for key, share in shares:
            seconds[key] = round(worked * share, 2)
        seconds[label, "idle"] = round(max(0.0, uptime - worked), 2)
        seconds[label, "steal"] = 0.0
    return seconds


def _memory(machine: Machine, at: float, held_gpus: int) -> dict[str, float]:
    total = machine.memory_bytes
    used = total * (0.05 + 0.4 * held_gpus / max(1, machine.gpus))
    cached = (total - used) * (0.45 + 0.1 * sin(2 * pi * at / 14_400))
    page = 4096.0
    rows = {
        "MemTotal_bytes": total,
        "MemFree_bytes": total - used - cached,
        "MemAvailable_bytes": total - used,
        "Buffers_bytes": 0.02 * cached,
        "Cached_bytes": 0.98 * cached,
        "SwapTotal_bytes": 0.0,
        "SwapFree_bytes": 0.0,
        "Shmem_bytes": 0.03 * used,
        "Slab_bytes": 0.01 * total,
    }
    return {name: value // page * page for name, value in rows.items()}


def _filesystems(machine: Machine, at: float) -> tuple[Filesystem, ...]:
    day = at % 86_400 / 86_400  # scratch fills over the day and is cleaned at midnight
    return (
        _filesystem("/dev/nvme0n1p2", "/", "ext4", 440 * GIB, 0.31),
        _filesystem("/dev/md0", "/scratch", "xfs", 27_900 * GIB, 0.42 + 0.3 * day),
    )


def _filesystem(device: str, mountpoint: str, fstype: str, size: float, full: float) -> Filesystem:
    free = size * (1 - full) // 4096 * 4096
    files = size // 16_384
    return Filesystem(
        device=device,
        mountpoint=mountpoint,
        fstype=fstype,
        size_bytes=size,
        free_bytes=free,
        available_bytes=max(0.0, free - (0.05 * size // 4096 * 4096 if fstype == "ext4" else 0.0)),
        files=files,
        files_free=files * (1 - 0.3 * full) // 1,
        read_only=False,
    )


def _disks(uptime: float, busy: float) -> dict[str, dict[str, float]]:
    return {
        "nvme0n1": _disk(uptime * 40e3, uptime * 160e3),
        "nvme1n1": _disk(uptime * 5e3 + busy * 310e6, uptime * 20e3 + busy * 24e6),
    }


def _disk(read: float, written: float) -> dict[str, float]:
    reads, writes = read // 131_072, written // 65_536
    return {
        "reads_completed_total": reads,
        "read_bytes_total": read // 512 * 512,
        "read_time_seconds_total": round(reads * 90e-6, 3),
        "writes_completed_total": writes,
        "written_bytes_total": written // 512 * 512,
        "write_time_seconds_total": round(writes * 25e-6, 3),
        "io_now": 0.0,
        "io_time_seconds_total": round(reads * 30e-6 + writes * 8e-6, 3),
        "io_time_weighted_seconds_total": round(reads * 90e-6 + writes * 25e-6, 3),
    }


def _networks(uptime: float, busy: float) -> dict[str, dict[str, float]]:
    return {
        "eth0": _network(uptime * 90e3 + busy * 2.1e6, uptime * 60e3 + busy * 0.9e6),
        "ib0": _network(uptime * 2e3 + busy * 1.4e9, uptime * 2e3 + busy * 1.4e9),
    }


def _network(received: float, sent: float) -> dict[str, float]:
    return _QUIET_NETWORK | {
        "receive_bytes_total": received // 1,
        "receive_packets_total": received // 3_100,
        "transmit_bytes_total": sent // 1,
        "transmit_packets_total": sent // 2_900,
    }
