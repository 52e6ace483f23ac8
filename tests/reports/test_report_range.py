"""How a range is written: durations, dates and times of a zone; and buckets that keep to the zone's days."""

from __future__ import annotations

import asyncio
import zoneinfo
from datetime import UTC, datetime, timedelta, tzinfo
from functools import cache
from itertools import pairwise

import numpy as np
import pytest

from gpuscope.base.errors import UsageError
from gpuscope.base.time_text import parse_time_zone, to_local
from gpuscope.judge.reports.board_spans import OBSERVED
from gpuscope.judge.reports.report_range import DAY_MS, HOUR_MS, Buckets, RangePiece, parse_range
from gpuscope.judge.reports.usage.usage_history import UsageHistory
from gpuscope.model.series import Labels, Series
from tests.reports.test_usage import SampleEngine

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOW = datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()


def hours_of(since: str, until: str = "", zone: tzinfo | None = BERLIN) -> float:
    found = parse_range(since, until, NOW, zone)
    return (found.end_ms - found.start_ms) / HOUR_MS


def begin_of(since: str, zone: tzinfo | None = BERLIN) -> str:
    return to_local(parse_range(since, "", NOW, zone).start_ms / 1000, UTC).isoformat()


@pytest.mark.parametrize(
    ("since", "until", "hours"),
    [
        ("2026-10-01", "2026-11-01", 745),
        ("2026-10", "2026-11", 745),
        ("last month", "this month", 745),
        ("2026-03", "2026-04", 743),
        ("2026-10-25", "2026-10-26", 25),
        ("2026-03-29", "2026-03-30", 23),
        ("yesterday", "today", 24),
        ("last-week", "this-week", 168),
        ("2d", "1d", 24),
        ("2026-10-25T00:00", "2026-10-25T12:00", 13),
    ],
)
def test_a_month_with_a_change_of_the_clocks_has_its_hours(since: str, until: str, hours: float) -> None:
    assert hours_of(since, until) == hours


@pytest.mark.parametrize(
    ("since", "begins"),
    [
        ("2026-10", "2026-09-30T22:00:00+00:00"),
        ("2026-11-18", "2026-11-17T23:00:00+00:00"),
        ("2026-10-01T08:00", "2026-10-01T06:00:00+00:00"),
        ("2026-10-01 08:00:30", "2026-10-01T06:00:30+00:00"),
        ("2026-10-01T08:00Z", "2026-10-01T08:00:00+00:00"),
        ("2026-10-01T08:00:00.5-04:00", "2026-10-01T12:00:00.500000+00:00"),
        ("1790000000", "2026-09-21T14:13:20+00:00"),
        ("2026-10-25T02:30", "2026-10-25T00:30:00+00:00"),  # the first of the two
        ("last year", "2024-12-31T23:00:00+00:00"),
        ("Yesterday", "2026-11-16T23:00:00+00:00"),
    ],
)
def test_where_a_range_begins(since: str, begins: str) -> None:
    assert begin_of(since) == begins


def test_a_day_without_a_midnight_begins_when_the_clocks_change() -> None:
    cairo = zoneinfo.ZoneInfo("Africa/Cairo")
    assert hours_of("2026-04-24", "2026-04-25", cairo) == 23
    assert hours_of("2026-04-23", "2026-04-24", cairo) == 24


def test_a_range_ends_now_at_the_latest() -> None:
    assert hours_of("2026-11", "2026-12") == hours_of("2026-11")


@pytest.mark.parametrize(
    ("since", "until", "sentence"),
    [
        ("30", "", "a number without a unit (30d?); for example 7d, 2026-10-01, "),
        ("5x", "", "--since: '5x' is not a duration, date or time; for example 7d, 2026-10-01"),
        ("2026-13", "", "--since: '2026-13' is not in the calendar"),
        ("2026-02-30", "", "'2026-02-30' is not in the calendar"),
        ("2026-10-01T25:00", "", "is not in the calendar"),
        ("2026-12", "", "--since: '2026-12' is 2026-12-01T00:00:00+01:00, which is still to come"),
        ("2026-10", "2026-10", "--until: '2026-10' (2026-10-01T00:00:00+02:00) is not later than --since"),
        (
            "2026-03-29T02:30",
            "",
            "is skipped when the clocks are put forward; for example 2026-03-29T03:30:00+02:00",
        ),
        ("1970-01", "", "days long; at most 3,660 days are read"),
        ("٢٠٢٦-10", "", "not a duration, date or time"),
    ],
)
def test_a_mistake_is_one_sentence_with_an_example(since: str, until: str, sentence: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_range(since, until, NOW, BERLIN, ("--since", "--until"))
    assert sentence in str(error.value)
    assert "\n" not in str(error.value)


def test_a_wrong_zone_is_named() -> None:
    for text in ("Europe/Atlantis", "../../etc/passwd", "Europe", "/etc/localtime"):
        with pytest.raises(ValueError, match="not a time zone such as Europe/Berlin"):
            parse_time_zone(text)


@cache
def zones_that_change() -> list[str]:
    """One zone of each history of offsets in 2026 and 2027, of those that have a change."""
    first = datetime(2025, 12, 31, 12, tzinfo=UTC)
    chosen: dict[tuple[timedelta | None, ...], str] = {}
    for name in sorted(zoneinfo.available_timezones()):
        zone = zoneinfo.ZoneInfo(name)
        offsets = tuple((first + timedelta(one)).astimezone(zone).utcoffset() for one in range(732))
        if len(set(offsets)) > 1:
            chosen.setdefault(offsets, name)
    return list(chosen.values())


@pytest.mark.parametrize("days", [5, 20, 40, 59, 365])
def test_buckets_of_a_day_begin_at_midnight_in_every_zone(days: int) -> None:
    for name in zones_that_change():
        zone = zoneinfo.ZoneInfo(name)
        for month in ("2026-03-01", "2026-10-01", "2026-04-01", "2026-09-15"):
            start = datetime.fromisoformat(month)
            since, until = start.date().isoformat(), (start + timedelta(days)).date().isoformat()
            asked = parse_range(since, until, NOW + 800 * 86_400, zone)
            buckets = Buckets.of(asked.start_ms, asked.end_ms, zone)
            edges = buckets.edges_ms.tolist()
            assert (edges[0], edges[-1]) == (asked.start_ms, asked.end_ms)
            assert all(begin < end for begin, end in pairwise(edges))
            if days > 30:
                times = {to_local(one / 1000, zone).strftime("%H:%M") for one in edges}
                assert times <= {"00:00", "01:00", "00:30"}, (name, times)
            amounts = buckets.spread(edges[0], np.array(edges[1:]), np.diff(edges).astype(float))
            assert amounts.tolist() == np.diff(edges).tolist()
            for unit_ms in (HOUR_MS, DAY_MS):
                parts = list(buckets.equal_parts(RangePiece(edges[0], edges[-1], "hourly"), unit_ms))
                assert sum(part.length_ms for part, _ in parts) == edges[-1] - edges[0]
                assert all(width_ms % unit_ms == 0 for _, width_ms in parts)


def test_buckets_of_an_hour_are_those_of_the_clock() -> None:
    asked = parse_range("2026-10-25", "2026-10-26", NOW, BERLIN)
    assert Buckets.of(asked.start_ms, asked.end_ms, BERLIN).count == 25


@pytest.mark.parametrize(
    "month", [("2026-10", "2026-11"), ("2026-03", "2026-04"), ("2026-10-20", "2026-10-30")]
)
def test_rollups_of_a_month_with_a_change_of_the_clocks_are_in_their_days(month: tuple[str, str]) -> None:
    asked = parse_range(*month, NOW, BERLIN)
    ends_ms = np.arange(asked.start_ms, asked.end_ms + HOUR_MS + 1, HOUR_MS) + 37_000
    name: Labels = (("__name__", OBSERVED.growth_by_hour), ("instance", "n1"), ("uuid", "GPU-1"))
    engine = SampleEngine([Series(name, ends_ms, np.full(len(ends_ms), 3600.0))])
    buckets = Buckets.of(asked.start_ms, asked.end_ms, BERLIN)
    pieces = [RangePiece(asked.start_ms, asked.end_ms, "hourly")]
    grown = asyncio.run(UsageHistory(engine, buckets, pieces, pieces).growth(OBSERVED))
    assert grown.by_bucket == pytest.approx(np.diff(buckets.edges_ms) / 1000)
    assert grown.total == pytest.approx((asked.end_ms - asked.start_ms) / 1000)
