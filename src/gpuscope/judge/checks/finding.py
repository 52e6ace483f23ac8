"""A finding: one thing that is wrong, where, since when, who can act on it, and the next step.

`why` and `next` are English sentences; `why_key`, `next_key` and `args` let the page say the same in other
languages. `id` is stable while the finding lasts: the same kind on the same node, subject and owner. A time
that is not known is None, and so is the cost until a report has computed it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from gpuscope.judge.checks.check import OWNER_LABELS, Check, Severity, Subject
from gpuscope.model.vendor import catalogues

Argument = str | int | float
OwnerKind = Literal["pod", "job", "container", "user", "process", "none"]


@dataclass(frozen=True, slots=True)
class FindingOwner:
    kind: OwnerKind
    """`none` if the owner is not known."""
    namespace: str
    """Of a pod; empty for the others."""
    name: str
    user: str = ""
    """Whose job it is; empty for the others."""

    @property
    def label(self) -> str:
        """As a person writes it: `ml/train-0`, `job 17 (alice)`, `alice`."""
        if self.kind == "job":
            return f"job {self.name} ({self.user})" if self.user else f"job {self.name}"
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


NO_OWNER: Final = FindingOwner("none", "", "")


@dataclass(frozen=True, slots=True)
class Loss:
    """GPU time that is lost while a finding lasts."""

    gpu_seconds: float
    """Until `at`."""
    gpus: float
    """How fast it grows: 1 for a whole GPU, less for a MIG instance, a shared or a slow GPU."""
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    id: str
    kind: str
    severity: Severity
    node: str
    instance: str
    """The node's label `instance`, by which its series are found."""
    gpus: tuple[str, ...] = ()
    """The driver's indices, `0_7_0` for a MIG instance."""
    uuids: tuple[str, ...] = ()
    owner: FindingOwner = NO_OWNER
    since: float | None = None
    until: float | None = None
    """When it ended; None while it lasts."""
    why: str
    why_key: str
    args: Mapping[str, Argument]
    next: str
    next_key: str
    evidence: str
    """A PromQL expression that shows it."""
    cost_gpu_hours: float | None = None
    wasted_gpus: float | None = None
    """How many GPU-hours it costs each hour, after `cost_at`; None unless it lasts and costs."""
    cost_at: float | None = None
    """Until when `cost_gpu_hours` is counted."""


SEVERITY_ORDER: Final = {severity: place for place, severity in enumerate(Severity)}


def worst_first(finding: Finding) -> tuple[int, float, str, tuple[tuple[int, str], ...], str]:
    """Sort key: most severe, then oldest, then by node and GPU; an unknown beginning stands last."""
    since = float("inf") if finding.since is None else finding.since
    gpus = tuple(map(by_number, finding.gpus))
    return SEVERITY_ORDER[finding.severity], since, finding.node, gpus, finding.id


def by_number(index: str) -> tuple[int, str]:
    """Sort key of GPU indices: 10 stands after 9."""
    return len(index), index


def finding_id(*parts: str) -> str:
    """Sixteen hexadecimal digits. The digest is for identity, not for secrecy."""
    text = "\0".join(parts).encode("utf-8", "surrogatepass")
    return hashlib.blake2b(text, digest_size=8).hexdigest()


DETAIL_LABELS: Final = (
    *(errors.key for errors in catalogues()),
    "source",
    "reason",
    "link",
    "device",
    "rank",
    "error",
    "mountpoint",
)
"""Several conditions of one kind and subject differ by these."""
GpuKey = tuple[str, str]
"""Instance and UUID; the UUID is empty for a node."""
Owner = tuple[str, ...]
"""Values of OWNER_LABELS; empty where the check names nobody."""


class SubjectKey(NamedTuple):
    """What a check holds for. Two evaluations with the same key are the same episode."""

    kind: str
    instance: str
    """Of a node of Slurm that another node tells of, its name."""
    uuid: str
    """Empty for a node."""
    owner: Owner
    cluster: str = ""
    """Of a node of Slurm, or a GPU that its queue could use: the agent that reads the cluster. Two clusters may
    have nodes of the same name."""

    @property
    def gpu(self) -> GpuKey:
        return self.instance, self.uuid

    @property
    def whole(self) -> SubjectKey:
        """What the check holds for: a GPU that Slurm leaves idle is a part of what its queue costs."""
        return SubjectKey(self.kind, self.cluster, "", ()) if self.cluster and self.uuid else self


def subject_key(check: Check, labels: Mapping[str, str]) -> SubjectKey:
    if check.subject is Subject.SLURM_NODE:
        return SubjectKey(check.kind, labels.get("node", ""), "", (), labels.get("instance", ""))
    instance = labels.get("instance", "")
    if check.subject in (Subject.NODE, Subject.SERVICE):
        return SubjectKey(check.kind, instance, "", ())
    owner: Owner = ()
    if check.subject is not Subject.GPU:
        owner = tuple([labels.get(name, "") for name in OWNER_LABELS])
    return SubjectKey(check.kind, instance, labels.get("uuid", ""), owner)


def lost_key(check: Check, labels: Mapping[str, str]) -> SubjectKey:
    """Of a series of `lost`: the same, or a GPU that is a part of it."""
    if check.subject is not Subject.SERVICE:
        return subject_key(check, labels)
    instance, uuid = labels.get("instance", ""), labels.get("uuid", "")
    return SubjectKey(check.kind, instance, uuid, (), labels.get("read_by", ""))


@dataclass(frozen=True, slots=True)
class Condition:
    """One series of a check's expression: the check holds for what the series is about."""

    check: Check
    labels: Mapping[str, str]
    value: float

    @property
    def subject(self) -> SubjectKey:
        return subject_key(self.check, self.labels)

    @property
    def detail(self) -> tuple[str, ...]:
        return tuple([self.labels.get(name, "") for name in DETAIL_LABELS])


def owner_of(labels: Mapping[str, str]) -> FindingOwner:
    """Who can act: the pod, else the job, else the container, else the user; `none` where nobody is known.

    The user inside a container is often the same for everybody (`jovyan`, `root`), so the pod comes first."""
    if labels.get("pod"):
        return FindingOwner("pod", labels.get("namespace", ""), labels["pod"])
    if labels.get("slurm_job"):
        return FindingOwner("job", "", labels["slurm_job"], labels.get("user", ""))
    if labels.get("container"):
        return FindingOwner("container", "", labels["container"])
    return FindingOwner("user", "", labels["user"]) if labels.get("user") else NO_OWNER
