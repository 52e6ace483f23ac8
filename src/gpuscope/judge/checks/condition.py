"""A condition: one series of a check's expression, so the check holds for what the series is about.

The key says what that is. Two evaluations with the same key are the same episode.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuscope.judge.checks.check import OWNER_LABELS, Check, Subject
from gpuscope.judge.checks.finding import NO_OWNER, FindingOwner
from gpuscope.model.vendor import catalogues

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
Owner = tuple[str, ...]
"""Values of OWNER_LABELS; empty where the check names nobody."""


class SubjectKey(NamedTuple):
    """What a check holds for."""

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
