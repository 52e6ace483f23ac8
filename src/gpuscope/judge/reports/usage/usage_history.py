"""Growth of the usage counters in the range of a report, from samples, roll-ups or both.

An engine may limit the samples of a query: a piece that it refuses is read in halves, down to an hour. What it
still refuses is `PieceRefused`; the report leaves that part of the range out and names it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Literal

import numpy as np

from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import EngineBadQuery, EngineQueryError, QueryEngine
from gpuscope.history.promql.frame import Floats
from gpuscope.judge.reports.counter_growth import counter_growth, with_matcher, without_name
from gpuscope.judge.reports.gpu_reporters import ALL_REPORTERS, GpuReporters, uuid_matcher
from gpuscope.judge.reports.report_range import DAY_MS, HOUR_MS, MINUTE_MS, Buckets, RangePiece
from gpuscope.judge.rules.shipped.rule_files import DAILY_EVALUATED, HOURLY_EVALUATED, RolledUpCounter
from gpuscope.model.series import Labels

HistorySource = Literal["auto", "samples", "rollups"]
SAMPLES_ONLY_MS: Final = 6 * HOUR_MS
"""A shorter range is read from samples: that is fast, and needs nothing else."""
MAX_STEPS: Final = 10_000
"""Prometheus answers with at most 11,000 points of a series."""


@dataclass(frozen=True, slots=True)
class RollupHours:
    """Times of the evaluations, ascending. Each hourly one covers the hour before it, in whole minutes."""

    hourly: Sequence[int] = ()
    daily: Sequence[int] = ()


async def read_rollup_hours(engine: QueryEngine, start_ms: int, end_ms: int) -> RollupHours:
    return RollupHours(
        await _evaluations(engine, HOURLY_EVALUATED, HOUR_MS, start_ms, end_ms),
        await _evaluations(engine, DAILY_EVALUATED, DAY_MS, start_ms, end_ms),
    )


async def _evaluations(engine: QueryEngine, marker: str, step_ms: int, start_ms: int, end_ms: int) -> list[int]:
    found: set[int] = set()
    at_ms = start_ms
    while at_ms < end_ms:
        until_ms = min(end_ms, at_ms + MAX_STEPS * step_ms)
        expression = f"last_over_time({marker}[{duration_text(step_ms)}])"
        matrix = await engine.range(expression, at_ms + step_ms, until_ms + step_ms, step_ms)
        if len(matrix.labels) > 1:
            return []  # several evaluators with hours of their own: their sums would not agree
        for values, present in zip(matrix.values, matrix.present, strict=True):
            found |= {round(value * 1000) for value in values[present].tolist()}
        at_ms = until_ms
    return sorted(found)


def plan_pieces(
    start_ms: int, end_ms: int, hours: RollupHours, source: HistorySource, *, with_daily: bool
) -> list[RangePiece]:
    """Roll-ups where there are any, samples for the rest. With `rollups` only whole hours of them."""
    if source == "samples" or (source == "auto" and end_ms - start_ms <= SAMPLES_ONLY_MS):
        return [RangePiece(start_ms, end_ms, "samples")]
    rolled_up = list(_rollup_pieces(start_ms, end_ms, hours, with_daily=with_daily))
    if source == "rollups":
        return rolled_up
    pieces: list[RangePiece] = []
    at_ms = start_ms
    for piece in rolled_up:
        if piece.start_ms > at_ms:
            pieces.append(RangePiece(at_ms, piece.start_ms, "samples"))
        pieces.append(piece)
        at_ms = piece.end_ms
    if at_ms < end_ms:
        pieces.append(RangePiece(at_ms, end_ms, "samples"))
    return pieces


def _covered_until(evaluated_ms: int) -> int:
    return evaluated_ms // MINUTE_MS * MINUTE_MS


def _rollup_pieces(start_ms: int, end_ms: int, hours: RollupHours, *, with_daily: bool) -> Iterable[RangePiece]:
    ends = [_covered_until(one) for one in hours.hourly]
    ends = [end for end in ends if end - HOUR_MS >= start_ms and end <= end_ms]
    for first_ms, last_ms in _runs(ends):
        yield from _with_days(first_ms, last_ms, hours if with_daily else RollupHours())


def _runs(ends: Sequence[int]) -> Iterable[tuple[int, int]]:
    """Start and end of consecutive hours; a missed evaluation ends a run."""
    begin = previous = None
    for end in ends:
        if previous is None or end - previous != HOUR_MS:
            if begin is not None and previous is not None:
                yield begin, previous
            begin = end - HOUR_MS
        previous = end
    if begin is not None and previous is not None:
        yield begin, previous


def _with_days(start_ms: int, end_ms: int, hours: RollupHours) -> Iterable[RangePiece]:
    """A run of hours with its whole days. A day's roll-up has the 24 hours evaluated in the day before it."""
    at_ms = first_day_ms = start_ms
    for day_ms in hours.daily:
        number = bisect_right(hours.hourly, day_ms)
        day_end_ms = _covered_until(hours.hourly[number - 1]) if number else start_ms
        if day_end_ms - DAY_MS < at_ms or day_end_ms > end_ms:
            continue
        if day_end_ms - DAY_MS > at_ms:
            if at_ms > first_day_ms:
                yield RangePiece(first_day_ms, at_ms, "daily")
            yield RangePiece(at_ms, day_end_ms - DAY_MS, "hourly")
            first_day_ms = day_end_ms - DAY_MS
        at_ms = day_end_ms
    if at_ms > first_day_ms:
        yield RangePiece(first_day_ms, at_ms, "daily")
    if at_ms < end_ms:
        yield RangePiece(at_ms, end_ms, "hourly")


MIN_PIECE_MS: Final = HOUR_MS


class PieceRefused(Exception):
    """Not an error: the report goes on without the piece."""

    def __init__(self, piece: RangePiece, reason: str) -> None:
        super().__init__(reason)
        self.piece = piece


def halves(piece: RangePiece, error: EngineQueryError) -> tuple[RangePiece, RangePiece]:
    """Of a piece that the engine refused with `error`. Raises PieceRefused for an hour."""
    # Whole hours, as roll-ups have; days are not halved: they are small.
    half_ms = piece.length_ms // 2 // HOUR_MS * HOUR_MS
    if piece.length_ms <= MIN_PIECE_MS or not half_ms or piece.source == "daily":
        raise PieceRefused(piece, str(error)) from error
    middle_ms = piece.start_ms + half_ms
    return replace(piece, end_ms=middle_ms), replace(piece, start_ms=middle_ms)


@dataclass(slots=True)
class RangeGrowth:
    """Growth over all pieces: by series, and of all series together by bucket."""

    by_bucket: Floats
    totals: dict[Labels, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def total(self) -> float:
        return sum(self.totals.values())


@dataclass(frozen=True, slots=True)
class UsageHistory:
    """A range in pieces. `daily_pieces` are for counters by owner, where neither GPU nor node is needed."""

    engine: QueryEngine
    buckets: Buckets
    pieces: Sequence[RangePiece]
    daily_pieces: Sequence[RangePiece]
    reporters: GpuReporters = ALL_REPORTERS

    async def growth(
        self, counter: RolledUpCounter, matchers: str = "", *, by_owner_only: bool = False
    ) -> RangeGrowth:
        """`matchers` is the inside of a selector's braces."""
        found = RangeGrowth(self.buckets.zeros())
        # A day's roll-up has no GPUs: what two reporters have of one is in it twice.
        for piece in self.daily_pieces if by_owner_only and not self.reporters.turns else self.pieces:
            await self._add(found, counter, matchers, piece)
        return found

    async def _add(
        self, found: RangeGrowth, counter: RolledUpCounter, matchers: str, piece: RangePiece
    ) -> None:
        try:
            if piece.source == "samples":
                await self._add_samples(found, counter, matchers, piece)
            else:
                await self._add_rollups(found, counter, matchers, piece)
        except EngineBadQuery:
            raise
        except EngineQueryError as error:
            for half in halves(piece, error):
                await self._add(found, counter, matchers, half)

    async def _add_samples(
        self, found: RangeGrowth, counter: RolledUpCounter, matchers: str, piece: RangePiece
    ) -> None:
        selector = f"{counter.raw}{{{matchers}}}"
        grown = await counter_growth(self.engine, selector, piece.start_ms, piece.end_ms, self.reporters)
        for labels, total in zip(grown.labels, grown.totals.tolist(), strict=True):
            found.totals[labels] += total
        by_chunk: Floats = grown.by_chunk.sum(axis=0)
        found.by_bucket += self.buckets.spread(grown.chunks.start_ms, grown.chunk_ends_ms, by_chunk)

    async def _add_rollups(
        self, found: RangeGrowth, counter: RolledUpCounter, matchers: str, piece: RangePiece
    ) -> None:
        is_daily = piece.source == "daily"
        name = counter.growth_by_day if is_daily else counter.growth_by_hour
        # An hour is evaluated within the minute after its end, a day within the hour after it.
        late_ms = HOUR_MS if is_daily else MINUTE_MS
        selector = f"{name}{{{matchers}}}"
        at_ms = piece.end_ms + late_ms
        sums = await self.engine.instant(f"sum_over_time({selector}[{duration_text(piece.length_ms)}])", at_ms)
        changing = self.reporters.changing(piece.start_ms, piece.end_ms)
        read: dict[Labels, float] = {
            without_name(labels): value
            for labels, value in zip(sums.labels, sums.values.tolist(), strict=True)
            if self._counts(labels, piece, changing)
        }
        by_bucket = await self._rollups_by_bucket(selector, piece, late_ms, changing)
        if changing:
            by_bucket += await self._add_changing(read, with_matcher(selector, uuid_matcher(changing)), piece)
        for labels, value in read.items():
            found.totals[labels] += value
        found.by_bucket += by_bucket

    def _counts(self, labels: Labels, piece: RangePiece, changing: Collection[str]) -> bool:
        """Whether a series counts in the whole piece."""
        turns = self.reporters.turns_of(labels)
        if turns is None:
            return True
        if dict(labels).get("uuid", "") in changing:
            return False
        return any(turn.start_ms < piece.end_ms and turn.end_ms > piece.start_ms for turn in turns)

    async def _add_changing(self, read: dict[Labels, float], selector: str, piece: RangePiece) -> Floats:
        """GPUs whose reporter changes, hour by hour; returns their growth by bucket. The hour in which a GPU is
        moved has a part of each reporter."""
        start_ms, end_ms = piece.start_ms + HOUR_MS + MINUTE_MS, piece.end_ms + MINUTE_MS
        matrix = await self.engine.range(f"sum_over_time({selector}[1h])", start_ms, end_ms, HOUR_MS)
        ends_ms = matrix.times_ms - MINUTE_MS
        amounts = np.zeros(len(ends_ms))
        for labels, values, present in zip(matrix.labels, matrix.values, matrix.present, strict=True):
            counted = np.zeros(len(ends_ms), dtype=np.bool_)
            for turn in self.reporters.turns_of(labels) or ():
                counted |= turn.overlaps(ends_ms - HOUR_MS, ends_ms)
            if not (present & counted).any():
                continue
            grown = np.where(present & counted, values, 0.0)
            read[without_name(labels)] = float(grown.sum())
            amounts += grown
        return self.buckets.spread(piece.start_ms, ends_ms, amounts)

    async def _rollups_by_bucket(
        self, selector: str, piece: RangePiece, late_ms: int, changing: Collection[str]
    ) -> Floats:
        """In steps of a bucket from the start of the piece; without GPUs whose reporter changes."""
        unit_ms = DAY_MS if piece.source == "daily" else HOUR_MS
        by_bucket = self.buckets.zeros()
        for part, width_ms in self.buckets.equal_parts(piece, unit_ms):
            by_bucket += await self._rollups_of_part(selector, part, width_ms, late_ms, changing)
        return by_bucket

    async def _rollups_of_part(
        self, selector: str, part: RangePiece, width_ms: int, late_ms: int, changing: Collection[str]
    ) -> Floats:
        by = " by (instance, job, uuid)" if self.reporters.turns else ""
        whole, rest_ms = divmod(part.length_ms, width_ms)
        amounts = np.zeros(whole + 1)
        if whole:
            matrix = await self.engine.range(
                f"sum{by} (sum_over_time({selector}[{duration_text(width_ms)}]))",
                part.start_ms + width_ms + late_ms,
                part.start_ms + whole * width_ms + late_ms,
                width_ms,
            )
            counted = [self._counts(labels, part, changing) for labels in matrix.labels]
            amounts[:whole] = np.where(matrix.present, matrix.values, 0.0)[counted].sum(axis=0)
        if rest_ms:
            expression = f"sum{by} (sum_over_time({selector}[{duration_text(rest_ms)}]))"
            rest = await self.engine.instant(expression, part.end_ms + late_ms)
            amounts[whole] = rest.values[[self._counts(labels, part, changing) for labels in rest.labels]].sum()
        ends_ms = np.minimum(part.start_ms + width_ms * np.arange(1, whole + 2), part.end_ms)
        return self.buckets.spread(part.start_ms, ends_ms, amounts)
