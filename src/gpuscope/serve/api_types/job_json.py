"""The answer of `GET /api/job`, which `gpuscope job --json` prints too."""

from __future__ import annotations

from typing import Literal, TypedDict

from gpuscope.serve.api_types.report_json import SentenceJson


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
