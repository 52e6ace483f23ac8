"""When a time interval holds."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpuscope.judge.notify.alert_routes import (
    TimeInterval,
    parse_clock_range,
    parse_days_of_month,
    parse_months,
    parse_weekdays,
    parse_years,
    parse_zone,
)
from gpuscope.judge.notify.alerting_config import load_alerting


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


BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("interval", "moment", "holds"),
    [
        # 2026-03-29: 02:00 becomes 03:00, so that 02:30 does not exist.
        (TimeInterval(times=(parse_clock_range("02:00", "03:00"),), zone=BERLIN), "2026-03-29T00:59", False),
        (TimeInterval(times=(parse_clock_range("02:00", "03:00"),), zone=BERLIN), "2026-03-29T01:00", False),
        (TimeInterval(times=(parse_clock_range("03:00", "04:00"),), zone=BERLIN), "2026-03-29T01:00", True),
        # 2026-10-25: 03:00 becomes 02:00, so that 02:30 is twice.
        (TimeInterval(times=(parse_clock_range("02:30", "02:31"),), zone=BERLIN), "2026-10-25T00:30", True),
        (TimeInterval(times=(parse_clock_range("02:30", "02:31"),), zone=BERLIN), "2026-10-25T01:30", True),
        # March has an hour less there. Alertmanager takes that for 30 days.
        (TimeInterval(days_of_month=(parse_days_of_month("-1"),), zone=BERLIN), "2026-03-31T12:00", True),
        (TimeInterval(days_of_month=(parse_days_of_month("-1"),), zone=BERLIN), "2026-03-30T12:00", False),
        # Weekday, day, month and year are those of the zone too.
        (TimeInterval(weekdays=(parse_weekdays("monday"),), zone=BERLIN), "2026-11-15T23:00", True),
        (TimeInterval(days_of_month=(parse_days_of_month("1"),), zone=BERLIN), "2026-12-31T23:00", True),
        (TimeInterval(years=(parse_years("2027"),), months=(parse_months("1"),), zone=BERLIN),
         "2026-12-31T23:00", True),
    ],
)  # fmt: skip
def test_a_zone_with_summer_time(interval: TimeInterval, moment: str, holds: bool) -> None:
    assert interval.contains(at(moment)) is holds


@pytest.fixture
def in_berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_berlin")
def test_the_local_zone_has_summer_and_winter_time() -> None:
    nine = TimeInterval(times=(parse_clock_range("09:00", "10:00"),), zone=parse_zone("Local"))
    assert [nine.contains(at(moment)) for moment in ("2026-07-01T07:30", "2026-07-01T08:30")] == [True, False]
    assert [nine.contains(at(moment)) for moment in ("2026-01-01T07:30", "2026-01-01T08:30")] == [False, True]


@pytest.mark.parametrize("key", ["times", "weekdays", "days_of_month", "months", "years"])
def test_an_empty_list_never_holds_and_an_empty_key_always(key: str, tmp_path: Path) -> None:
    path = tmp_path / "alertmanager.yml"
    path.write_text(
        "route: {receiver: a}\nreceivers: [{name: a}]\ntime_intervals:\n"
        f"- {{name: never, time_intervals: [{{{key}: []}}]}}\n"
        f"- {{name: always, time_intervals: [{{{key}: }}]}}\n"
    )
    intervals = load_alerting(path).time_intervals
    assert [intervals[name][0].contains(at("2026-11-16T09:30")) for name in ("never", "always")] == [
        False,
        True,
    ]


def test_zones() -> None:
    assert parse_zone("Europe/Berlin") == ZoneInfo("Europe/Berlin")
    assert parse_zone("UTC") is UTC


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_weekdays, "friday:monday"),
        (parse_weekdays, "someday"),
        (parse_weekdays, " monday"),
        (parse_weekdays, "monday : friday"),
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
