"""Whether all GPUs of this machine are visible and healthy."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.judge.checks.check import Severity, Subject
from gpuscope.judge.checks.checks import CHECKS as HEALTH_CHECKS
from gpuscope.judge.checks.facts import sort_samples
from gpuscope.judge.checks.finding import worst_first
from gpuscope.judge.checks.finding_texts import join_indices
from gpuscope.judge.checks.findings import FindingMaker
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.model.vendor import Vendor, vendors
from gpuscope.serve.doctor.slurm_access import reads_slurm
from gpuscope.serve.live.collector_samples import snapshot_samples
from gpuscope.serve.live.sample_judge import SampleJudge


def visible_gpus(context: DoctorContext) -> Iterator[CheckResult]:
    snapshot = context.snapshot
    seen = [device for device in snapshot.devices if not device.lost]
    listed = [driver.gpu_count for driver in snapshot.drivers.values() if driver.gpu_count is not ABSENT]
    counts = [sum(listed)] if listed else []
    if snapshot.expected_gpus is not ABSENT:
        counts.append(snapshot.expected_gpus)
    expected = max(len(snapshot.devices), *counts) if counts else len(snapshot.devices)
    if silent := _silent_gpus(snapshot):
        fix = "look for its last XID in dmesg; drain the node, then reset the GPU or power-cycle the node"
        what = f"{len(seen)} of {expected} GPUs answer; no answer from GPU {join_indices(silent)}"
        yield CheckResult(Verdict.BAD, what, fix)
    elif len(seen) < expected:
        commands = ", ".join(f"`lspci -d {vendor.bus_number}:`" for vendor in _vendors_of(snapshot))
        fix = f"map all devices into the container (--gpus all), or check {commands} and dmesg"
        given = {name: context.environment.get(name) for name in visible_variables(snapshot)}
        why = "".join(f" ({name}={devices})" for name, devices in given.items() if devices)
        yield CheckResult(Verdict.BAD, f"{len(seen)} of {expected} GPUs visible{why}", fix)
    elif snapshot.expected_gpus is ABSENT:
        yield CheckResult(Verdict.NOTE, f"{len(seen)} GPUs visible; the PCI bus cannot be read for comparison")
    elif seen:
        yield CheckResult(Verdict.GOOD, f"{len(seen)} of {expected} GPUs visible")
    else:
        rows = list(vendors().values())
        commands = ", ".join(f"lspci -d {vendor.bus_number}: lists {vendor.title} devices" for vendor in rows)
        titles = ", ".join(vendor.title for vendor in rows)
        what = f"this machine has no GPU of a known vendor ({titles}) on its PCI bus"
        fix = f"{commands}; gpuscope up --demo shows a simulated fleet"
        yield CheckResult(_unless_slurm(context), what, fix)


def visible_variables(snapshot: Snapshot) -> list[str]:
    """The environment variables that say which GPUs a container has."""
    return [vendor.visible_variable for vendor in _vendors_of(snapshot) if vendor.visible_variable]


def _vendors_of(snapshot: Snapshot) -> list[Vendor]:
    """Of this machine's GPUs; all vendors if none of them is visible."""
    names = {*snapshot.drivers, *(device.vendor for device in snapshot.devices)}
    here = [vendor for name, vendor in vendors().items() if name in names]
    return here or list(vendors().values())


def _silent_gpus(snapshot: Snapshot) -> list[str]:
    """Lost GPUs, also one that was lost before this program started: then only its index is known."""
    lost = {device.index for device in snapshot.devices if device.lost}
    for vendor, driver in snapshot.drivers.items():
        known = {device.index for device in snapshot.devices if device.vendor == vendor}
        if driver.gpu_count is not ABSENT and driver.gpu_count > len(known):
            lost |= set(range(driver.gpu_count)) - known
    return [str(index) for index in sorted(lost)]


def _unless_slurm(context: DoctorContext) -> Verdict:
    """The controller of a Slurm cluster needs no GPU."""
    return Verdict.NOTE if reads_slurm(context) else Verdict.BAD


def health(context: DoctorContext) -> Iterator[CheckResult]:
    """The findings of the page about this machine's GPUs, without those about their use."""
    snapshot = context.snapshot
    samples, now = list(snapshot_samples(snapshot)), snapshot.taken_at
    judge = SampleJudge()
    judge.add(samples, now)
    nodes = sort_samples(samples, now).nodes
    for finding in sorted(FindingMaker(nodes, others=judge.others).make(judge.open_now()), key=worst_first):
        if finding.uuids and HEALTH_CHECKS[finding.kind].subject is Subject.GPU:
            verdict = Verdict.NOTE if finding.severity is Severity.INFO else Verdict.BAD
            yield CheckResult(verdict, finding.why, finding.next)


CHECKS = (visible_gpus, health)
