"""GPU-hours by owner, node, model or MIG profile, and the invariant: every hour of every GPU is in one place.

`gpu_hours = owners + unattributed + free + lost + stranded`. What the history does not have is named in
`missing`; nothing is extrapolated. A value that is not known is None, never 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, tzinfo
from typing import Final

from gpuscope.base.errors import UsageError
from gpuscope.judge.reports.gpu_identities import GpuIdentities
from gpuscope.judge.reports.rates import Rates
from gpuscope.judge.reports.report_range import RangePiece
from gpuscope.judge.reports.report_sentence import ReportSentence
from gpuscope.judge.rules.shipped.rule_files import RolledUpCounter

PARTS: Final = ("owners", "unattributed", "free", "lost", "stranded")
MAX_DIFFERENCE: Final = 0.001
"""Of the GPU-hours: how much the parts of the invariant may differ from them."""
_ALL_UNKNOWN: Final = 0.999
"""From this share on nothing is known about the work; a little is always lost at the ends of counters."""


@dataclass(slots=True)
class UsageRow:
    """Hours are GPU-hours: held = busy + idle + unknown."""

    names: tuple[str, ...]
    """A pod has two: namespace and name."""
    held: float = 0.0
    busy_known: float = 0.0
    unknown: float = 0.0
    """Held, and the work is not known."""
    idle_held: float = 0.0
    """Of the idle hours: stretches of 15 minutes and more without work."""
    energy_kwh: float | None = None
    is_energy_estimate: bool = False
    """With the energy of MIG instances, which is estimated."""
    cost: float | None = None
    unpriced: float = 0.0
    """Held hours that are not in the cost: without a rate for the model, or without the amount it is for."""
    co2_kg: float | None = None

    @property
    def busy(self) -> float | None:
        return None if self.held and self.unknown >= _ALL_UNKNOWN * self.held else self.busy_known

    @property
    def idle(self) -> float | None:
        return None if self.busy is None else max(0.0, self.held - self.busy - self.unknown)

    def add_energy(self, kwh: float, *, is_estimate: bool) -> None:
        self.energy_kwh = (self.energy_kwh or 0.0) + kwh
        self.is_energy_estimate = self.is_energy_estimate or (is_estimate and kwh > 0)

    def add_cost(self, cost: float) -> None:
        self.cost = (self.cost or 0.0) + cost


@dataclass(frozen=True, slots=True)
class Invariant:
    """In GPU-hours; the last five add up to the first."""

    gpu_hours: float
    owners: float
    unattributed: float
    free: float
    lost: float
    stranded: float

    @property
    def difference(self) -> float:
        """The sum of the parts minus the GPU-hours."""
        return self.owners + self.unattributed + self.free + self.lost + self.stranded - self.gpu_hours

    @property
    def holds(self) -> bool:
        return abs(self.difference) <= MAX_DIFFERENCE * self.gpu_hours


@dataclass(frozen=True, slots=True)
class UsageBucket:
    """GPU-hours of one part of the range, for a plot. Over all buckets each part adds up to the invariant's,
    and busy, idle and unknown to `owners` and `unattributed`."""

    start_ms: int
    end_ms: int
    busy: float
    idle: float
    unknown: float
    free: float
    lost: float
    stranded: float


@dataclass(frozen=True, slots=True)
class UsageReport:
    by: str
    start_ms: int
    end_ms: int
    gpus: int
    rows: list[UsageRow]
    invariant: Invariant
    buckets: list[UsageBucket] = field(default_factory=list)
    pieces: list[RangePiece] = field(default_factory=list)
    """What was read where."""
    rates: Rates | None = None
    co2_grams_per_kwh: float | None = None
    missing: list[ReportSentence] = field(default_factory=list)
    """Sentences about what the history does not have, in hours."""
    notes: list[ReportSentence] = field(default_factory=list)
    """Sentences about how the numbers were made."""
    zone: tzinfo | None = UTC
    """Of the buckets by day, and of the times shown."""

    def sort_by_idle(self) -> None:
        """Most hours held and not used first: the order of `report idle`."""
        self.rows.sort(key=lambda row: -(row.idle or 0.0))


def total_row(rows: Iterable[UsageRow]) -> UsageRow:
    total = UsageRow(("total",))
    for row in rows:
        total.held += row.held
        total.busy_known += row.busy_known
        total.unknown += row.unknown
        total.idle_held += row.idle_held
        if row.energy_kwh is not None:
            total.add_energy(row.energy_kwh, is_estimate=row.is_energy_estimate)
        if row.cost is not None:
            total.add_cost(row.cost)
        total.unpriced += row.unpriced
        if row.co2_kg is not None:
            total.co2_kg = (total.co2_kg or 0.0) + row.co2_kg
    return total


OWNER_KINDS: Final[Mapping[str, str]] = {
    "user": "user",
    "account": "account",
    "pod": "pod",
    "namespace": "pod",
    "job": "job",
    "label": "pod",
}
"""The kind of owner whose counters are read."""
BY_GPU: Final = ("node", "model", "mig-profile")
GROUPINGS: Final = ("user", "account", "pod", "namespace", "job", *BY_GPU, "label:NAME")
_LABEL_NAME: Final = re.compile(r"[a-zA-Z0-9]([-_./a-zA-Z0-9]*[a-zA-Z0-9])?")
MAX_LABEL_LENGTH: Final = 317
"""Of a Kubernetes label: a prefix of 253 characters, a slash and a name of 63."""


@dataclass(frozen=True, slots=True)
class UsageGrouping:
    by: str
    """`user`, …, or `label:team`."""
    kind: str
    """Of owner; empty if the report is by GPU."""
    label: str = ""
    """The pod label, as it is in series."""

    @property
    def is_by_owner(self) -> bool:
        return bool(self.kind)

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of a row's names."""
        return ("namespace", "pod") if self.by == "pod" else (self.by.replace(":", "_"),)

    @property
    def counters(self) -> Mapping[str, RolledUpCounter]:
        """Held, busy, unknown, idle-held and energy."""
        names = _OWNER_COUNTERS if self.is_by_owner else _UNIT_COUNTERS
        return {
            column: RolledUpCounter(name, is_by_owner=self.is_by_owner)
            for column, name in zip(("held", "busy", "unknown", "idle_held", "energy"), names, strict=True)
        }

    @property
    def matchers(self) -> str:
        return f'kind="{self.kind}"' if self.kind else ""


_OWNER_COUNTERS: Final = (
    "owner_gpu_seconds", "owner_busy_seconds", "owner_unknown_seconds", "owner_idle_gpu_seconds",
    "owner_energy_joules",
)  # fmt: skip
_UNIT_COUNTERS: Final = (
    "gpu_held_seconds", "gpu_held_busy_seconds", "gpu_held_unknown_seconds", "gpu_held_idle_seconds",
    "gpu_held_energy_joules",
)  # fmt: skip


def parse_grouping(text: str, origin: str = "--by") -> UsageGrouping:
    by, colon, label = text.partition(":")
    if colon and by == "label":
        if len(label) > MAX_LABEL_LENGTH or not _LABEL_NAME.fullmatch(label):
            raise UsageError(f"{origin}: {label!r} is not the name of a pod label; for example label:team")
        return UsageGrouping(text, "pod", "label_" + re.sub(r"[^a-zA-Z0-9_]", "_", label))
    if by in OWNER_KINDS and by != "label" and not colon:
        return UsageGrouping(by, OWNER_KINDS[by])
    if text in BY_GPU:
        return UsageGrouping(text, "")
    raise UsageError(f"{origin}: {text!r} is not one of {', '.join(GROUPINGS)}")


@dataclass(frozen=True, slots=True)
class RowNames:
    """Names the row that a counter belongs to."""

    grouping: UsageGrouping
    gpus: GpuIdentities = field(default_factory=GpuIdentities)
    pod_labels: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def of(self, labels: Mapping[str, str]) -> tuple[str, ...]:
        uuid = labels.get("uuid", "")
        match self.grouping.by:
            case "node":
                return (self.gpus.node(labels),)
            case "model":
                return (self.gpus.model(uuid),)
            case "mig-profile":
                return (self.gpus.profile_name(uuid),)
            case "pod":
                return (labels.get("namespace", ""), labels.get("name", ""))
            case "namespace":
                return (labels.get("namespace", ""),)
        if self.grouping.label:
            return (self.pod_labels.get((labels.get("namespace", ""), labels.get("name", "")), ""),)
        return (labels.get("name", ""),)
