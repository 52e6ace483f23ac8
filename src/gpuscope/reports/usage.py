"""GPU-hours by owner, node or model, and the invariant: every hour of every GPU is in exactly one place.

`gpu_hours = owners + unattributed + free + lost + stranded`. A GPU counts from its first sample in the range,
or from the start of the range if it was there before, until its end: a GPU that stops answering is lost, not
gone. What the history does not have is named in `missing`; nothing is extrapolated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.engines.query_engine import QueryEngine, labelled_values
from gpuscope.reports.counter_growth import Growth, counter_growth, first_samples
from gpuscope.reports.rates import Rates

HOUR: Final = 3600.0
OBSERVED: Final = "gpuscope_gpu_observed_seconds_total"
JOULES_PER_KWH: Final = 3.6e6

GROUPS: Final[Mapping[str, tuple[str, ...]]] = {
    "user": ("name",),
    "pod": ("namespace", "name"),
    "namespace": ("namespace",),
    "job": ("name",),
    "node": ("node",),
    "model": ("model",),
}
"""What a report can be by, and the columns that name a row."""
_OWNER_COUNTERS: Final = (
    ("gpuscope_owner_gpu_seconds_total", "held", HOUR),
    ("gpuscope_owner_busy_seconds_total", "busy", HOUR),
    ("gpuscope_owner_energy_joules_total", "energy_kwh", JOULES_PER_KWH),
)
_BASIS_OF: Final = {"held": "held", "busy": "used", "energy_kwh": "kWh"}
_KIND_OF: Final = {
    "user": "user",
    "pod": "pod",
    "namespace": "pod",
    "job": "job",
    "node": "user",
    "model": "user",
}


@dataclass(slots=True)
class UsageRow:
    """Hours are GPU-hours; None is not known, never 0."""

    names: tuple[str, ...]
    held: float = 0.0
    busy: float | None = None
    energy_kwh: float | None = None
    cost: float | None = None

    @property
    def idle(self) -> float | None:
        return None if self.busy is None else max(0.0, self.held - self.busy)

    def add(
        self,
        *,
        held: float = 0.0,
        busy: float | None = None,
        energy_kwh: float | None = None,
        cost: float | None = None,
    ) -> None:
        self.held += held
        self.busy = _plus(self.busy, busy)
        self.energy_kwh = _plus(self.energy_kwh, energy_kwh)
        self.cost = _plus(self.cost, cost)


def _plus(total: float | None, more: float | None) -> float | None:
    return total if more is None else (total or 0.0) + more


@dataclass(frozen=True, slots=True)
class Invariant:
    """In GPU-hours; the last five add up to the first."""

    gpu_hours: float
    owners: float
    unattributed: float
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
    missing: list[str] = field(default_factory=list)
    """Sentences about what the history does not have."""


async def usage_report(
    engine: QueryEngine, by: str, start_ms: int, end_ms: int, rates: Rates | None = None
) -> UsageReport:
    kind = _KIND_OF[by]
    models = await _models(engine, start_ms, end_ms) if by == "model" or rates is not None else {}
    rows: dict[tuple[str, ...], UsageRow] = {}
    held, unpriced = 0.0, set()
    for metric, column, scale in _OWNER_COUNTERS:
        selector = f'{metric}{{kind="{kind}"}}'
        for growth in await counter_growth(engine, selector, start_ms, end_ms):
            amount, model = growth.total / scale, models.get(growth.labels.get("uuid", ""), "")
            row = rows.setdefault(_names(by, growth.labels, model), UsageRow(_names(by, growth.labels, model)))
            row.add(**{column: amount})
            held += amount if column == "held" else 0.0
            if rates is not None and rates.basis == _BASIS_OF[column]:
                price = rates.price(model)
                row.add(cost=None if price is None else price * amount)
                unpriced |= {model} if price is None else set()
    boards = await counter_growth(engine, OBSERVED, start_ms, end_ms)
    wall, missing = await _wall_seconds(engine, boards, start_ms, end_ms)
    observed = sum(board.total for board in boards) / HOUR
    invariant = Invariant(
        gpu_hours=wall / HOUR,
        owners=held,
        # By difference: a node that never saw an owner of this kind counts nothing under it.
        unattributed=max(0.0, await _sum(engine, "gpuscope_gpu_held_seconds_total", start_ms, end_ms) - held),
        free=await _sum(engine, "gpuscope_gpu_free_seconds_total", start_ms, end_ms),
        lost=max(0.0, wall / HOUR - observed),
        stranded=await _sum(engine, "gpuscope_gpu_stranded_seconds_total", start_ms, end_ms),
    )
    missing += [f"no rate for model {model or 'unknown'}" for model in sorted(unpriced)]
    ranked = sorted(rows.values(), key=lambda row: (-row.held, row.names))
    return UsageReport(by, start_ms, end_ms, len(boards), ranked, invariant, missing)


async def _sum(engine: QueryEngine, selector: str, start_ms: int, end_ms: int) -> float:
    return sum(growth.total for growth in await counter_growth(engine, selector, start_ms, end_ms)) / HOUR


async def _wall_seconds(
    engine: QueryEngine, boards: list[Growth], start_ms: int, end_ms: int
) -> tuple[float, list[str]]:
    """The seconds of all boards in the range, and what the history does not have of them."""
    if not boards:
        return 0.0, [f"the history has no {OBSERVED}: agents of an older version, or none"]
    late = [board for board in boards if not board.existed_before]
    begins = []
    for chunk_end_ms in sorted({board.first_chunk_ms for board in late}):
        first = await first_samples(engine, OBSERVED, chunk_end_ms, start_ms, end_ms)
        for board in late:
            if board.first_chunk_ms == chunk_end_ms:
                at_ms, value = first.get(tuple(sorted(board.labels.items())), (chunk_end_ms, 0.0))
                begins.append(max(0.0, (at_ms - start_ms) / 1000 - value))
    wall = len(boards) * (end_ms - start_ms) / 1000 - sum(begins)
    if late and len(late) == len(boards):
        return wall, [f"the history begins {min(begins) / HOUR:.1f} h after the start of the range"]
    return wall, [f"{len(late)} of {len(boards)} GPUs were first seen inside the range"] if late else []


async def _models(engine: QueryEngine, start_ms: int, end_ms: int) -> dict[str, str]:
    """By UUID of GPUs and MIG instances."""

    async def infos(metric: str) -> list[dict[str, str]]:
        found = await engine.instant(f"last_over_time({metric}[{end_ms - start_ms}ms])", end_ms)
        return [labels for labels, _ in labelled_values(found)]

    models = {labels["uuid"]: labels.get("model", "") for labels in await infos("gpuscope_gpu_info")}
    for labels in await infos("gpuscope_mig_info"):
        models[labels["uuid"]] = models.get(labels.get("parent_uuid", ""), "")
    return models


def _names(by: str, labels: Mapping[str, str], model: str) -> tuple[str, ...]:
    if by == "node":
        return (labels.get("instance", ""),)
    if by == "model":
        return (model,)
    return tuple(labels.get(column, "") for column in GROUPS[by])


def total_row(rows: Iterable[UsageRow]) -> UsageRow:
    total = UsageRow(("total",))
    for row in rows:
        total.add(held=row.held, busy=row.busy, energy_kwh=row.energy_kwh, cost=row.cost)
    return total
