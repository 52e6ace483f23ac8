"""The receipt of a job or pod: what it requested, held and used, by node and GPU.

Everything comes from the history of the engine. What it does not have is None and named in `not_known`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

from gpuscope.judge.checks.thresholds import WAITING_RATIO, WORKING_RATIO
from gpuscope.judge.reports.report_range import HOUR, JOULES_PER_KWH
from gpuscope.judge.reports.report_sentence import ReportSentence

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
    gpu_hours: float
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
    running: bool = False
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
    def gpu_hours(self) -> float:
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
        known = self.gpu_hours - self.unknown_hours
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
    def energy_is_estimate(self) -> bool:
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
            self.gpu_hours,
            self.efficiency,
        )

    @property
    def efficiency_line(self) -> str:
        """In one line."""
        count = f"{len(self.gpus)} GPU{'s' if len(self.gpus) != 1 else ''}"
        held = f"{count}, {self.gpu_hours:.2f} GPU-hours held"
        if self.efficiency is None or self.busy_hours is None:
            return f"efficiency not known: {held}"
        return f"{100 * self.efficiency:.0f} % efficient: {held}, {self.busy_hours:.2f} busy"


MAX_NOTES: Final = 5
LOW_EFFICIENCY: Final = 0.25
EXPLAINED_EFFICIENCY: Final = WAITING_RATIO
"""Below it a cause that the history shows is named, as a finding does."""
LOW_MEMORY: Final = 0.25
LONG_IDLE_SECONDS: Final = 1800.0
UNEVEN: Final = 0.5
THROTTLED_SHARE: Final = 0.05
SHORT_OF_LIMIT: Final = 0.25
MIN_WAIT_SHARE: Final = 0.25
"""A cause that the history shows for less of the time is not named."""
WAIT_COMMANDS: Final = {
    "waits_for_disk": "cp -r DATA $TMPDIR  # reads from a local disk",
    "waits_for_network": "cp -r DATA $TMPDIR  # reads from a local disk",
    "waits_for_data": "DataLoader(…, num_workers=8)  # spreads its work",
}
"""By kind of finding that the history shows."""
EXPECTED_UNDER_LOAD: Final = frozenset({"sw_power_cap", "applications_clocks_setting", "sync_boost"})


def find_notes(receipt: JobReceipt) -> list[ReceiptNote]:
    """Up to five, the most expensive first, each with the one command that helps."""
    if receipt.seen_seconds < MIN_SECONDS_FOR_NOTES:
        return []
    return list(_notes(receipt))[:MAX_NOTES]


def _notes(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    for code, count in sorted(receipt.xids.items(), key=lambda one: -one[1]):
        once = ReportSentence("receipt.xid_once", xid=code)
        sentence = once if count == 1 else ReportSentence("receipt.xid", xid=code, count=count)
        yield ReceiptNote(sentence, f"gpuscope explain xid {code}")
    yield from _unused(receipt)
    yield from _low_use(receipt)
    waited = receipt.wait_shares.get("waits_for_rank", 0.0)
    if waited >= MIN_WAIT_SHARE:
        sentence = ReportSentence("receipt.waits_for_rank", percent=round(100 * waited))
        yield ReceiptNote(sentence, "py-spy dump --pid PID  # of the slower rank")
    for reason, seconds in sorted(receipt.throttled_seconds.items(), key=lambda one: -one[1]):
        share = seconds / receipt.seen_seconds
        if share > THROTTLED_SHARE and reason not in EXPECTED_UNDER_LOAD:
            sentence = ReportSentence("receipt.throttled", reason=reason, percent=round(100 * share))
            yield ReceiptNote(sentence, f"gpuscope explain throttle {reason}")
    yield from _too_much(receipt)


def _unused(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    total, unused = len(receipt.gpus), receipt.unused_gpus
    if not unused:
        return
    if unused == total:
        yield ReceiptNote(ReportSentence("receipt.all_unused"), _ask_for(receipt, 0))
    else:
        sentence = ReportSentence("receipt.unused", count=unused, gpus=total)
        yield ReceiptNote(sentence, _ask_for(receipt, total - unused))


def _ask_for(receipt: JobReceipt, count: int) -> str:
    if receipt.kind == "pod":
        return f"kubectl -n {receipt.namespace} edit pod {receipt.name}  # nvidia.com/gpu: {count}"
    return f"sbatch --gpus={count} …" if count else "sbatch --gpus=0 …  # or a partition without GPUs"


def _low_use(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    efficiency, spread = receipt.efficiency, receipt.spread
    some_work = receipt.unused_gpus < len(receipt.gpus)
    if some_work and spread is not None and spread[0] >= WORKING_RATIO and spread[1] - spread[0] > UNEVEN:
        low, high = (round(100 * share) for share in spread)
        yield ReceiptNote(
            ReportSentence("receipt.uneven", low=low, high=high), "torchrun --nproc-per-node=gpu …"
        )
    if some_work and efficiency is not None and not receipt.unused_gpus:
        yield from _low_efficiency(receipt, efficiency)
    # A GPU that was never used is another note's.
    idle = max((gpu.idle_episode_seconds for gpu in receipt.gpus if not gpu.is_unused), default=0.0)
    if idle >= LONG_IDLE_SECONDS:
        sentence = ReportSentence(f"receipt.idle_{receipt.kind}", hours=idle / HOUR)
        yield ReceiptNote(sentence, _end_command(receipt))


def _low_efficiency(receipt: JobReceipt, efficiency: float) -> Iterator[ReceiptNote]:
    """Names a cause only if the history shows it."""
    busy = round(100 * efficiency)
    for kind, command in WAIT_COMMANDS.items():
        share = receipt.wait_shares.get(kind, 0.0)
        if share >= MIN_WAIT_SHARE and efficiency < EXPLAINED_EFFICIENCY:
            sentence = ReportSentence(f"receipt.low.{kind}", busy=busy, percent=round(100 * share))
            yield ReceiptNote(sentence, command)
            return
    if efficiency < LOW_EFFICIENCY:
        sentence = ReportSentence("receipt.low", busy=busy)
        yield ReceiptNote(sentence, "py-spy dump --pid PID  # shows what it waits for, while it runs")


def _end_command(receipt: JobReceipt) -> str:
    if receipt.kind == "pod":
        where = f"kubectl -n {receipt.namespace}"
        if receipt.running:
            return f"{where} delete pod {receipt.name}"
        return f"{where} create job …  # a pod of a Job ends with its program"
    if receipt.running:
        return f"scancel {receipt.name}"
    return "scancel $SLURM_JOB_ID  # as the last line of the script"


def _too_much(receipt: JobReceipt) -> Iterator[ReceiptNote]:
    memory = receipt.peak_memory_ratio
    # A GPU that is busy is not too large, however little memory the job needs.
    is_busy = receipt.efficiency is None or receipt.efficiency >= EXPLAINED_EFFICIENCY
    if memory is not None and memory < LOW_MEMORY and not is_busy and receipt.unused_gpus < len(receipt.gpus):
        yield ReceiptNote(
            ReportSentence("receipt.low_memory", percent=round(100 * memory)),
            "sinfo -o '%P %G'" if receipt.kind == "job" else "kubectl describe nodes | grep nvidia.com/",
        )
    limit = receipt.limit_seconds
    if not receipt.running and limit and receipt.run_seconds < SHORT_OF_LIMIT * limit:
        hours = max(1, round(1.5 * receipt.run_seconds / HOUR))
        sentence = ReportSentence("receipt.short", percent=round(100 * receipt.run_seconds / limit))
        yield ReceiptNote(sentence, f"sbatch --time={hours}:00:00 …")
