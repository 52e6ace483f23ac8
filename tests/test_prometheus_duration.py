"""Durations in Prometheus' notation, and what settings accept beside it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.base.config_values import parse_config_duration
from gpuscope.base.errors import UsageError
from gpuscope.base.setting_values import parse_duration, parse_positive_duration, with_unit
from gpuscope.base.settings import load_settings
from gpuscope.base.time_text import MAX_MILLISECONDS, duration_text, parse_prometheus_duration
from gpuscope.history.engines.http_engine import read_retention
from gpuscope.serve.api.parameters import parse_duration_ms

HOUR, DAY = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (0, "0s"), (1, "1ms"), (1500, "1s500ms"), (90_000, "1m30s"), (HOUR, "1h"), (24 * HOUR, "1d"),
        (36 * HOUR, "1d12h"), (168 * HOUR, "1w"), (10 * DAY, "10d"), (365 * DAY, "1y"), (730 * DAY, "2y"),
    ],
)  # fmt: skip
def test_a_duration_is_written_as_by_prometheus(milliseconds: int, text: str) -> None:
    assert duration_text(milliseconds) == text
    assert parse_prometheus_duration(text) == milliseconds


@given(st.integers(0, MAX_MILLISECONDS))
def test_what_is_written_can_be_read_everywhere(milliseconds: int) -> None:
    text = duration_text(milliseconds)
    assert parse_prometheus_duration(text) == milliseconds
    assert parse_duration_ms(text) == milliseconds
    assert round(parse_duration(text) * 1000) == round(parse_config_duration(text) * 1000) == milliseconds


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "empty duration string"),
        ("5x", 'unknown unit "x" in duration "5x"'),
        ("1s1m", 'not a valid duration string: "1s1m"'),
        ("1.5h", 'unknown unit "." in duration "1.5h"'),
        ("30", 'not a valid duration string: "30"'),
        ("-5s", 'not a valid duration string: "-5s"'),
        ("١s", 'not a valid duration string: "١s"'),
        ("293y", "duration out of range"),
    ],
)
def test_what_is_no_duration(text: str, why: str) -> None:
    with pytest.raises(ValueError) as error:
        parse_prometheus_duration(text)
    assert str(error.value) == why


@given(st.text("0123456789ywdhms.", max_size=12))
def test_no_place_accepts_what_prometheus_refuses(text: str) -> None:
    """But a bare number of seconds and decimals, in settings."""
    try:
        parse_prometheus_duration(text)
    except ValueError:
        with pytest.raises(ValueError):
            parse_config_duration(text)
        if "." not in text and not text.isdigit():
            with pytest.raises(ValueError):
                parse_duration(text)


def test_settings_also_take_decimals_and_seconds() -> None:
    assert [parse_duration(text) for text in ("0.5", "45", "1.5h", "0.25s")] == [0.5, 45.0, 5400.0, 0.25]
    for text in ("1.5", "nan", "inf", "1e3", "-1", "1.5x", "1.5h30m", " 1s", "293.5y"):
        with pytest.raises(ValueError):
            with_unit(parse_positive_duration)(text)


@pytest.mark.parametrize("text", ["9" * 400, "9" * 400 + ".5h", "293.5y", "293y"])
def test_a_setting_of_more_than_292_years_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="longer than 292 years"):
        parse_duration(text)


def test_a_retention_needs_its_unit_and_may_be_years() -> None:
    assert load_settings({"retention": "1y"}, {}).retention == 365 * 86_400
    assert load_settings({"rollup_retention": "0"}, {}).rollup_retention == 0
    for name in ("retention", "rollup_retention", "session_lifetime"):
        with pytest.raises(UsageError, match=r"'30' is a number without a unit \(30d\?\)"):
            load_settings({name: "30"}, {})


def test_an_engines_retention() -> None:
    assert [read_retention(text) for text in ("15d", "1y or 1GiB", "1y30d", "1GiB", "")] == [
        15 * DAY, 365 * DAY, 395 * DAY, None, None,
    ]  # fmt: skip
