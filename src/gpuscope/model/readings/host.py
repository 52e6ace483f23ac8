"""The machine's CPU, memory, filesystems, disks and network, with node_exporter's names and units.

Counters are the kernel's, since boot. A filesystem that does not answer or cannot be read is in
`filesystem_errors` and has no size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings.absent import ABSENT, Maybe
from gpuscope.model.readings.device import NO_VALUES

# InfiniBand and RoCE adapters, and the PCIe links of adapters and GPUs, as sysfs has them.
#
# Counters have the kernel's names and raw values: `port_rcv_data` counts units of 4 bytes. Many of them are
# 4, 8 or 16 bits wide and stop at their maximum: see `MAXIMA`. A port that is down reports a rate too, which
# means nothing.

ACTIVE_STATE: Final = 4
"""Of `InfinibandPort.state`: the port carries traffic. 1 is down, 2 and 3 wait for the subnet manager."""

MAXIMA: Final[Mapping[str, int]] = {
    name: (1 << bits) - 1
    for bits, names in (
        (4, "local_link_integrity_errors excessive_buffer_overrun_errors"),
        (
            8,
            "link_error_recovery link_downed port_xmit_constraint_errors port_rcv_constraint_errors",
        ),
        (
            16,
            "symbol_error port_rcv_errors port_rcv_remote_physical_errors port_rcv_switch_relay_errors "
            "port_xmit_discards VL15_dropped",
        ),
        (32, "port_xmit_wait"),
    )
    for name in names.split()
}
"""Where a counter of InfiniBand's PortCounters stops, by the kernel's name: then it counts nothing any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PciFunction:
    """Where an adapter or a GPU is plugged in, and what its PCIe link says."""

    address: str  # "0000:8d:00.0"
    bridges: tuple[str, ...] = ()  # addresses of the bridges above it, from the root down
    numa_node: Maybe[int] = ABSENT
    link_generation: Maybe[int] = ABSENT
    link_generation_max: Maybe[int] = ABSENT  # of this device in this slot
    link_width: Maybe[int] = ABSENT
    link_width_max: Maybe[int] = ABSENT
    # By (reporter, severity): device or upstream_port; correctable, nonfatal or fatal. An error of a link may
    # be counted at either end.
    aer_errors: Mapping[tuple[str, str], int] = NO_VALUES


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandPort:
    port: str  # "1"
    link_layer: Maybe[str] = ABSENT  # InfiniBand or Ethernet
    interface: Maybe[str] = ABSENT  # the network interface of the port
    state: Maybe[int] = ABSENT
    physical_state: Maybe[int] = ABSENT
    rate_bytes_per_second: Maybe[float] = ABSENT
    counters: Mapping[str, int] = NO_VALUES
    legacy_counters: Mapping[str, int] = NO_VALUES  # `counters_ext`, before Linux 4.5
    hw_counters: Mapping[str, int] = NO_VALUES
    link_downs: int = 0  # since the source was opened, counted by the kernel or seen by the source

    @property
    def saturated(self) -> tuple[str, ...]:
        """The counters that are at their maximum."""
        return tuple(name for name, value in self.counters.items() if value >= MAXIMA.get(name, 1 << 64))


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandDevice:
    name: str  # "mlx5_0"
    board_id: str = ""
    firmware_version: str = ""
    hca_type: str = ""
    node_guid: str = ""
    pci: Maybe[PciFunction] = ABSENT
    ports: tuple[InfinibandPort, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class InfinibandReading:
    devices: tuple[InfinibandDevice, ...] = ()
    gpu_slots: tuple[PciFunction, ...] = ()  # display and accelerator functions of the PCI bus


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
