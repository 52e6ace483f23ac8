"""The time range of a report: how it is written, the buckets of its plot, and the pieces it is read in.

A range is written as durations before now (`7d`), as dates and times of a time zone (`2026-10`, `yesterday`,
`2026-10-01T08:00`), as RFC 3339 or as seconds since the epoch. It is half-open: a date is the beginning of its
day, so October is `2026-10` to `2026-11`. A piece is read from samples, from hourly or from daily roll-ups.
Pieces are in order and do not overlap; a hole between two is a part of the range that the engine refused.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, tzinfo
from itertools import pairwise
from typing import Final, Literal

import numpy as np

from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_positive_duration, with_unit
from gpuscope.base.time_text import from_local, is_skipped, local_text, parse_rfc3339, start_of_day, to_local
from gpuscope.history.promql.frame import Floats, Ints

MINUTE_MS: Final = 60_000
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS
HOUR: Final = 3600.0
"""In seconds."""
JOULES_PER_KWH: Final = 3.6e6
MAX_RANGE_MS: Final = 3_660 * DAY_MS
"""Ten years: a longer range is a slip, and takes a query for each of its years."""
MAX_BUCKETS: Final = 60
_BUCKET_WIDTHS: Final = (
    5 * MINUTE_MS, 15 * MINUTE_MS, HOUR_MS, 3 * HOUR_MS, 6 * HOUR_MS, 12 * HOUR_MS, DAY_MS, 7 * DAY_MS,
    30 * DAY_MS,
)  # fmt: skip

PieceSource = Literal["samples", "hourly", "daily"]


_EXAMPLES: Final = "7d, 2026-10-01, 2026-10-01T08:00, yesterday or last month"
_SECONDS: Final = re.compile(r"\d{9,11}(\.\d{1,9})?", re.ASCII)
"""Since the epoch: a shorter number is a duration that lacks its unit."""
_MONTH: Final = re.compile(r"(\d{4})-(\d{2})", re.ASCII)
_DAY: Final = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_LOCAL: Final = re.compile(r"(\d{4}-\d{2}-\d{2})[T ](\d{2}:\d{2}(?::\d{2})?)", re.ASCII)
_OFFSET: Final = re.compile(r"\d{4}-\d{2}-\d{2}[Tt ].+(?:[Zz]|[+-]\d{2}:\d{2})", re.ASCII)


@dataclass(frozen=True, slots=True)
class ReportRange:
    """From `start_ms`, up to and without `end_ms`."""

    start_ms: int
    end_ms: int


def parse_range(
    since: str, until: str, now: float, zone: tzinfo | None = UTC, names: tuple[str, str] = ("since", "until")
) -> ReportRange:
    """An empty `until` is now; a later end than now is now too, because what is to come is not lost.

    A mistake is a UsageError of one sentence; `names` are what the user calls the two.
    """
    start = parse_time(since, now, zone, names[0])
    end = parse_time(until, now, zone, names[1]) if until else now
    if start >= now:
        raise UsageError(f"{names[0]}: {since!r} is {local_text(int(start), zone)}, which is still to come")
    if start >= end:
        if not until:
            raise UsageError(f"{names[0]}: {since!r} is not before now")
        begins, ends = (local_text(int(moment), zone) for moment in (start, end))
        raise UsageError(
            f"{names[1]}: {until!r} ({ends}) is not later than {names[0]} {since!r} ({begins}); "
            "the range ends where the day or month that until names begins"
        )
    found = ReportRange(round(start * 1000), round(min(end, now) * 1000))
    if found.end_ms - found.start_ms > MAX_RANGE_MS:
        days, most = (found.end_ms - found.start_ms) / DAY_MS, MAX_RANGE_MS // DAY_MS
        raise UsageError(f"the range is {days:,.0f} days long; at most {most:,} days are read")
    return found


def parse_time(text: str, now: float, zone: tzinfo | None, name: str) -> float:
    """Seconds since the epoch of one end of a range."""
    shown = f"{name}: {text[:100]!r}"
    try:
        if _SECONDS.fullmatch(text):
            return float(text)
        if (found := _calendar_time(text, now, zone)) is not None:
            return found
    except (ValueError, OverflowError):
        raise UsageError(f"{shown} is not in the calendar; for example {_EXAMPLES}") from None
    if (local := _LOCAL.fullmatch(text)) is not None:
        moment = datetime.fromisoformat(f"{local[1]}T{local[2]}")
        after = local_text(from_local(moment, zone), zone)
        raise UsageError(f"{shown} is skipped when the clocks are put forward; for example {after}")
    try:
        return now - with_unit(parse_positive_duration)(text)
    except ValueError as error:
        reason = "not a duration, date or time" if str(error) == "not a duration" else str(error)
        raise UsageError(f"{shown} is {reason}; for example {_EXAMPLES}") from None


def _calendar_time(text: str, now: float, zone: tzinfo | None) -> float | None:
    """None if it is not written as a date or time, or is a local time that the clocks skip."""
    today = to_local(now, zone).date()
    words = text.lower().replace("-", " ").replace("_", " ")
    if words == "now":
        return now
    if (day := _named_days(today).get(words)) is not None:
        return start_of_day(day, zone)
    if (month := _MONTH.fullmatch(text)) is not None:
        return start_of_day(date(int(month[1]), int(month[2]), 1), zone)
    if _DAY.fullmatch(text):
        return start_of_day(date.fromisoformat(text), zone)
    if (local := _LOCAL.fullmatch(text)) is not None:
        moment = datetime.fromisoformat(f"{local[1]}T{local[2]}")
        return None if is_skipped(moment, zone) else from_local(moment, zone)
    return parse_rfc3339(text.upper()) if _OFFSET.fullmatch(text) else None


def _named_days(today: date) -> dict[str, date]:
    """The first day of each. A week begins on Monday."""
    week, month, year = today - timedelta(today.weekday()), today.replace(day=1), today.replace(month=1, day=1)
    return {
        "today": today,
        "yesterday": today - timedelta(1),
        "this week": week,
        "last week": week - timedelta(7),
        "this month": month,
        "last month": (month - timedelta(1)).replace(day=1),
        "this year": year,
        "last year": (year - timedelta(1)).replace(month=1, day=1),
    }


@dataclass(frozen=True, slots=True)
class RangePiece:
    """After `start_ms`, up to and including `end_ms`."""

    start_ms: int
    end_ms: int
    source: PieceSource

    @property
    def length_ms(self) -> int:
        return self.end_ms - self.start_ms


@dataclass(frozen=True, slots=True)
class Buckets:
    """Equal parts of a range, the last one shorter. Those of more than an hour keep to the local time of the
    range's start: a day is 23 to 25 hours long when the clocks are changed."""

    edges_ms: Ints

    @classmethod
    def of(cls, start_ms: int, end_ms: int, zone: tzinfo | None = UTC) -> Buckets:
        wanted = (end_ms - start_ms) / MAX_BUCKETS
        width_ms = next((one for one in _BUCKET_WIDTHS if one >= wanted), -(-int(wanted) // DAY_MS) * DAY_MS)
        inner = _equal_edges if width_ms <= HOUR_MS else _local_edges
        between = {at_ms for at_ms in inner(start_ms, end_ms, width_ms, zone) if start_ms < at_ms < end_ms}
        return cls(np.array(sorted({start_ms, end_ms} | between), dtype=np.int64))

    @property
    def count(self) -> int:
        return len(self.edges_ms) - 1

    def edges(self, number: int) -> tuple[int, int]:
        return int(self.edges_ms[number]), int(self.edges_ms[number + 1])

    def equal_parts(self, piece: RangePiece, unit_ms: int) -> Iterator[tuple[RangePiece, int]]:
        """The piece in parts in which the buckets have one width, and that width; both in whole units."""
        widths = np.diff(self.edges_ms)
        changes = self.edges_ms[1:-1][widths[1:] != widths[:-1]]
        if len(changes) and widths[-1] < widths[-2]:
            changes = changes[:-1]  # the last bucket: what remains
        units = np.unique((changes - piece.start_ms) // unit_ms)
        cuts = [piece.start_ms + int(unit) * unit_ms for unit in units]
        inside = [cut for cut in cuts if piece.start_ms < cut < piece.end_ms]
        for start_ms, end_ms in pairwise([piece.start_ms, *inside, piece.end_ms]):
            bucket = int(np.searchsorted(self.edges_ms, (start_ms + end_ms) // 2, side="right")) - 1
            width_ms = int(widths[min(max(bucket, 0), self.count - 1)])
            yield RangePiece(start_ms, end_ms, piece.source), max(1, width_ms // unit_ms) * unit_ms

    def spread(self, start_ms: int, ends_ms: Ints, amounts: Floats) -> Floats:
        """Amounts of consecutive steps from `start_ms` on; a step over two buckets is divided between them."""
        times = np.concatenate([[start_ms], ends_ms]).astype(np.float64)
        sums = np.concatenate([[0.0], np.cumsum(amounts)])
        by_bucket: Floats = np.diff(np.interp(self.edges_ms.astype(np.float64), times, sums))
        return by_bucket

    def zeros(self) -> Floats:
        return np.zeros(self.count)

    def overlap_ms(self, start_ms: int, end_ms: int) -> Floats:
        """How much of each bucket is between the two times."""
        starts, ends = self.edges_ms[:-1], self.edges_ms[1:]
        overlap: Floats = np.clip(np.minimum(ends, end_ms) - np.maximum(starts, start_ms), 0, None)
        return overlap.astype(np.float64)


def _equal_edges(start_ms: int, end_ms: int, width_ms: int, zone: tzinfo | None) -> Iterator[int]:
    yield from range(start_ms, end_ms, width_ms)


def _local_edges(start_ms: int, end_ms: int, width_ms: int, zone: tzinfo | None) -> Iterator[int]:
    begin = to_local(start_ms / 1000, zone).replace(tzinfo=None)
    # One more than fit: a change of the clocks may make the range an hour longer.
    for number in range(1, (end_ms - start_ms) // width_ms + 2):
        yield round(from_local(begin + number * timedelta(milliseconds=width_ms), zone) * 1000)


DIGEST_HOUR: Final = 6
"""Of the day after a period, when its usage report is mailed."""
MAX_LATE: Final = 7
"""Reports that are sent late, after a downtime or while the mail server did not answer: the newest."""


def last_due(now: float, every: str, zone: tzinfo | None) -> date:
    """The day after the last period whose report is due. A week begins on Monday. A period is named by a day of
    the zone's calendar: an instant would move with the clocks, and its report would be mailed again."""
    today = to_local(now, zone).date()
    due = period_end(today, every)
    if from_local(datetime.combine(due, time(DIGEST_HOUR)), zone) > now:
        due = period_end(due - timedelta(1), every)
    return due


def next_digest(now: float, every: str, zone: tzinfo | None, sent: Collection[date]) -> date | None:
    """The oldest report that is due and not sent; None if there is none, or if the clock is before all sent."""
    due = last_due(now, every, zone)
    waiting: list[date] = []
    while due not in sent and len(waiting) < MAX_LATE and any(day < due for day in sent):
        waiting.append(due)
        due = period_end(due - timedelta(1), every)
    return waiting[-1] if waiting else None


def digest_range(due: date, every: str, zone: tzinfo | None) -> tuple[float, float]:
    """The day, week or month before, from midnight to midnight, in seconds since the epoch."""
    return start_of_day(period_end(due - timedelta(1), every), zone), start_of_day(due, zone)


def period_end(day: date, every: str) -> date:
    """The last day on which a period ended, at its beginning; `day` may be it."""
    if every == "week":
        return day - timedelta(day.weekday())
    return day.replace(day=1) if every == "month" else day
