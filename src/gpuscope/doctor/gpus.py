"""Whether all GPUs of this machine are visible, healthy and set up: MIG, findings of `health/`, profiling."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.doctor import Diagnosis, Scene, Verdict
from gpuscope.health.check import Severity
from gpuscope.health.facts import sort_samples
from gpuscope.health.finding import worst_first
from gpuscope.health.findings import USE_KINDS, judge
from gpuscope.readings import ABSENT
from gpuscope.server.live_samples import snapshot_samples


def how_many_are_visible(scene: Scene) -> Iterator[Diagnosis]:
    seen = [device for device in scene.snapshot.devices if not device.lost]
    expected = scene.snapshot.expected_gpus
    if expected is ABSENT:
        yield Diagnosis(Verdict.NOTE, f"{len(seen)} GPUs visible; the PCI bus cannot be read to compare")
    elif len(seen) < expected:
        fix = "map all devices into the container (--gpus all), or check `lspci -d 10de:` and dmesg"
        visible = scene.environment.get("NVIDIA_VISIBLE_DEVICES")
        why = f" (NVIDIA_VISIBLE_DEVICES={visible})" if visible else ""
        yield Diagnosis(Verdict.BAD, f"{len(seen)} of {expected} GPUs visible{why}", fix)
    elif seen:
        yield Diagnosis(Verdict.GOOD, f"{len(seen)} of {max(expected, len(seen))} GPUs visible")
    else:
        fix = "gpuscope up --demo shows a simulated fleet; lspci -d 10de: lists what the bus has"
        yield Diagnosis(Verdict.BAD, "this machine has no NVIDIA GPU on its PCI bus", fix)


def mig(scene: Scene) -> Iterator[Diagnosis]:
    for device in scene.snapshot.devices:
        if device.mig_enabled is ABSENT or not device.mig_enabled:
            continue
        if device.instances:
            yield Diagnosis(
                Verdict.GOOD, f"GPU {device.index}: MIG with {len(device.instances)} instances visible"
            )
        else:
            fix = "create some (nvidia-smi mig -cgi … -C), or give access to /proc/driver/nvidia/capabilities"
            yield Diagnosis(Verdict.BAD, f"GPU {device.index}: MIG is on but no instance is visible", fix)
        if device.mig_pending is not ABSENT and device.mig_pending != device.mig_enabled:
            fix = f"nvidia-smi --gpu-reset -i {device.index}"
            yield Diagnosis(Verdict.NOTE, f"GPU {device.index}: MIG mode changes at the next reset", fix)


def health(scene: Scene) -> Iterator[Diagnosis]:
    """The findings of the page about this machine's GPUs, without those about their use."""
    snapshot = scene.snapshot
    fleet = sort_samples(snapshot_samples(snapshot), snapshot.taken_at)
    for finding in sorted(judge(fleet).findings, key=worst_first):
        if finding.uuids and finding.kind not in USE_KINDS:
            verdict = Verdict.NOTE if finding.severity is Severity.INFO else Verdict.BAD
            yield Diagnosis(verdict, finding.why, finding.next)


def profiling(scene: Scene) -> Iterator[Diagnosis]:
    devices = [device for device in scene.snapshot.devices if not device.lost]
    without = [str(device.index) for device in devices if device.sm_active_ratio is ABSENT]
    if devices and not without:
        yield Diagnosis(Verdict.GOOD, "profiling numbers (SM, tensor, DRAM activity) on every GPU")
    elif without:
        fix = "install DCGM and start nv-hostengine as root; GeForce has no profiling numbers"
        what = f"no profiling numbers on GPU {', '.join(without)}: before Hopper they need DCGM"
        yield Diagnosis(Verdict.NOTE, what, fix)


CHECKS = (how_many_are_visible, mig, health, profiling)
