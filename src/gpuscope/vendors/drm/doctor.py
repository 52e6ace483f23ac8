"""Checks of GPUs whose driver is part of the kernel, AMD's and Intel's: driver, device files, rights, sensors.

The agent reads files of sysfs and opens no device file: missing files of `/dev/dri` and missing groups hinder
programs, not the agent.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import ABSENT, Device
from gpuscope.vendors.drm.pci_gpus import AMD, DEVICES, INTEL, gpu_addresses

PASSTHROUGH: Final = "vfio-pci"
ASLEEP: Final = ("suspended", "suspending")


class DriverOfVendor(NamedTuple):
    title: str
    vendor: str
    pci_id: str
    drivers: tuple[str, ...]
    device_files: tuple[str, ...]
    """Below `/dev`, as patterns; programs open them."""


DRIVERS: Final = (
    DriverOfVendor("AMD", "amd", AMD, ("amdgpu",), ("kfd", "dri/renderD*")),
    DriverOfVendor("Intel", "intel", INTEL, ("xe", "i915"), ("dri/renderD*",)),
)


def bound_driver(context: DoctorContext) -> Iterator[CheckResult]:
    for row in DRIVERS:
        drivers = _drivers(context, row)
        for address, driver in drivers.items():
            if driver == PASSTHROUGH:
                yield CheckResult(Verdict.NOTE, f"the {row.title} GPU {address} is given to a virtual machine")
            elif not driver:
                fix = (
                    f"sudo modprobe {row.drivers[0]}; if it stays so, dmesg says why: firmware or an old kernel"
                )
                yield CheckResult(_if_wanted(context, row), f"the {row.title} GPU {address} has no driver", fix)
            elif driver not in row.drivers:
                fix = f"numbers are read from the driver {' or '.join(row.drivers)}"
                yield CheckResult(
                    Verdict.NOTE,
                    f"the {row.title} GPU {address} has the driver {driver}, which is not read",
                    fix,
                )
        bound = sum(driver in row.drivers for driver in drivers.values())
        if bound:
            yield CheckResult(Verdict.GOOD, f"{row.title}: GPUs with a driver: {bound}")


def program_access(context: DoctorContext) -> Iterator[CheckResult]:
    for row in DRIVERS:
        if not any(driver in row.drivers for driver in _drivers(context, row).values()):
            continue
        for pattern in row.device_files:
            files = sorted((context.root / "dev").glob(pattern))
            closed = [path for path in files if not os.access(path, os.R_OK | os.W_OK)]
            if not files:
                fix = _device_line(context, pattern.partition("/")[0])
                what = f"there is no /dev/{pattern} here: programs cannot use {row.title}'s GPUs; the agent can"
                yield CheckResult(Verdict.NOTE, what, fix)
            elif closed:
                names = ", ".join(f"/dev/{path.relative_to(context.root / 'dev')}" for path in closed)
                what = f"programs of this user may not open {names}; the agent needs none of them"
                yield CheckResult(
                    Verdict.NOTE, what, f"sudo usermod -aG {group_of(closed[0])} $USER, then log in again"
                )


def hidden_clients(context: DoctorContext) -> Iterator[CheckResult]:
    hidden = [device for device in _devices(context) if not device.processes_known and not device.lost]
    if hidden:
        names = ", ".join(str(device.index) for device in hidden)
        what = (
            f"GPU {names}: processes of other users cannot be looked at; on Intel's GPUs utilisation needs them"
        )
        fix = "run the agent as root or with CAP_SYS_PTRACE; in a container: --pid=host --cap-add SYS_PTRACE"
        yield CheckResult(Verdict.BAD, what, fix)


def missing_sensors(context: DoctorContext) -> Iterator[CheckResult]:
    """A processor's GPU has none, and a sleeping card is not read."""
    for device in _devices(context):
        known = (device.energy_joules, device.power_watts)
        folder = context.root / "sys" / DEVICES / str(device.pci_bus_id)
        if device.lost or any(number is not ABSENT for number in known) or not (folder / "hwmon").exists():
            continue
        if _read(folder / "power/runtime_status") in ASLEEP:
            yield CheckResult(
                Verdict.NOTE, f"GPU {device.index} sleeps: it is not read, so that it is not woken"
            )
            continue
        kernel = _read(context.root / "proc/sys/kernel/osrelease") or "this kernel"
        fix = "a newer kernel; the guide of this vendor has the first version for each number"
        yield CheckResult(Verdict.NOTE, f"GPU {device.index}: {kernel} shows no power of this card", fix)


def _if_wanted(context: DoctorContext, row: DriverOfVendor) -> Verdict:
    """A processor's GPU without a driver is no problem beside the GPUs of another vendor."""
    others = any(device.vendor != row.vendor for device in context.snapshot.devices)
    return Verdict.NOTE if others else Verdict.BAD


def _drivers(context: DoctorContext, row: DriverOfVendor) -> dict[str, str]:
    """By PCI address; empty where there is none."""
    sysfs = context.root / "sys"
    drivers = {}
    for address in gpu_addresses(str(sysfs), row.pci_id):
        link = sysfs / DEVICES / address / "driver"
        drivers[address] = link.readlink().name if link.is_symlink() else ""
    return drivers


def _devices(context: DoctorContext) -> list[Device]:
    names = {row.vendor for row in DRIVERS}
    return [device for device in context.snapshot.devices if device.vendor in names]


def _device_line(context: DoctorContext, name: str) -> str:
    if "KUBERNETES_SERVICE_HOST" in context.environment:
        return (
            "request the GPU of the vendor's device plugin: amd.com/gpu, gpu.intel.com/xe or gpu.intel.com/i915"
        )
    if any((context.root / mark).exists() for mark in (".dockerenv", "run/.containerenv")):
        return f"docker run --device /dev/{name}"
    return "dmesg says whether the driver started"


def group_of(path: Path) -> str:
    import grp

    try:
        return grp.getgrgid(path.stat().st_gid).gr_name
    except (OSError, KeyError):
        return "render"


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


CHECKS = (bound_driver, program_access, hidden_clients, missing_sensors)
REAL_GPU_CHECKS = CHECKS
