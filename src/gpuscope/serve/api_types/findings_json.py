"""The answers of `GET /api/findings`: what is wrong now, as in `/api/live`, and what was over a time range."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from gpuscope.serve.api_types.report_json import SentenceJson

FindingSeverity = Literal["critical", "warning", "info"]
FindingOwnerKind = Literal["pod", "job", "container", "user", "process", "none"]


class FindingOwnerJson(TypedDict):
    """Who can act: the pod, else the Slurm job, else the container, else the user, else the process."""

    kind: FindingOwnerKind
    """`none` if the owner is not known."""
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
    """The driver's indices, `0_7_0` for a MIG instance; empty if it is about the node."""
    uuids: list[str]
    """UUIDs of these GPUs and instances, in the same order."""
    owner: FindingOwnerJson
    since: float | None
    """When it began, in seconds since the epoch; null while that is not known."""
    until: float | None
    """When it ended; null while it lasts."""
    cost_gpu_hours: float | None
    """GPU-hours lost until `cost_at`; null if it costs none, or while the history of its GPUs is not read."""
    wasted_gpus: float | None
    """How many GPU-hours it costs each hour after `cost_at`: 1 for a whole GPU, less for a MIG instance, a
    shared or a slow GPU; null unless it lasts."""
    cost_at: float | None
    """Until when `cost_gpu_hours` is counted, in seconds since the epoch. In `/api/findings` that is now, in
    `/api/live` up to some minutes ago."""
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


class NotKnownJson(TypedDict):
    """A check that the engine has not answered for more than a minute."""

    kind: str
    reason: str
    """The engine's error, in English."""


class FindingsAnswer(TypedDict):
    """`GET /api/findings`: most severe first, then oldest."""

    findings: list[FindingJson]
    not_known: list[NotKnownJson]
    """Kinds that cannot be judged now: that they have no finding says nothing."""


class PastFindingJson(FindingJson):
    """A finding over a time range; `until` is null if it holds at the end, `node` is empty for several."""

    hours: float
    """How long it held; of several GPUs the longest."""
    times: int
    """How many times it began."""
    cost: float | None
    """`cost_gpu_hours` in money; null without a rate for the model, or if it cost no GPU time."""
    nodes: list[str]
    jobs: list[str]
    """Slurm jobs of the owner, the five with the most lost hours."""
    link: str
    """Address of the evidence in the page, relative to the server's."""


class FoldedFindingsJson(TypedDict):
    """Small findings of one kind, added up."""

    kind: str
    count: int
    cost_gpu_hours: float
    cost: float | None


class CoverageJson(TypedDict):
    """Which part of the range is known: `gpu_hours` = `known_gpu_hours` + `missing_gpu_hours`."""

    gpus: int
    gpu_hours: float
    """Hours of all GPUs, each from its first sample on."""
    known_gpu_hours: float
    missing_gpu_hours: float
    missing: list[str]
    """English sentences about what is not known."""
    missing_keys: list[SentenceJson]
    """The same sentences by key."""


class PastFindingsAnswer(TypedDict):
    """`GET /api/findings?since=7d`: most expensive first; findings without a cost last."""

    since: float
    """Start of the range."""
    until: float
    """End of the range."""
    findings: list[PastFindingJson]
    folded: list[FoldedFindingsJson]
    """Small findings by kind, most expensive first."""
    cost_gpu_hours: float
    """Of all findings, folded ones too. A GPU-hour counts once, under the first kind that claims it."""
    cost: float | None
    """In money; null without rates. Models without a rate are not in it."""
    rate: NotRequired[str]
    """The rates as they were given, per GPU-hour."""
    unpriced_models: list[str]
    """Models without a rate."""
    coverage: CoverageJson
