"""The pod, container and Slurm job of a process, read from its `/proc/PID/cgroup`.

Works for any runtime, cgroup version and driver, any nesting and any prefix. The kernel writes the path
relative to the reader's cgroup namespace, so it may begin with `/../..`, and for a process in the agent's own
pod the part that names the pod is missing. A path may contain colons: only the first two of a line separate
columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe

_UUID = r"[0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}"
# A static pod's UID is a hash without dashes. `libpod-<id>` must not match: `pod` begins or follows a `-`.
_POD = re.compile(rf"(?:^|-)pod(?P<uid>{_UUID}|[0-9a-f]{{32}})\Z")
_CONTAINER = re.compile(r"(?:(?P<prefix>.+)-)?(?P<id>[0-9a-f]{64})\Z")
# Some runtimes name containers by UUID, but desktops name terminal scopes so too: used only inside a pod.
_UUID_CONTAINER = re.compile(rf"(?:(?P<prefix>.+)-)?(?P<id>{_UUID.replace('[-_]', '-')})\Z")
# AWS Fargate: /ecs/<task>/<task>-<number>; the whole last part is the container's id.
_FARGATE_TASK = re.compile(rf"(?:[0-9a-f]{{32}}|{_UUID.replace('[-_]', '-')})\Z")
_FARGATE_NUMBER = re.compile(r"-\d{1,20}\Z", re.ASCII)
_QOS = re.compile(r"(?:^|-)(burstable|besteffort)(?:-|\Z)")
_JOB = re.compile(r"job_(\d{1,10})\Z", re.ASCII)
_STEP = re.compile(r"step_(\w{1,20})\Z", re.ASCII)
_SLUID = re.compile(r"s[0-9A-Z]{13}\Z", re.ASCII)

RUNTIMES: Final = {
    "cri-containerd": "containerd",
    "containerd": "containerd",
    "nerdctl": "containerd",
    "crio": "cri-o",
    "cri-o": "cri-o",
    "docker": "docker",
    "libpod": "podman",
    "libpod-payload": "podman",
}
MAX_TEXT: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupFacts:
    """What a cgroup path has. `job` is Slurm's job id; from Slurm 26.05 on it may have only the `sluid`."""

    pod_uid: Maybe[str] = ABSENT
    container_id: Maybe[str] = ABSENT
    runtime: Maybe[str] = ABSENT
    qos: Maybe[str] = ABSENT
    job: Maybe[str] = ABSENT
    job_step: Maybe[str] = ABSENT
    sluid: Maybe[str] = ABSENT
    relative: bool = False  # seen from a private cgroup namespace


NO_CGROUP: Final = CgroupFacts()


def parse_cgroup(text: str) -> CgroupFacts:
    """From all lines together: with cgroup v1 and hybrid mode there is a line for each controller."""
    container, job, relative = NO_CGROUP, NO_CGROUP, False
    best = 0
    for line in text[:MAX_TEXT].split("\n"):
        columns = line.split(":", 2)
        if len(columns) < 3 or columns[2] == "/":
            continue
        path = columns[2]
        relative = relative or path.startswith("/..")
        segments = [segment for segment in path.split("/") if segment not in ("", "..", ".")]
        found = _container_facts(segments)
        score = 2 * (found.pod_uid is not ABSENT) + (found.container_id is not ABSENT)
        if score > best:
            best, container = score, found
        if job.job is ABSENT:
            candidate = _slurm_facts(segments)
            job = candidate if candidate.job is not ABSENT or job.sluid is ABSENT else job
    if best == 0 and job is NO_CGROUP and not relative:
        return NO_CGROUP
    return replace(container, job=job.job, job_step=job.job_step, sluid=job.sluid, relative=relative)


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a path between slashes or colons, without systemd's suffix."""

    name: str
    unit: str  # ".scope", ".slice" or ""
    runtime: str  # the part before it in the same segment: `…slice:cri-containerd:<id>`
    parent: str = ""  # the segment above: `/docker/<id>`


def _parts(segments: Sequence[str]) -> list[_Part]:
    parts = []
    parent = ""
    for segment in segments:
        before = ""
        for piece in segment.split(":"):
            for unit in (".scope", ".slice", ""):
                if piece.endswith(unit):
                    parts.append(_Part(piece.removesuffix(unit), unit, before, parent))
                    break
            before = piece
        parent = segment
    return parts


def _container_facts(segments: Sequence[str]) -> CgroupFacts:
    parts = _parts(segments)
    pod_at, uid = -1, ""
    for number, part in enumerate(parts):
        match = _POD.search(part.name)
        if match:  # the last one: a cluster may run inside a pod of another cluster
            pod_at, uid = number, match["uid"].replace("_", "-")
    if pod_at < 0:
        # Without a pod the process is in the innermost container.
        innermost = next((p for p in reversed(parts) if _container_id(p, in_pod=False)), None)
        return _fargate_facts(segments) if innermost is None else _in_container(innermost)
    above = parts[: pod_at + 1]
    pod = CgroupFacts(pod_uid=uid, qos=_qos(above))
    for part in parts[pod_at + 1 :]:
        if not _container_id(part, in_pod=True):
            continue
        # CRI-O keeps a pod's sandbox beside its containers, without the suffix they have under systemd.
        sandbox = above[-1].unit == ".slice" and not part.unit and part.name.startswith("crio-")
        if sandbox:
            continue
        inside = _in_container(part)
        return replace(pod, container_id=inside.container_id, runtime=inside.runtime)
    return pod


def _container_id(part: _Part, in_pod: bool) -> str:
    match = _CONTAINER.match(part.name)
    if match is None and in_pod:
        match = _UUID_CONTAINER.match(part.name)
    return match["id"] if match else ""


def _in_container(part: _Part) -> CgroupFacts:
    match = _CONTAINER.match(part.name) or _UUID_CONTAINER.match(part.name)
    if match is None:
        return NO_CGROUP
    prefix = match["prefix"] or part.runtime
    if prefix.endswith("conmon"):  # podman's and CRI-O's supervisor, not the workload
        return NO_CGROUP
    return CgroupFacts(container_id=match["id"], runtime=RUNTIMES.get(prefix or part.parent, ABSENT))


def _fargate_facts(segments: Sequence[str]) -> CgroupFacts:
    for group, task, container in zip(segments, segments[1:], segments[2:], strict=False):
        number = container.removeprefix(task)
        if group == "ecs" and _FARGATE_TASK.match(task) and _FARGATE_NUMBER.match(number):
            return CgroupFacts(container_id=container)
    return NO_CGROUP


def _qos(above: Sequence[_Part]) -> Maybe[str]:
    named = [match[1] for part in above if (match := _QOS.search(part.name))]
    if named:
        return named[-1]
    return "guaranteed" if any("kubepods" in part.name for part in above) else ABSENT


def _slurm_facts(segments: Sequence[str]) -> CgroupFacts:
    """`job_J/step_S` below any of slurm, slurm_<node>, slurmstepd.scope, <node>_slurmstepd.scope."""
    for number, segment in enumerate(segments):
        below = segments[number + 1] if number + 1 < len(segments) else ""
        step = _STEP.match(below)
        job = _JOB.match(segment)
        if job and (step or _is_slurm(segments[:number])):
            return CgroupFacts(job=job[1], job_step=step[1] if step else ABSENT)
        if step and _SLUID.match(segment):
            return CgroupFacts(sluid=segment, job_step=step[1])
    return NO_CGROUP


def _is_slurm(above: Sequence[str]) -> bool:
    return any(
        s == "slurm" or s.startswith(("slurm_", "uid_")) or s.endswith("slurmstepd.scope") for s in above
    )
