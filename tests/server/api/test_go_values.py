"""Texts as Go reads and writes them; the differential test asks a real Prometheus the same."""

from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.promql.labels import quote
from gpuscope.serve.api.parameters import (
    parse_bool,
    parse_duration_ms,
    parse_float,
    parse_int,
    parse_time_ms,
    unescape_name,
)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0), ("0.0005", 1), ("-1.5", -1500), ("1_000", 1_000_000), ("0x1p4", 16_000),
        ("1e3", 1_000_000),
        ("1970-01-01T00:00:01.9999Z", 1999), ("1969-12-31T23:59:59.5Z", -500), ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01T00:00:00,25Z", 250), ("-292273086-05-16T16:47:06Z", -9223309901257974000),
    ],
)  # fmt: skip
def test_times(text: str, milliseconds: int) -> None:
    assert parse_time_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text",
    ["", " 1", "1 ", "1__0", "_1", "NaN", "Inf", "1e400", "2023-11-14", "1970-02-30T00:00:00Z", "１", "1e16"],
)
def test_no_times(text: str) -> None:
    with pytest.raises(ValueError, match=r"^cannot parse .* to a valid timestamp$"):
        parse_time_ms(text)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("1", 1000), ("1.9999", 1999), ("-1.9999", -1999), ("1h30m", 5_400_000), ("500ms", 500), ("0s", 0),
     ("1y", 31_536_000_000)],
)  # fmt: skip
def test_durations(text: str, milliseconds: int) -> None:
    assert parse_duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    "text", ["", "30m1h", "m", "1.5h", "300y", "９m", "Inf", "NaN", "1e300", "-1m", "9" * 30 + "s"]
)
def test_no_durations(text: str) -> None:
    with pytest.raises(ValueError, match=r"^cannot parse .* to a valid duration"):
        parse_duration_ms(text)


def test_numbers() -> None:
    assert [parse_int(text) for text in ("0", "-0", "+007", "-12", "9223372036854775807")] == [
        0,
        0,
        7,
        -12,
        2**63 - 1,
    ]
    with pytest.raises(ValueError, match=r'^strconv.Atoi: parsing "x": invalid syntax$'):
        parse_int("x")
    with pytest.raises(ValueError, match=r'^strconv.ParseInt: parsing "2147483648": value out of range$'):
        parse_int("2147483648", bits=32, by="ParseInt")
    assert parse_float("+nan") is None
    assert parse_float("-inf") == -math.inf
    assert parse_bool("T")
    with pytest.raises(ValueError, match="ParseBool"):
        parse_bool("yes")


@pytest.mark.parametrize(
    ("escaped", "name"),
    [("U__a_2e_b", "a.b"), ("U__a__b", "a_b"), ("U__", ""), ("node", "node"), ("U__a_zz_", "U__a_zz_"),
     ("U__a_d800_", "U__a_d800_"), ("U___1f600_", "\N{GRINNING FACE}")],
)  # fmt: skip
def test_names_in_paths(escaped: str, name: str) -> None:
    assert unescape_name(escaped) == name


def test_quoting() -> None:
    assert quote('a"\\\n\x00é\u200b\udcff') == '"a\\"\\\\\\n\\x00é\\u200b\\xff"'


@given(st.text(max_size=20))
def test_any_text_is_a_value_or_a_value_error(text: str) -> None:
    for parse in (parse_time_ms, parse_duration_ms, parse_int, parse_bool):
        with contextlib.suppress(ValueError):
            parse(text)
    parse_float(text)
    unescape_name("U__" + text)
    assert quote(text).startswith('"')


@given(st.text(max_size=12))
def test_an_escaped_name_is_found_again(name: str) -> None:
    encoded = "".join(
        one.replace("_", "__") if one.isascii() and (one.isalnum() or one == "_") else f"_{ord(one):x}_"
        for one in name
    )
    if not any("\ud800" <= one <= "\udfff" for one in name):
        assert unescape_name("U__" + encoded) == name
