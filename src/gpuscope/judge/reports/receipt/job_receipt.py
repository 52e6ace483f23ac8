"""The receipt of a job or pod: what it requested, held and used, by node and GPU.

Everything comes from the history of the engine. What it does not have is None and named in `not_known`. Notes
are made in `receipt_notes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

from gpuscope.judge.checks.thresholds import WORKING_RATIO
from gpuscope.judge.reports.report_sentence import ReportSentence

HOUR: Final = 3600.0
JOULES_PER_KWH: Final = 3.6e6
MIN_SECONDS_FOR_NOTES: Final = 150.0
"""Ten scrapes: of a shorter job little can be said."""

JobKind = Literal["job", "pod"]


@dataclass(slots=True)
class ReceiptGpu:
    """One GPU or MIG instance. Seconds are of the GPU's own time, not weighted by slices."""

    node: str
    gpu: str
    uuid: str
    model: str = ""
    profile: str = ""
    held_seconds: float = 0.0
    gpu_seconds: float = 0.0
    """Weighted: a shared GPU is split, a MIG instance counts by its slices."""
    busy_seconds: float | None = None
    """Weighted too."""
    unknown_seconds: float = 0.0
    energy_joules: float | None = None
    memory_peak_bytes: float | None = None
    memory_total_bytes: float | None = None
    longest_idle_seconds: float | None = None
    idle_episode_seconds: float = 0.0
    """The longest time for which a finding said that the job leaves it idle."""

    @property
    def busy_ratio(self) -> float | None:
        """Of the time in which the work is known."""
        known = self.gpu_seconds - self.unknown_seconds
        if self.busy_seconds is None or known <= 0.001 * self.gpu_seconds or known <= 0:
            return None
        return min(1.0, self.busy_seconds / known)

    @property
    def is_unused(self) -> bool:
        """It never worked, as a finding said."""
        is_idle = self.busy_ratio is not None and self.busy_ratio < WORKING_RATIO
        return is_idle and self.idle_episode_seconds > 0

    @property
    def memory_ratio(self) -> float | None:
        if self.memory_peak_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_peak_bytes / self.memory_total_bytes


@dataclass(frozen=True, slots=True)
class ReceiptNote:
    text: ReportSentence
    command: str
    """The one command that helps."""


@dataclass(frozen=True, slots=True)
class ReceiptRun:
    """One run of a job that was requeued, or one of several pods that had the same name."""

    started_at: float
    ended_at: float
    run_seconds: float
    gpus: int
    held_hours: float
    efficiency: float | None


@dataclass(slots=True)
class JobReceipt:
    kind: JobKind
    name: str
    namespace: str = ""
    user: str = ""
    account: str = ""
    partition: str = ""
    job_name: str = ""
    is_running: bool = False
    started_at: float = 0.0
    """When it first held a GPU, in seconds since the epoch."""
    run_seconds: float = 0.0
    """With the time before its GPUs were read."""
    requested_gpus: float | None = None
    waited_seconds: float | None = None
    """From submission to start."""
    limit_seconds: float | None = None
    gpus: list[ReceiptGpu] = field(default_factory=list)
    throttled_seconds: dict[str, float] = field(default_factory=dict)
    """By reason, of the GPU that was throttled longest."""
    xids: dict[str, int] = field(default_factory=dict)
    """By code."""
    wait_shares: dict[str, float] = field(default_factory=dict)
    """By kind of finding (`waits_for_data`): share of its time in which the finding held for its GPUs."""
    runs: list[ReceiptRun] = field(default_factory=list)
    """All of them, oldest first; the receipt is of the last one."""
    notes: list[ReceiptNote] = field(default_factory=list)
    not_known: list[ReportSentence] = field(default_factory=list)

    @property
    def seen_seconds(self) -> float:
        """How long it held a GPU while they were read."""
        return max((gpu.held_seconds for gpu in self.gpus), default=0.0)

    @property
    def held_hours(self) -> float:
        return sum(gpu.gpu_seconds for gpu in self.gpus) / HOUR

    @property
    def busy_hours(self) -> float | None:
        known = [gpu.busy_seconds for gpu in self.gpus if gpu.busy_ratio is not None]
        return sum(one for one in known if one is not None) / HOUR if known else None

    @property
    def unknown_hours(self) -> float:
        return sum(gpu.unknown_seconds for gpu in self.gpus) / HOUR

    @property
    def efficiency(self) -> float | None:
        """Busy share of the time in which the work is known."""
        known = self.held_hours - self.unknown_hours
        return None if self.busy_hours is None or known <= 0 else min(1.0, self.busy_hours / known)

    @property
    def idle_ratio(self) -> float | None:
        return None if self.efficiency is None else 1.0 - self.efficiency

    @property
    def longest_idle_seconds(self) -> float | None:
        found = [gpu.longest_idle_seconds for gpu in self.gpus if gpu.longest_idle_seconds is not None]
        return max(found) if found else None

    @property
    def energy_kwh(self) -> float | None:
        found = [gpu.energy_joules for gpu in self.gpus if gpu.energy_joules is not None]
        return sum(found) / JOULES_PER_KWH if found else None

    @property
    def is_energy_estimate(self) -> bool:
        return any(gpu.profile for gpu in self.gpus)

    @property
    def spread(self) -> tuple[float, float] | None:
        """Lowest and highest busy share of its GPUs."""
        found = [gpu.busy_ratio for gpu in self.gpus if gpu.busy_ratio is not None]
        return (min(found), max(found)) if found else None

    @property
    def peak_memory_ratio(self) -> float | None:
        found = [gpu.memory_ratio for gpu in self.gpus if gpu.memory_ratio is not None]
        return max(found) if found else None

    @property
    def unused_gpus(self) -> int:
        return sum(gpu.is_unused for gpu in self.gpus)

    def as_run(self) -> ReceiptRun:
        return ReceiptRun(
            self.started_at,
            self.started_at + self.run_seconds,
            self.run_seconds,
            len(self.gpus),
            self.held_hours,
            self.efficiency,
        )

    def efficiency_line(self) -> str:
        """In one line."""
        count = f"{len(self.gpus)} GPU{'s' if len(self.gpus) != 1 else ''}"
        held = f"{count}, {self.held_hours:.2f} GPU-hours held"
        if self.efficiency is None or self.busy_hours is None:
            return f"efficiency not known: {held}"
        return f"{100 * self.efficiency:.0f} % efficient: {held}, {self.busy_hours:.2f} busy"
