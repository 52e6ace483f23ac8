"""The language in which situations write values over time."""

from __future__ import annotations

import pytest

from tests.judgement.schedules import parse_duration, parse_schedule, parse_time

HOUR = 3600.0


@pytest.mark.parametrize(
    ("text", "begin", "end", "mean"),
    [
        ("0.9", 0, HOUR, 0.9),
        ("0.9 until 1h, 0", 0, 2 * HOUR, 0.45),
        ("0.9 until 1h, 0", HOUR, 2 * HOUR, 0.0),
        ("0.9 until -1h, 0", HOUR, 2 * HOUR, 0.9),
        ("1 for 1m every 5m", 0, HOUR, 0.2),
        ("1 for 1m every 5m", 30, 90, 0.5),
        ("1 pausing 4m every 1h", 0, HOUR, 56 / 60),
        ("1 pausing 4m every 1h", 56 * 60, HOUR, 0.0),
        ("10 to 70", 0, 3 * HOUR, 40.0),
        ("10 to 70", HOUR, HOUR, 30.0),
        ("0 until 1h, 10 to 30 until 2h, 30", 1.5 * HOUR, 1.5 * HOUR, 20.0),
    ],
)
def test_means(text: str, begin: float, end: float, mean: float) -> None:
    assert parse_schedule(text, 3 * HOUR).mean(begin, end) == pytest.approx(mean, abs=0.001)


@pytest.mark.parametrize("text", ["0.9 until 1h", "much", "0.9, 0", "1 for 1m", ""])
def test_what_is_not_a_schedule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a schedule"):
        parse_schedule(text, HOUR)


def test_times() -> None:
    assert parse_duration("1h30m") == 5400
    assert parse_time("-30s", HOUR) == 3570
    assert parse_time("end", HOUR) == HOUR
    with pytest.raises(ValueError, match="without a unit"):
        parse_duration(5)
