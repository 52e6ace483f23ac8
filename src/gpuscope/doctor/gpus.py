"""Are all the GPUs of this machine here, whole, and set up as one would expect?"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.doctor import Finding, Scene, Verdict
from gpuscope.readings import ABSENT


def how_many_are_visible(scene: Scene) -> Iterator[Finding]:
    seen = [device for device in scene.snapshot.devices if not device.lost]
    lost = [device for device in scene.snapshot.devices if device.lost]
    expected = scene.snapshot.expected_gpus
    for device in lost:
        fix = "nvidia-smi --gpu-reset -i N while it is idle, else reboot; then look for XID 79 in dmesg"
        yield Finding(Verdict.BAD, f"GPU {device.index} ({device.uuid}) is lost", fix)
    if expected is ABSENT:
        yield Finding(Verdict.NOTE, f"{len(seen)} GPUs visible; the PCI bus cannot be read to compare")
    elif len(seen) < expected:
        fix = "map all devices into the container (--gpus all), or check `lspci -d 10de:` and dmesg"
        visible = scene.environment.get("NVIDIA_VISIBLE_DEVICES")
        why = f" (NVIDIA_VISIBLE_DEVICES={visible})" if visible else ""
        yield Finding(Verdict.BAD, f"{len(seen)} of {expected} GPUs visible{why}", fix)
    elif seen:
        yield Finding(Verdict.GOOD, f"{len(seen)} of {max(expected, len(seen))} GPUs visible")
    else:
        fix = "gpuscope up --demo shows a simulated fleet; lspci -d 10de: lists what the bus has"
        yield Finding(Verdict.BAD, "this machine has no NVIDIA GPU on its PCI bus", fix)


def mig(scene: Scene) -> Iterator[Finding]:
    for device in scene.snapshot.devices:
        if device.mig_enabled is ABSENT or not device.mig_enabled:
            continue
        if device.instances:
            yield Finding(
                Verdict.GOOD, f"GPU {device.index}: MIG with {len(device.instances)} instances visible"
            )
        else:
            fix = "create some (nvidia-smi mig -cgi … -C), or give access to /proc/driver/nvidia/capabilities"
            yield Finding(Verdict.BAD, f"GPU {device.index}: MIG is on but no instance is visible", fix)
        if device.mig_pending is not ABSENT and device.mig_pending != device.mig_enabled:
            fix = f"nvidia-smi --gpu-reset -i {device.index}"
            yield Finding(Verdict.NOTE, f"GPU {device.index}: MIG mode changes at the next reset", fix)


def modes(scene: Scene) -> Iterator[Finding]:
    off = [str(d.index) for d in scene.snapshot.devices if d.persistence_mode == 0]
    if off:
        fix = "sudo systemctl enable --now nvidia-persistenced"
        what = f"persistence mode is off on GPU {', '.join(off)}: the first read after idling takes seconds"
        yield Finding(Verdict.NOTE, what, fix)


def health(scene: Scene) -> Iterator[Finding]:
    for device in scene.snapshot.devices:
        if device.row_remap_failed == 1:
            yield Finding(
                Verdict.BAD, f"GPU {device.index}: row remapping failed", "have the board replaced (RMA)"
            )
        if device.row_remap_pending == 1 or device.retired_pages_pending == 1:
            fix = f"drain it, then nvidia-smi --gpu-reset -i {device.index}"
            yield Finding(Verdict.BAD, f"GPU {device.index}: memory repair waits for a reset", fix)
        width, most = device.pcie_link_width, device.pcie_link_width_max
        if width is not ABSENT and most is not ABSENT and width < most:
            fix = "reseat the board or riser; compare `nvidia-smi -q -d PCIE` with the slot"
            yield Finding(Verdict.NOTE, f"GPU {device.index}: PCIe runs x{width:.0f} of x{most:.0f}", fix)


def profiling(scene: Scene) -> Iterator[Finding]:
    devices = [device for device in scene.snapshot.devices if not device.lost]
    without = [str(device.index) for device in devices if device.sm_active_ratio is ABSENT]
    if devices and not without:
        yield Finding(Verdict.GOOD, "profiling numbers (SM, tensor, DRAM activity) on every GPU")
    elif without:
        fix = "install DCGM and start nv-hostengine as root; GeForce has no profiling numbers"
        what = f"no profiling numbers on GPU {', '.join(without)}: before Hopper they need DCGM"
        yield Finding(Verdict.NOTE, what, fix)


CHECKS = (how_many_are_visible, mig, modes, health, profiling)
