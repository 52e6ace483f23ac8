"""Reading a scrape by its difference from the last one gives what parsing all of it gives, or nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.model.exposition.parser import LastScrape, ParseError, SeriesCache

TEXT = '# TYPE a gauge\na{x="1 2"} 1\n\nb 2\nc{y="#"} 3.5e3\n'


def remembered(
    text: str, *, openmetrics: bool = False, dropped: str = "", max_line_bytes: int = 1000
) -> LastScrape | None:
    names: list[str] = []

    def resolve(pairs: tuple[tuple[str, str], ...]) -> int | None:
        if pairs[0][1] == dropped:
            return None
        names.append(pairs[0][1])
        return len(names) - 1

    cache = SeriesCache(resolve)
    parsed = cache.parse(text, openmetrics=openmetrics)
    return LastScrape.of(text.encode(), parsed, cache, max_line_bytes)


def read(last: LastScrape | None, text: str | bytes) -> list[float] | None:
    assert last is not None
    values = last.read_values(text.encode() if isinstance(text, str) else text)
    return None if values is None else values.tolist()


def test_changed_values_are_read() -> None:
    last = remembered(TEXT)
    assert read(last, TEXT) == [1, 2, 3500]
    assert read(last, TEXT.replace("b 2", "b -7.25").replace("3.5e3", "+Inf")) == [1, -7.25, float("inf")]
    assert np.isnan((read(last, TEXT.replace("b 2", "b NaN")) or [0.0, 0.0])[1])


def test_the_newer_text_replaces_the_last_one() -> None:
    last = remembered(TEXT)
    assert last is not None
    newer = TEXT.replace("b 2", "b 5").encode()
    values = last.read_values(newer)
    assert values is not None
    last.replace(newer, values)
    assert read(last, newer.replace(b"3.5e3", b"4")) == [1, 5, 4]


@pytest.mark.parametrize(
    "changed",
    [
        TEXT.replace("gauge", "counter"),
        TEXT.replace("b 2", "b2 2"),
        TEXT.replace("b 2", "b 2 1000"),
        TEXT.replace("b 2", "b  2"),
        TEXT.replace("b 2", " b 2"),
        TEXT.replace("b 2", "b 2 "),
        TEXT.replace("b 2", "b\t2"),
        TEXT.replace("b 2", "b 1_0"),
        TEXT.replace("b 2", "b two"),
        TEXT.replace("b 2", "b"),
        TEXT.replace("b 2", ""),
        TEXT.replace("b 2", "# b"),
        TEXT.replace("b 2", "b 2\nd 4"),
        TEXT.replace("b 2\n", ""),
        TEXT.replace("b 2", "b 1e999"),
        TEXT.replace("b 2", f"b {'0' * 1000}1"),
        TEXT.replace('a{x="1 2"} 1', 'a{x="1 7'),
        TEXT.replace("b 2", "b 2\r"),
        TEXT.replace("b 2", "b ２"),
        TEXT.rstrip("\n"),
        "",
    ],
)
def test_any_other_difference_is_left_to_the_parser(changed: str) -> None:
    assert read(remembered(TEXT), changed) is None


def test_text_that_is_not_utf8_is_left_to_the_parser() -> None:
    assert read(remembered(TEXT), TEXT.encode().replace(b"b 2", b"b \xff")) is None


@pytest.mark.parametrize(
    ("text", "openmetrics"),
    [("a 1 1000\n", False), (" a 1\n", False), ('a 1 # {x="1"} 2\n# EOF\n', True), ("a  1\n", False)],
)
def test_lines_with_more_than_a_series_and_a_value_are_not_remembered(text: str, openmetrics: bool) -> None:
    assert remembered(text, openmetrics=openmetrics) is None


def test_the_value_of_a_dropped_series_is_checked_and_not_used() -> None:
    last = remembered(TEXT, dropped="b")
    assert read(last, TEXT.replace("b 2", "b 9")) == [1, 3500]
    assert read(last, TEXT.replace("b 2", "b nine")) is None


_LINES = ["# HELP a x", "# TYPE a gauge", "", "a {}", 'a{{x="1"}} {}', "b {}", 'c{{y=" "}} {}', "d {} 1000"]
_VALUES = st.sampled_from(["1", "2.5", "-0", "NaN", "+Inf", "1e400", "0x1", "1_0", " 1", "1 ", ""])
_TEXTS = st.lists(
    st.tuples(st.sampled_from(_LINES), _VALUES).map(lambda pair: pair[0].format(pair[1])), max_size=6
).map("\n".join)


@given(_TEXTS, st.lists(_VALUES, min_size=8, max_size=8))
def test_the_difference_is_what_the_parser_reads(text: str, values: list[str]) -> None:
    try:
        last = remembered(text)
    except ParseError:
        return
    lines = [
        line if line.startswith("#") or " " not in line else f"{line.rpartition(' ')[0]} {value}"
        for line, value in zip(text.split("\n"), values, strict=False)
    ]
    changed = "\n".join(lines)
    found = None if last is None else read(last, changed)
    if found is None:
        return
    parsed = SeriesCache(lambda pairs: 0).parse(changed)
    assert not parsed.timed
    np.testing.assert_array_equal(found, parsed.values)
