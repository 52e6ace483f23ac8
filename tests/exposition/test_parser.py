from __future__ import annotations

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as their_openmetrics
from prometheus_client.parser import text_string_to_metric_families as their_text

from gpuscope.model.exposition.parser import Pairs, ParseError, SeriesCache, parse_once
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.model.exposition.text import encode_openmetrics, encode_text

NAMES = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,8}", fullmatch=True).filter(lambda n: not n.startswith("__"))
VALUES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)


def ours(text: str, openmetrics: bool = False) -> dict[Pairs, float]:
    return {tuple(sorted(pairs)): value for pairs, _, value in parse_once(text, openmetrics=openmetrics)}


def theirs(families: object) -> dict[Pairs, float]:
    return {
        tuple(sorted([("__name__", s.name), *((k, v) for k, v in s.labels.items() if v)])): s.value
        for family in families  # type: ignore[attr-defined]
        for s in family.samples
    }


def test_everything_a_line_can_have() -> None:
    text = (
        "# HELP a Some\\nhelp\n# TYPE a counter\n# just a remark\n"
        'a{x="1",y="a\\"b\\\\c\\n"} 1.5\n'
        "a 2 1700000000000\n"
        "\n"
        'b{} +Inf\n{"c.d",e="f"} NaN\nb_2{x="}, "  , } -7e3\n'
    )
    found = {pairs: (at, value) for pairs, at, value in parse_once(text)}
    assert found[("__name__", "a"), ("x", "1"), ("y", 'a"b\\c\n')] == (None, 1.5)
    assert found[(("__name__", "a"),)] == (1700000000000, 2.0)
    assert found[(("__name__", "b"),)] == (None, math.inf)
    assert math.isnan(found[("__name__", "c.d"), ("e", "f")][1])
    assert found[("__name__", "b_2"), ("x", "}, ")] == (None, -7000.0)


def test_metadata() -> None:
    cache = SeriesCache(lambda pairs: 0)
    help_line = '# HELP a_seconds Some\\nhelp \\"x\\"\n'
    text = f"{help_line}# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total 1\n"
    found = cache.parse(text + "# EOF\n", openmetrics=True).metadata["a_seconds"]
    assert (found.type, found.help, found.unit) == ("counter", 'Some\nhelp "x"', "seconds")
    found = cache.parse(text).metadata["a_seconds"]
    assert (found.type, found.help, found.unit) == ("counter", 'Some\nhelp \\"x\\"', ""), "no units in text"


def test_openmetrics_times_exemplars_and_its_end() -> None:
    text = 'a_total{x="1"} 3 1700000000.5 # {trace="#1"} 0.5\n# EOF\n'
    assert list(parse_once(text, openmetrics=True)) == [
        ((("__name__", "a_total"), ("x", "1")), 1700000000500, 3.0)
    ]
    with pytest.raises(ParseError, match="EOF"):
        list(parse_once("a 1\n", openmetrics=True))


@pytest.mark.parametrize(
    "line",
    ["a", "a b", "a 1 2 3", "a{x=1} 1", 'a{x="1" 1', 'a{x="1"', "9a 1", 'a{x="1",x="2"} 1', "a 1_0", "a 1 x",
     "{} 1", 'a{="1"} 1', "a\x001", 'a{x} 1'],
)  # fmt: skip
def test_wrong_text_is_refused_and_names_the_line(line: str) -> None:
    with pytest.raises(ParseError, match="line 2"):
        list(parse_once(f"ok 1\n{line}\n"))


def test_a_known_series_is_resolved_once_and_read_fast_after() -> None:
    asked: list[Pairs] = []

    def resolve(pairs: Pairs) -> int | None:
        asked.append(pairs)
        return None if dict(pairs).get("drop") else len(asked)

    cache = SeriesCache(resolve)
    first = cache.parse('a{x="1"} 1\na{drop="y"} 5\n')
    second = cache.parse('a{x="1"} 2\na{drop="y"} 6\n')
    assert (first.ids, first.values, second.ids, second.values) == ([1], [1.0], [1], [2.0])
    assert second.samples == 2
    assert len(asked) == 2
    with pytest.raises(ParseError, match="line 1: not a number"):
        cache.parse('a{x="1"} two\n')


def test_a_time_is_never_taken_for_a_value() -> None:
    cache = SeriesCache(lambda pairs: 7)
    cache.parse("a 5\n")
    assert cache.parse("a 5 1700000000000\n").timed == [(7, 1700000000000, 5.0)]
    assert cache.parse("a 6 1700000000001\n").timed == [(7, 1700000000001, 6.0)]


@given(
    st.lists(
        st.tuples(NAMES, st.dictionaries(NAMES, VALUES, max_size=3), st.floats(allow_nan=False)), max_size=6
    )
)
def test_our_parser_and_prometheus_clients_agree(rows: list[tuple[str, dict[str, str], float]]) -> None:
    families: dict[str, MetricFamily] = {}
    for name, labels, value in rows:
        families.setdefault(
            "g_" + name, MetricFamily("g_" + name, "gauge", name, [Sample(LabelSet.of(labels), value)])
        )
    text = encode_text(families.values()).decode()
    assert ours(text) == theirs(their_text(text))
    text = encode_openmetrics(families.values()).decode()
    assert ours(text, openmetrics=True) == theirs(their_openmetrics(text))


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    for openmetrics in (False, True):
        with contextlib.suppress(ParseError):
            list(parse_once(text, openmetrics=openmetrics))


def test_known_series_with_a_time_are_looked_up_too() -> None:
    resolved: list[Pairs] = []

    def resolve(pairs: Pairs) -> int:
        resolved.append(pairs)
        return len(resolved) - 1

    cache = SeriesCache(resolve)
    for step in range(3):
        found = cache.parse(f'a{{x="1 2"}} {step} {1000 + step}\nb {step}\n')
        assert (found.timed, found.ids, found.values) == ([(0, 1000 + step, step)], [1], [step])
    assert len(resolved) == 2
    assert cache.parse('a{x="1 2"} 7\nb 8 9\n').timed == [(1, 9, 8.0)], (
        "with and without a time it is one series"
    )


@pytest.mark.parametrize("at", ["99999999999999999999", "1_000", "1.5", "x", "+Inf", "9" * 5000])
def test_a_time_that_is_none_refuses_the_text(at: str) -> None:
    cache = SeriesCache(lambda pairs: 0)
    cache.parse("a 1 5\n")
    with pytest.raises(ParseError, match="line 1"):
        cache.parse(f"a 1 {at}\n")


@pytest.mark.parametrize("at", ["+Inf", "NaN", "1e400", "x", "1_0"])
def test_a_time_that_is_none_refuses_openmetrics(at: str) -> None:
    with pytest.raises(ParseError, match="line 1"):
        SeriesCache(lambda pairs: 0).parse(f"a 1 {at}\n# EOF\n", openmetrics=True)
