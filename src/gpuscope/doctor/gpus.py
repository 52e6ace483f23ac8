"""Whether all GPUs of this machine are visible, healthy and set up: MIG, findings of `health/`, profiling."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.doctor import CheckResult, DoctorContext, Verdict
from gpuscope.doctor.slurm_access import reads_slurm
from gpuscope.health.check import Severity
from gpuscope.health.facts import sort_samples
from gpuscope.health.finding import worst_first
from gpuscope.health.findings import USE_KINDS, judge
from gpuscope.readings import ABSENT
from gpuscope.server.live.collector_samples import snapshot_samples


def visible_gpus(context: DoctorContext) -> Iterator[CheckResult]:
    seen = [device for device in context.snapshot.devices if not device.lost]
    expected = context.snapshot.expected_gpus
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
        yield CheckResult(_unless_slurm(context), "this machine has no NVIDIA GPU on its PCI bus", fix)


def _unless_slurm(context: DoctorContext) -> Verdict:
    """The controller of a Slurm cluster needs no GPU."""
    return Verdict.NOTE if reads_slurm(context) else Verdict.BAD


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


def health(context: DoctorContext) -> Iterator[CheckResult]:
    """The findings of the page about this machine's GPUs, without those about their use."""
    snapshot = context.snapshot
    fleet = sort_samples(snapshot_samples(snapshot), snapshot.taken_at)
    for finding in sorted(judge(fleet).findings, key=worst_first):
        if finding.uuids and finding.kind not in USE_KINDS:
            verdict = Verdict.NOTE if finding.severity is Severity.INFO else Verdict.BAD
            yield CheckResult(verdict, finding.why, finding.next)


def profiling(context: DoctorContext) -> Iterator[CheckResult]:
    devices = [device for device in context.snapshot.devices if not device.lost]
    without = [str(device.index) for device in devices if device.sm_active_ratio is ABSENT]
    if devices and not without:
        yield CheckResult(Verdict.GOOD, "profiling numbers (SM, tensor, DRAM activity) on every GPU")
    elif without:
        fix = "install DCGM and start nv-hostengine as root; GeForce GPUs have no profiling numbers"
        what = f"no profiling numbers on GPU {', '.join(without)}: GPUs before Hopper need DCGM for them"
        yield CheckResult(Verdict.NOTE, what, fix)


CHECKS = (visible_gpus, mig, health, profiling)
