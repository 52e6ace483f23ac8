"""Checks of the GPUs: number, MIG, modes, memory repair, PCIe and profiling."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.doctor import CheckResult, DoctorContext, Verdict
from gpuscope.readings import ABSENT


def visible_gpus(context: DoctorContext) -> Iterator[CheckResult]:
    seen = [device for device in context.snapshot.devices if not device.lost]
    lost = [device for device in context.snapshot.devices if device.lost]
    expected = context.snapshot.expected_gpus
    for device in lost:
        fix = "nvidia-smi --gpu-reset -i N while it is idle, else reboot; then look for XID 79 in dmesg"
        yield CheckResult(Verdict.BAD, f"GPU {device.index} ({device.uuid}) is lost", fix)
    if expected is ABSENT:
        yield CheckResult(Verdict.NOTE, f"{len(seen)} GPUs visible; the PCI bus cannot be read for comparison")
    elif len(seen) < expected:
        fix = "map all devices into the container (--gpus all), or check `lspci -d 10de:` and dmesg"
        visible = context.environment.get("NVIDIA_VISIBLE_DEVICES")
        why = f" (NVIDIA_VISIBLE_DEVICES={visible})" if visible else ""
        yield CheckResult(Verdict.BAD, f"{len(seen)} of {expected} GPUs visible{why}", fix)
    elif seen:
        yield CheckResult(Verdict.GOOD, f"{len(seen)} of {max(expected, len(seen))} GPUs visible")
    else:
        fix = "lspci -d 10de: lists NVIDIA devices; gpuscope up --demo shows a simulated fleet"
        yield CheckResult(Verdict.BAD, "this machine has no NVIDIA GPU on its PCI bus", fix)


def mig(context: DoctorContext) -> Iterator[CheckResult]:
    for device in context.snapshot.devices:
        if device.mig_enabled is ABSENT or not device.mig_enabled:
            continue
        if device.instances:
            yield CheckResult(
                Verdict.GOOD, f"GPU {device.index}: MIG with {len(device.instances)} instances visible"
            )
        else:
            fix = "create instances (nvidia-smi mig -cgi … -C), or allow /proc/driver/nvidia/capabilities"
            yield CheckResult(
                Verdict.BAD, f"GPU {device.index}: MIG is enabled but no instance is visible", fix
            )
        if device.mig_pending is not ABSENT and device.mig_pending != device.mig_enabled:
            fix = f"nvidia-smi --gpu-reset -i {device.index}"
            yield CheckResult(Verdict.NOTE, f"GPU {device.index}: MIG mode changes at the next reset", fix)


def modes(context: DoctorContext) -> Iterator[CheckResult]:
    off = [str(d.index) for d in context.snapshot.devices if d.persistence_mode == 0]
    if off:
        fix = "sudo systemctl enable --now nvidia-persistenced"
        what = f"persistence mode is off on GPU {', '.join(off)}: the first read of an idle GPU takes seconds"
        yield CheckResult(Verdict.NOTE, what, fix)


def health(context: DoctorContext) -> Iterator[CheckResult]:
    for device in context.snapshot.devices:
        if device.row_remap_failed == 1:
            yield CheckResult(
                Verdict.BAD, f"GPU {device.index}: row remapping failed", "have the board replaced (RMA)"
            )
        if device.row_remap_pending == 1 or device.retired_pages_pending == 1:
            fix = f"drain it, then nvidia-smi --gpu-reset -i {device.index}"
            yield CheckResult(Verdict.BAD, f"GPU {device.index}: a memory repair needs a reset", fix)
        width, most = device.pcie_link_width, device.pcie_link_width_max
        if width is not ABSENT and most is not ABSENT and width < most:
            fix = "reseat the board or riser; compare `nvidia-smi -q -d PCIE` with the slot"
            yield CheckResult(
                Verdict.NOTE, f"GPU {device.index}: PCIe uses x{width:.0f} of x{most:.0f} lanes", fix
            )


def profiling(context: DoctorContext) -> Iterator[CheckResult]:
    devices = [device for device in context.snapshot.devices if not device.lost]
    without = [str(device.index) for device in devices if device.sm_active_ratio is ABSENT]
    if devices and not without:
        yield CheckResult(Verdict.GOOD, "profiling numbers (SM, tensor, DRAM activity) on every GPU")
    elif without:
        fix = "install DCGM and start nv-hostengine as root; GeForce GPUs have no profiling numbers"
        what = f"no profiling numbers on GPU {', '.join(without)}: GPUs before Hopper need DCGM for them"
        yield CheckResult(Verdict.NOTE, what, fix)


CHECKS = (visible_gpus, mig, modes, health, profiling)
