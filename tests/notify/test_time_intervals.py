"""When a time interval holds."""

from __future__ import annotations

from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from gpuscope.notify.time_intervals import (
    TimeInterval,
    parse_clock_range,
    parse_days_of_month,
    parse_months,
    parse_weekdays,
    parse_years,
    parse_zone,
)


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("interval", "moment", "holds"),
    [
        (TimeInterval(times=(parse_clock_range("09:00", "17:00"),)), "2026-11-16T09:00", True),
        (TimeInterval(times=(parse_clock_range("09:00", "17:00"),)), "2026-11-16T16:59:59", True),
        (TimeInterval(times=(parse_clock_range("09:00", "17:00"),)), "2026-11-16T17:00", False),
        (TimeInterval(times=(parse_clock_range("00:00", "24:00"),)), "2026-11-16T23:59", True),
        (TimeInterval(weekdays=(parse_weekdays("monday:friday"),)), "2026-11-16T00:00", True),
        (TimeInterval(weekdays=(parse_weekdays("Saturday"), (0, 0))), "2026-11-15T00:00", True),
        (TimeInterval(weekdays=(parse_weekdays("monday:friday"),)), "2026-11-15T00:00", False),
        (TimeInterval(days_of_month=(parse_days_of_month("-1"),)), "2028-02-29T00:00", True),
        (TimeInterval(days_of_month=(parse_days_of_month("-1"),)), "2028-02-28T00:00", False),
        (TimeInterval(days_of_month=(parse_days_of_month("29:31"),)), "2026-02-28T00:00", False),
        (TimeInterval(days_of_month=(parse_days_of_month("25:31"),)), "2026-02-28T00:00", True),
        (TimeInterval(months=(parse_months("may:august"),)), "2026-08-31T00:00", True),
        (TimeInterval(months=(parse_months("5"),)), "2026-06-01T00:00", False),
        (TimeInterval(years=(parse_years("2025:2026"),)), "2026-12-31T23:59", True),
        (TimeInterval(times=(parse_clock_range("09:00", "10:00"),), zone=parse_zone("Europe/Berlin")),
         "2026-07-01T07:30", True),
        (TimeInterval(times=(parse_clock_range("09:00", "10:00"),), weekdays=(parse_weekdays("tuesday"),)),
         "2026-11-16T09:30", False),
        (TimeInterval(), "2026-11-16T09:30", True),
    ],
)  # fmt: skip
def test_contains(interval: TimeInterval, moment: str, holds: bool) -> None:
    assert interval.contains(at(moment)) is holds


def test_zones() -> None:
    assert parse_zone("Europe/Berlin") == ZoneInfo("Europe/Berlin")
    assert parse_zone("UTC") is UTC


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_weekdays, "friday:monday"),
        (parse_weekdays, "someday"),
        (parse_days_of_month, "0"),
        (parse_days_of_month, "32"),
        (parse_days_of_month, "-1:5"),
        (parse_days_of_month, "10:5"),
        (parse_months, "13"),
        (parse_months, "smarch"),
        (parse_years, "2026:2025"),
        (parse_years, "1:2:3"),
        (parse_zone, "Mars/Olympus"),
        (parse_zone, "../etc/passwd"),
        (lambda text: parse_clock_range("10:00", text), "09:00"),
        (lambda text: parse_clock_range("10:00", text), "25:00"),
    ],
)
def test_mistakes(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(ValueError, match=r"is|before"):
        parse(text)
