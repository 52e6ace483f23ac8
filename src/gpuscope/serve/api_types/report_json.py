"""The answers of `GET /api/report` and `GET /api/job`, which the commands print too with `--json`."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

ReportKind = Literal["usage", "idle"]
ReportPart = Literal["samples", "hourly", "daily"]
RateBasis = Literal["held", "used", "kWh"]


class ReportRowJson(TypedDict):
    """One owner, node, model or MIG profile. Hours are GPU-hours: held = busy + idle + unknown."""

    name: str
    """Empty if it is not known, or without the label that the report is by."""
    namespace: str
    """Namespace of a pod; empty for the others."""
    gpu_hours: float
    """Held. A shared GPU is split, a MIG instance counts by its compute slices."""
    busy_hours: float | None
    """SM time; null if nothing is known about it."""
    idle_hours: float | None
    """Held, and neither busy nor unknown."""
    unknown_hours: float
    """Held, and the work is not known, as on a MIG instance with several owners."""
    idle_held_hours: float
    """Of the idle hours: stretches of 15 minutes and more without work."""
    energy_kwh: float | None
    energy_is_estimate: bool
    """True with the energy of MIG instances."""
    cost: float | None
    """Null without a rate for it."""
    unpriced_hours: float
    """Held hours that are not in the cost."""
    co2_kg: float | None
    """Null without a CO₂ factor."""


class ReportInvariantJson(TypedDict):
    """Where every hour of every GPU went: the five parts add up to `gpu_hours`."""

    gpu_hours: float
    owners: float
    """Of the rows."""
    unattributed: float
    """Held, and not by an owner of the report's kind."""
    free: float
    lost: float
    """The GPU was not read: its agent was down, or it did not answer."""
    stranded: float
    """Compute slices of a split GPU that no MIG instance has."""
    difference: float
    """The parts minus `gpu_hours`; more than 0.1 % of it is also said in `missing`."""


class ReportBucketJson(TypedDict):
    """GPU-hours of one part of the range, for a plot."""

    start: float
    end: float
    busy: float
    idle: float
    unknown: float
    free: float
    lost: float
    stranded: float


class ReportPieceJson(TypedDict):
    """A part of the range, and where its numbers come from."""

    start: float
    end: float
    source: ReportPart
    """Samples, or hourly or daily roll-ups."""


class ReportRateJson(TypedDict):
    """What a GPU-hour or a kWh costs."""

    text: str
    """As given: `H100=2.5,*=1`."""
    basis: RateBasis
    """Per GPU-hour held, per GPU-hour used, or per kWh."""


class SentenceJson(TypedDict):
    """A sentence by key, for other languages."""

    key: str
    args: dict[str, str | int | float]
    """Values for the names in the sentence."""


class ReportAnswer(TypedDict):
    """A usage report. Times are seconds since the epoch."""

    kind: ReportKind
    by: str
    """`user`, `account`, `pod`, `namespace`, `job`, `node`, `model`, `mig-profile` or `label:NAME`."""
    start: float
    end: float
    gpus: int
    rows: list[ReportRowJson]
    """Most hours held first; of kind `idle`, most idle hours first."""
    total: ReportRowJson
    """The sum of all rows, also of those that were left out."""
    rows_left_out: int
    """Rows beyond `--report-max-rows`."""
    invariant: ReportInvariantJson
    buckets: list[ReportBucketJson]
    pieces: list[ReportPieceJson]
    missing: list[str]
    """What is not known, in hours, in English sentences."""
    missing_keys: list[SentenceJson]
    """The same sentences by key."""
    notes: list[str]
    """How the numbers were made, in English sentences."""
    notes_keys: list[SentenceJson]
    """The same sentences by key."""
    rate: NotRequired[ReportRateJson]
    co2_grams_per_kwh: NotRequired[float]


# The answer of `GET /api/job`, which `gpuscope job --json` prints too.


class JobGpuJson(TypedDict):
    """A GPU or MIG instance that the job held."""

    node: str
    gpu: str
    """The driver's index, `0_7_0` for a MIG instance."""
    uuid: str
    model: str
    profile: str
    """MIG profile; empty for a whole GPU."""
    held_seconds: float
    gpu_hours: float
    """Its share: a shared GPU is split, a MIG instance counts by its slices."""
    busy_ratio: float | None
    """Of the time in which the work is known; null if it never is."""
    unknown_hours: float
    energy_joules: float | None
    memory_peak_bytes: float | None
    memory_total_bytes: float | None
    longest_idle_seconds: float | None


class JobNoteJson(SentenceJson):
    """Something that would help."""

    text: str
    """In English."""
    command: str


class JobRunJson(TypedDict):
    """One run of a job that was requeued, or one of several pods that had the same name."""

    started_at: float
    ended_at: float
    run_seconds: float
    gpus: int
    gpu_hours: float
    efficiency: float | None


class JobAnswer(TypedDict):
    """The receipt of a Slurm job or a pod. Times are seconds since the epoch; null is not known."""

    kind: Literal["job", "pod"]
    name: str
    namespace: str
    user: str
    account: str
    partition: str
    job_name: str
    running: bool
    started_at: float
    run_seconds: float
    limit_seconds: float | None
    waited_seconds: float | None
    """From submission to start."""
    requested_gpus: float | None
    gpus: list[JobGpuJson]
    gpu_hours: float
    busy_hours: float | None
    unknown_hours: float
    efficiency: float | None
    """Busy share of the time in which the work is known, 0 to 1."""
    efficiency_line: str
    lowest_busy_ratio: float | None
    highest_busy_ratio: float | None
    idle_ratio: float | None
    longest_idle_seconds: float | None
    peak_memory_ratio: float | None
    energy_kwh: float | None
    energy_is_estimate: bool
    throttled_seconds: dict[str, float]
    """By reason, of the GPU that was throttled longest."""
    xids: dict[str, int]
    """Number of XID errors by code."""
    runs: list[JobRunJson]
    """All of them, oldest first; the receipt is of the last one."""
    notes: list[JobNoteJson]
    """At most five, each with the command that helps."""
    not_known: list[str]
    """English sentences."""
    not_known_keys: list[SentenceJson]
    """The same sentences by key."""
