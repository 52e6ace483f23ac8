"""Which hours and days of a range have roll-ups, and the pieces that a report is then read in."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from gpuscope.base.time_text import duration_text
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.reports.report_range import DAY_MS, HOUR_MS, MINUTE_MS, RangePiece
from gpuscope.judge.rules.shipped.rule_files import DAILY_EVALUATED, HOURLY_EVALUATED

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
