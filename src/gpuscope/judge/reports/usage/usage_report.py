"""Makes a usage report over any engine: reads the counters of the range, adds them up, says what is missing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, tzinfo
from itertools import product
from typing import Final

import numpy as np

from gpuscope.agent.owners.unit_work import IDLE_STRETCH_SECONDS
from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import (
    EngineBadQuery,
    EngineInfo,
    EngineQueryError,
    QueryEngine,
    describe,
)
from gpuscope.history.promql.frame import Floats
from gpuscope.judge.checks.finding import GpuKey
from gpuscope.judge.reports.board_spans import OBSERVED, BoardSpan, board_spans, end_replaced
from gpuscope.judge.reports.gpu_identities import (
    GpuIdentities,
    gpu_key,
    is_instance,
    read_gpu_identities,
    read_pod_label,
)
from gpuscope.judge.reports.gpu_reporters import GpuReporters
from gpuscope.judge.reports.rates import Rates
from gpuscope.judge.reports.report_range import HOUR, HOUR_MS, JOULES_PER_KWH, MINUTE_MS, Buckets, RangePiece
from gpuscope.judge.reports.report_sentence import ReportSentence
from gpuscope.judge.reports.slurm_allocations import (
    TooManyAllocations,
    UnusedAllocations,
    unused_allocations,
)
from gpuscope.judge.reports.usage.known_parts import (
    MAX_REASON,
    MIN_CLOCK_SECONDS,
    early_notes,
    find_missing,
    source_notes,
)
from gpuscope.judge.reports.usage.usage import (
    Invariant,
    RowNames,
    UsageBucket,
    UsageGrouping,
    UsageReport,
    UsageRow,
)
from gpuscope.judge.reports.usage.usage_history import (
    HistorySource,
    PieceRefused,
    RangeGrowth,
    RollupHours,
    UsageHistory,
    plan_pieces,
    read_rollup_hours,
)
from gpuscope.judge.rules.shipped.rule_files import RolledUpCounter
from gpuscope.model.series import Labels

MAX_REFUSED: Final = 24
"""Parts of the range that an engine may refuse; then the report stops, with the engine's reason."""
MAX_READS: Final = 3
"""A sample that is stored while counters are read is in some of them only; the next reading has it in all."""
MIN_NO_ENERGY_SECONDS: Final = 360.0
"""0.1 GPU-hours; an owner's energy begins one cycle after its time."""
_OWNER_HELD: Final = RolledUpCounter("owner_gpu_seconds", is_by_owner=True)
_HELD: Final = RolledUpCounter("gpu_held_seconds", is_by_owner=False)
_BUSY: Final = RolledUpCounter("gpu_held_busy_seconds", is_by_owner=False)
_UNKNOWN: Final = RolledUpCounter("gpu_held_unknown_seconds", is_by_owner=False)
_FREE: Final = RolledUpCounter("gpu_free_seconds", is_by_owner=False)
_STRANDED: Final = RolledUpCounter("gpu_stranded_seconds", is_by_owner=False)


@dataclass(frozen=True, slots=True)
class UsageQuestion:
    grouping: UsageGrouping
    start_ms: int
    end_ms: int
    rates: Rates | None = None
    co2_grams_per_kwh: float | None = None
    source: HistorySource = "auto"
    zone: tzinfo | None = UTC
    """Of the buckets by day, and of the times shown; None is this machine's."""


async def usage_report(engine: QueryEngine, question: UsageQuestion) -> UsageReport:
    """Raises EngineError if the engine does not answer at all."""
    info = await describe(engine)
    filled_until_ms = info.filled_until_ms
    if filled_until_ms is None or filled_until_ms >= question.end_ms:
        return await _consistent_report(engine, question, info)
    # Samples after it arrive while the counters are read: their sums would not agree.
    known = replace(question, end_ms=max(filled_until_ms, question.start_ms))
    report = await _consistent_report(engine, known, info)
    report.missing.insert(0, ReportSentence("missing.filling", at=filled_until_ms / 1000))
    return report


async def _consistent_report(engine: QueryEngine, question: UsageQuestion, info: EngineInfo) -> UsageReport:
    if question.end_ms <= question.start_ms:
        nothing = Invariant(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
        return UsageReport(
            question.grouping.by, question.start_ms, question.end_ms, 0, [], nothing, zone=question.zone
        )
    for _ in range(MAX_READS):
        report = await _read_report(engine, question, info)
        if report.invariant.holds:
            break
    return report


async def _read_report(engine: QueryEngine, question: UsageQuestion, info: EngineInfo) -> UsageReport:
    hours = RollupHours()
    if question.source != "samples":
        hours = await read_rollup_hours(engine, question.start_ms, question.end_ms)
    refused: list[PieceRefused] = []
    while True:
        plan = _Plan(question, hours, tuple(one.piece for one in refused))
        try:
            return await _UsageReader(engine, question, plan, info).read(refused)
        except PieceRefused as one:
            if len(refused) >= MAX_REFUSED:
                raise one.__cause__ or one from None
            refused.append(one)


@dataclass(frozen=True, slots=True)
class _Plan:
    question: UsageQuestion
    hours: RollupHours
    holes: tuple[RangePiece, ...]
    """What the engine refused."""

    def pieces(self, start_ms: int, *, with_daily: bool = False) -> list[RangePiece]:
        question = self.question
        planned = plan_pieces(start_ms, question.end_ms, self.hours, question.source, with_daily=with_daily)
        return [part for piece in planned for part in _without_holes(piece, self.holes)]


def _without_holes(piece: RangePiece, holes: tuple[RangePiece, ...]) -> list[RangePiece]:
    parts = [piece]
    for hole in holes:
        cut = []
        for part in parts:
            if hole.end_ms <= part.start_ms or hole.start_ms >= part.end_ms:
                cut.append(part)
                continue
            cut += [replace(part, end_ms=hole.start_ms)] if hole.start_ms > part.start_ms else []
            cut += [replace(part, start_ms=hole.end_ms)] if hole.end_ms < part.end_ms else []
        parts = cut
    return parts


@dataclass(frozen=True, slots=True)
class _Boards:
    """All GPUs together, in seconds."""

    spans: Mapping[Labels, BoardSpan]
    wall: Mapping[Labels, float]
    observed: RangeGrowth
    held: RangeGrowth
    busy: RangeGrowth
    unknown: RangeGrowth
    free: RangeGrowth
    stranded: RangeGrowth
    wall_by_bucket: Floats

    def indices(self) -> dict[GpuKey, set[str]]:
        """Of each unit that has samples in the range; a GPU may have got another index."""
        found: defaultdict[GpuKey, set[str]] = defaultdict(set)
        for labels in (*self.free.totals, *self.held.totals, *self.observed.totals):
            found[gpu_key(dict(labels))].add(dict(labels).get("gpu", ""))
        return found


@dataclass(slots=True)
class _RowGaps:
    """Held time that is in no row's cost, or in no row's energy."""

    unpriced_seconds: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """By model."""
    no_energy_seconds: float = 0.0
    sentences_about_allocations: list[ReportSentence] = field(default_factory=list)

    def sentences(self) -> Iterator[ReportSentence]:
        for model, seconds in sorted(self.unpriced_seconds.items()):
            yield ReportSentence("missing.no_rate", model=model or "unknown", hours=seconds / HOUR)
        yield from self.sentences_about_allocations
        if self.no_energy_seconds >= MIN_NO_ENERGY_SECONDS:
            yield ReportSentence("missing.no_energy", hours=self.no_energy_seconds / HOUR)


class _UsageReader:
    def __init__(self, engine: QueryEngine, question: UsageQuestion, plan: _Plan, info: EngineInfo) -> None:
        self._engine = engine
        self._question = question
        self._plan = plan
        self._info = info

    async def read(self, refused: list[PieceRefused]) -> UsageReport:
        question, engine = self._question, self._engine
        pieces, snapped_ms = await self._known_pieces()
        with_daily = self._plan.pieces(pieces[0].start_ms, with_daily=True) if pieces else []
        buckets = Buckets.of(question.start_ms, question.end_ms, question.zone)
        gpus = await read_gpu_identities(engine, question.start_ms, question.end_ms)
        spans, reporters = await board_spans(engine, pieces, gpus.parents)
        history = UsageHistory(engine, buckets, pieces, with_daily, reporters)
        boards = await self._boards(history, spans, gpus)
        gaps = _RowGaps()
        unused = await self._unused_allocations(pieces, reporters, boards, gaps)
        seconds = _move_to_held(boards, unused, buckets) if unused is not None else {}
        rows, owners = await self._rows(history, gpus, unused, seconds, gaps)
        held = boards.held.total / HOUR
        invariant = _invariant(boards, owners if question.grouping.is_by_owner else held)
        report = UsageReport(
            by=question.grouping.by,
            start_ms=question.start_ms,
            end_ms=question.end_ms,
            gpus=len({dict(labels).get("uuid", "") for labels in boards.spans}),
            rows=sorted(rows.values(), key=lambda row: (-row.held, row.names)),
            invariant=invariant,
            buckets=_to_buckets(buckets, boards, invariant),
            pieces=pieces,
            rates=question.rates,
            co2_grams_per_kwh=question.co2_grams_per_kwh,
            zone=question.zone,
        )
        report.missing.extend(
            find_missing(report, boards.spans, boards.wall, boards.observed.totals, gpus, refused, snapped_ms)
        )
        report.missing.extend(gaps.sentences())
        early = report.invariant.gpu_hours - sum(boards.wall.values()) / HOUR
        report.notes.extend(early_notes(report, early))
        report.notes.extend(source_notes(self._info, report))
        return report

    async def _known_pieces(self) -> tuple[list[RangePiece], int]:
        """The pieces, and how much later the first one begins because samples of its first part are gone.

        Roll-ups have whole hours: without samples a part of an hour is not known."""
        pieces = self._plan.pieces(self._question.start_ms)
        if len(pieces) < 2 or pieces[0].source != "samples" or pieces[1].source == "samples":
            return pieces, 0
        head, following = pieces[0], pieces[1]
        # Of the time just before the roll-ups: a long piece has more samples than some engines load at once.
        near_ms = min(head.length_ms, HOUR_MS)
        samples = await self._engine.instant(
            f"count(count_over_time({OBSERVED.raw}[{duration_text(near_ms)}]))", head.end_ms
        )
        rolled_up = await self._engine.instant(
            f"count(count_over_time({OBSERVED.growth_by_hour}[1d]))", following.start_ms + 60_000
        )
        if len(samples.values) or not len(rolled_up.values):
            return pieces, 0
        return pieces[1:], head.length_ms

    async def _boards(
        self, history: UsageHistory, spans: Mapping[Labels, BoardSpan], gpus: GpuIdentities
    ) -> _Boards:
        observed = await history.growth(OBSERVED)
        end_replaced(spans, gpus, observed.totals)
        wall: dict[Labels, float] = {}
        by_bucket = history.buckets.zeros()
        for labels, span in spans.items():
            wall[labels] = 0.0
            for piece, (start_ms, end_ms) in product(history.pieces, span.counted):
                overlap_ms = history.buckets.overlap_ms(
                    max(piece.start_ms, start_ms), min(piece.end_ms, end_ms)
                )
                by_bucket += overlap_ms / 1000
                wall[labels] += float(overlap_ms.sum()) / 1000
        return _Boards(
            spans=spans,
            wall=wall,
            observed=observed,
            held=await history.growth(_HELD),
            busy=await history.growth(_BUSY),
            unknown=await history.growth(_UNKNOWN),
            free=await history.growth(_FREE),
            stranded=await history.growth(_STRANDED),
            wall_by_bucket=by_bucket,
        )

    async def _unused_allocations(
        self, pieces: list[RangePiece], reporters: GpuReporters, boards: _Boards, gaps: _RowGaps
    ) -> UnusedAllocations | None:
        """What Slurm gave away and no process used, on nodes whose agents do not know it."""
        if not pieces:
            return None
        if rolled_up_hours := await self._hours_without_samples(pieces):
            gaps.sentences_about_allocations.append(
                ReportSentence("missing.allocations_rolled_up", hours=rolled_up_hours)
            )
        try:
            span = pieces[0].start_ms, pieces[-1].end_ms
            return await unused_allocations(self._engine, *span, reporters, boards.indices())
        except TooManyAllocations as error:
            gaps.sentences_about_allocations.append(ReportSentence("missing.allocations", count=error.count))
        except EngineBadQuery:
            raise
        except EngineQueryError as error:
            reason = str(error)[:MAX_REASON]
            gaps.sentences_about_allocations.append(
                ReportSentence("missing.allocations_refused", reason=reason)
            )
        return None

    async def _hours_without_samples(self, pieces: list[RangePiece]) -> int:
        """Hours in which Slurm's jobs are known from roll-ups only. Samples are deleted from the oldest on."""
        ends_ms = [
            end_ms
            for piece in pieces
            if piece.source != "samples"
            for end_ms in range(piece.start_ms + HOUR_MS, piece.end_ms + 1, HOUR_MS)
        ]
        first, last = 0, len(ends_ms)
        at = 0  # usually there are samples of all hours
        while first < last:
            samples = await self._engine.instant(f"count(last_over_time({OBSERVED.raw}[10m]))", ends_ms[at])
            first, last = (first, at) if len(samples.values) else (at + 1, last)
            at = (first + last) // 2
        if not first:
            return 0
        jobs = f'{_OWNER_HELD.growth_by_hour}{{kind="job"}}'
        span = pieces[0].start_ms, ends_ms[first - 1] + MINUTE_MS
        return first if await self._engine.label_values("kind", [jobs], *span) else 0

    async def _rows(
        self,
        history: UsageHistory,
        gpus: GpuIdentities,
        unused: UnusedAllocations | None,
        unused_seconds: Mapping[tuple[str, GpuKey], float],
        gaps: _RowGaps,
    ) -> tuple[dict[tuple[str, ...], UsageRow], float]:
        """The rows and the hours of all owners; `gaps` gets those without a price or energy."""
        question, grouping = self._question, self._question.grouping
        pod_labels: Mapping[tuple[str, str], str] = {}
        if grouping.label:
            pod_labels = await read_pod_label(self._engine, grouping.label, question.start_ms, question.end_ms)
        names = RowNames(grouping, gpus, pod_labels)
        # The model of a GPU and whether it is an instance are not known by day.
        by_owner_only = grouping.is_by_owner and question.rates is None and not gpus.parents
        grown = {
            column: await history.growth(counter, grouping.matchers, by_owner_only=by_owner_only)
            for column, counter in grouping.counters.items()
        }
        if unused is not None:
            _add_unused(grown, grouping, unused, unused_seconds)
        rows: dict[tuple[str, ...], UsageRow] = {}
        for labels, seconds in grown["held"].totals.items():
            found = dict(labels)
            row = rows.setdefault(names.of(found), UsageRow(names.of(found)))
            amounts = {column: growth.totals.get(labels) for column, growth in grown.items()}
            _add_to_row(row, seconds, amounts, is_estimate=is_instance(found.get("uuid", "")))
            model = gpus.model(found.get("uuid", ""))
            if question.rates is not None and not _add_cost(row, question.rates, model, seconds, amounts):
                gaps.unpriced_seconds[model] += seconds
            if amounts["energy"] is None:
                gaps.no_energy_seconds += seconds
        if question.co2_grams_per_kwh is not None:
            for row in rows.values():
                if row.energy_kwh is not None:
                    row.co2_kg = row.energy_kwh * question.co2_grams_per_kwh / 1000
        return rows, grown["held"].total / HOUR


def _move_to_held(
    boards: _Boards, unused: UnusedAllocations, buckets: Buckets
) -> dict[tuple[str, GpuKey], float]:
    """Moves what Slurm gave away from free to held; returns the seconds of each job and unit.

    Never more than a unit was free: the sums stay exact.
    """
    free_of = {gpu_key(dict(labels)): labels for labels in boards.free.totals}
    held_of = {gpu_key(dict(labels)): labels for labels in boards.held.totals}
    moved: dict[tuple[str, GpuKey], float] = {}
    for one in unused.listed:
        labels, wanted = free_of.get(one.unit), float(one.by_chunk.sum())
        if labels is None:
            continue
        seconds = min(wanted, boards.free.totals[labels])
        boards.free.totals[labels] -= seconds
        boards.held.totals[held_of.get(one.unit, labels)] += seconds
        grid = unused.chunks
        ends_ms = grid.start_ms + grid.step_ms * np.arange(1, grid.count + 1)
        by_bucket = buckets.spread(grid.start_ms, ends_ms, one.by_chunk * (seconds / wanted))
        boards.free.by_bucket -= by_bucket
        boards.held.by_bucket += by_bucket
        moved[one.job, one.unit] = seconds
    return moved


def _add_unused(
    grown: Mapping[str, RangeGrowth],
    grouping: UsageGrouping,
    unused: UnusedAllocations,
    seconds: Mapping[tuple[str, GpuKey], float],
) -> None:
    """Gives it to the owner of each row's kind: the job, its user or its account; or to the unit itself."""
    names = {"user": unused.users, "account": unused.accounts}
    for (job, (instance, uuid)), amount in seconds.items():
        name = job if grouping.kind == "job" else names.get(grouping.kind, {}).get(job, "")
        if grouping.is_by_owner and not name:
            continue  # a pod has no job; of a job whose user is not known the time is unattributed
        labels: Labels = (("instance", instance), ("name", name), ("slurm_job", job), ("uuid", uuid))
        grown["held"].totals[labels] = amount
        grown["busy"].totals[labels] = 0.0
        grown["idle_held"].totals[labels] = amount if amount >= IDLE_STRETCH_SECONDS else 0.0


def _add_to_row(
    row: UsageRow, held_seconds: float, amounts: Mapping[str, float | None], *, is_estimate: bool
) -> None:
    row.held += held_seconds / HOUR
    busy, unknown = amounts["busy"], amounts["unknown"]
    row.busy_known += (busy or 0.0) / HOUR
    # Agents of an older version do not count unknown time: they have no busy time there either.
    row.unknown += (held_seconds if busy is None and unknown is None else unknown or 0.0) / HOUR
    # A stretch is counted when it is 15 minutes long; its first minutes may be before the range.
    idle_seconds = max(0.0, held_seconds - (busy or 0.0) - (unknown or 0.0))
    row.idle_held += min(amounts["idle_held"] or 0.0, idle_seconds) / HOUR
    if amounts["energy"] is not None:
        row.add_energy(amounts["energy"] / JOULES_PER_KWH, is_estimate=is_estimate)


def _add_cost(
    row: UsageRow, rates: Rates, model: str, held_seconds: float, amounts: Mapping[str, float | None]
) -> bool:
    """False if the model has no price."""
    price = rates.price(model)
    amount = {"held": held_seconds, "used": amounts["busy"], "kWh": amounts["energy"]}[rates.basis]
    if price is None or amount is None:
        row.unpriced += held_seconds / HOUR
    else:
        row.add_cost(price * amount / (JOULES_PER_KWH if rates.basis == "kWh" else HOUR))
    return price is not None


def _measured_seconds(wall: float, observed: float) -> float:
    """The range of a board begins at its last reading at or before the start: up to an interval earlier."""
    return observed if 0 < observed - wall <= MIN_CLOCK_SECONDS else wall


def _invariant(boards: _Boards, owners: float) -> Invariant:
    observed = boards.observed.totals
    wall = sum(_measured_seconds(one, observed.get(labels, 0.0)) for labels, one in boards.wall.items()) / HOUR
    return Invariant(
        gpu_hours=wall,
        owners=owners,
        # By difference: a node that never saw an owner of this kind counts nothing under it.
        unattributed=max(0.0, boards.held.total / HOUR - owners),
        free=boards.free.total / HOUR,
        lost=max(0.0, wall - boards.observed.total / HOUR),
        stranded=boards.stranded.total / HOUR,
    )


def _to_buckets(buckets: Buckets, boards: _Boards, invariant: Invariant) -> list[UsageBucket]:
    """When the hours of the invariant were.

    What was read at an edge belongs to both sides of it: a reading lies up to an interval before the edge, the
    hour of a roll-up on both sides. So the readings say when, and the invariant says how much.
    """
    held = invariant.owners + invariant.unattributed
    busy = min(held, boards.busy.total / HOUR)
    unknown = min(held - busy, boards.unknown.total / HOUR)
    idle = boards.held.by_bucket - boards.busy.by_bucket - boards.unknown.by_bucket
    hours = {
        "busy": (boards.busy.by_bucket, busy),
        "idle": (np.maximum(0.0, idle), held - busy - unknown),
        "unknown": (boards.unknown.by_bucket, unknown),
        "free": (boards.free.by_bucket, invariant.free),
        "lost": (_lost_by_bucket(boards), invariant.lost),
        "stranded": (boards.stranded.by_bucket, invariant.stranded),
    }
    columns = {
        part: spread_hours(total, shape, boards.wall_by_bucket).tolist()
        for part, (shape, total) in hours.items()
    }
    return [
        UsageBucket(*buckets.edges(number), **{part: column[number] for part, column in columns.items()})
        for number in range(buckets.count)
    ]


def _lost_by_bucket(boards: _Boards) -> Floats:
    """Time is lost from when on it is missing at every later edge: what a neighbour has too much is not."""
    missing = np.cumsum(boards.wall_by_bucket - boards.observed.by_bucket)
    stays_missing = np.maximum(0.0, np.minimum.accumulate(missing[::-1])[::-1])
    lost: Floats = np.diff(stays_missing, prepend=0.0)
    return lost


def spread_hours(hours: float, shape: Floats, otherwise: Floats) -> Floats:
    """Divides the hours as `shape` is, or where it is nothing, as `otherwise` is."""
    for weights in (np.maximum(0.0, shape), otherwise, np.ones(len(shape))):
        if (total := float(weights.sum())) > 0:
            break
    found: Floats = weights * (hours / total)
    return found
