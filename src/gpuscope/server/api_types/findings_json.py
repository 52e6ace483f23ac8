"""The answer of `GET /api/findings`, which `/api/live` contains too."""

from __future__ import annotations

from typing import Literal, TypedDict

FindingSeverity = Literal["critical", "warning", "info"]
FindingOwnerKind = Literal["pod", "job", "container", "user", "process", "none"]


class FindingOwnerJson(TypedDict):
    """Who can act: the pod, else the Slurm job, else the container, else the user, else the process."""

    kind: FindingOwnerKind
    """`none` where nobody is known."""
    namespace: str
    """Namespace of a pod; empty for the others."""
    name: str
    user: str
    """Whose Slurm job it is; empty for the others."""


class FindingJson(TypedDict):
    """One thing that is wrong."""

    id: str
    """Stable while the finding lasts."""
    kind: str
    """Which check found it, for example `gpu_lost`, `held_idle` or `only_some_work`."""
    severity: FindingSeverity
    node: str
    """Name of the node; of a scrape target its address."""
    gpus: list[str]
    """nvidia-smi's indices, `0_7_0` for a MIG instance; empty if it is about the node."""
    uuids: list[str]
    """UUIDs of these GPUs and instances, in the same order."""
    owner: FindingOwnerJson
    since: float | None
    """When it began, in seconds since the epoch; null while that is not known."""
    until: float | None
    """When it ended; null while it lasts."""
    cost_gpu_hours: float | None
    """GPU-hours lost so far; null while that is not computed."""
    why: str
    """What is wrong, in one English sentence."""
    why_key: str
    """Key of that sentence, for other languages."""
    args: dict[str, str | int | float]
    """Values for the names in the sentence."""
    next: str
    """The next step, in English."""
    next_key: str
    """Key of the next step, for other languages."""
    evidence: str
    """A PromQL expression that shows the finding."""


class FindingsAnswer(TypedDict):
    """Most severe first, then oldest."""

    findings: list[FindingJson]
