"""What Prometheus 3 accepts and refuses, by class; `test_against_prometheus` compares with a real one.

Every case was tried with Prometheus 3.5.3 and with the parser of 3.14.
"""

from __future__ import annotations

import math

import pytest

from gpuscope.model.exposition.parser import LimitError, Pairs, ParseError, SeriesCache, TextLimits, parse_once
from gpuscope.model.exposition.series_text import OUT_OF_RANGE_MS
from tests.exposition.corpus import openmetrics_corpus

TEXT_VALID = {
    "blanks everywhere": 'a \t{ x = "1" ,\ty="2" , } \t1 \t 1700000000000 \t',
    "no blank before the value": 'a{x="1"}1',
    "no comma between labels": 'a{x="1" y="2"} 1',
    "a name in quotes, not first": '{x="1","a.b"} 1',
    "a label name in quotes": 'a{"x y"="1"} 1',
    "blanks before a name": "  a 1",
    "other escapes stay": 'a{x="\\t"} 1',
    "a remark": "# anything\n#HELP\n# HELP\na 1",
    "a remark that is not UTF-8": "# \udcff\na 1",
    "no help": "# HELP a\na 1",
    "untyped": "# TYPE a untyped\na 1",
    "infinity": "a -iNfinity",
    "no newline at the end": "a 1",
    "an empty label twice": 'a{x="",x=""} 1',
    "a label twice, once empty": 'a{x="",x="1",y="2"} 1',
    "leading zeros of a time": f"a 1 {'0' * 30}1",
}
TEXT_INVALID = {
    "too large a number": "a 1e400",
    "a signed NaN": "a +NaN",
    "hexadecimal": "a 0x1p3",
    "underscore": "a 1_0",
    "digits that are not ASCII": "a \uff11",
    "a carriage return": "a 1\r",
    "a type with a carriage return": "# TYPE a counter\r\na 1",
    "an unknown type": "# TYPE a count\na 1",
    "OpenMetrics' types": "# TYPE a info\na 1",
    "no type": "# TYPE a\na 1",
    "two blanks before the type": "# TYPE a  counter\na 1",
    "a blank after the type": "# TYPE a counter \na 1",
    "no name in HELP": "# HELP \na 1",
    "a number for a name in TYPE": "# TYPE 1 counter\na 1",
    "a time before 1970": "a 1 -5",
    "a time with a fraction": "a 1 5.5",
    "a time past 64 bits": "a 1 9223372036854775808",
    "an exemplar": 'a 1 # {x="1"} 1',
    "two names": 'a{"b"} 1',
    "an empty label name": 'a{""="1"} 1',
    "an empty metric name": '{"",x="1"} 1',
    "no name": '{x="1"} 1',
    "only a comma": "a{,} 1",
    "two commas": 'a{x="1",,} 1',
    "an open quote": 'a{x="1} 1',
    "an escaped closing quote": 'a{x="1\\"} 1',
    "a label twice": 'a{x="1",x="1"} 1',
    "a value that is not UTF-8": 'a{x="\udcff"} 1',
    "help that is not UTF-8": "# HELP a \udcff\na 1",
}
OPENMETRICS_TYPES = (
    "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unknown",
)  # fmt: skip
OPENMETRICS_VALID = {
    "nothing": "",
    "a time of twenty digits": "a 1 12345678901234567890",
    "a negative time": "a 1 -5.5",
    "a comma at the end": 'a{x="1",} 1',
    "names in quotes": '{"a.b","x y"="1"} 1',
    "exemplars": 'a_total 1 # {} 1\nb_total 1 1 # {x="1"} 1 1.5',
    "every type": "\n".join(f"# TYPE {kind} {kind}" for kind in OPENMETRICS_TYPES),
    "an empty help": "# HELP a \na 1",
    "an empty unit": "# UNIT a \na 1",
    "a unit": "# UNIT a_seconds seconds\na_seconds 1",
}
OPENMETRICS_INVALID = {
    "an empty line": "a 1\n\nb 1",
    "a remark": "# anything\na 1",
    "no blank after the hash": "#HELP a x\na 1",
    "two blanks": "a  1",
    "a tab": "a\t1",
    "a blank at the end": "a 1 ",
    "a blank at the start": " a 1",
    "a blank in the labels": 'a{x="1", y="2"} 1',
    "no comma": 'a{x="1"y="2"} 1',
    "no blank before the value": 'a{x="1"}1',
    "no help": "# HELP a\na 1",
    "untyped": "# TYPE a untyped\na 1",
    "a blank after the type": "# TYPE a gauge \na 1",
    "a unit that is no suffix": "# UNIT a seconds\na 1",
    "a unit without an underscore": "# UNIT aseconds seconds\naseconds 1",
    "a unit that is the name": "# UNIT seconds seconds\nseconds 1",
    "data after the end": "a 1\n# EOF\nb 1",
    "an empty line after the end": "a 1\n# EOF\n",
    "a time that is none": "a 1 x",
    "an infinite time": "a 1 +Inf",
    "a time that is not a number": "a 1 NaN",
    "too large a number": "a 1e400",
    "exemplar without blanks": "a_total 1 #{} 1",
    "exemplar without a value": 'a_total 1 # {x="1"}',
    "exemplar with a bad value": 'a_total 1 # {x="1"} x',
    "exemplar with a bad time": 'a_total 1 # {x="1"} 1 NaN',
    "exemplar with a name": 'a_total 1 # {"x"} 1',
    "exemplar that does not end": 'a_total 1 # {x="1" 1',
    "two exemplars": "a_total 1 # {} 1 # {} 1",
}


def read(text: str, openmetrics: bool) -> SeriesCache:
    body = (f"{text}\n# EOF\n" if text else "# EOF\n") if openmetrics else text
    cache = SeriesCache(lambda pairs: 0)
    cache.parse(body.encode("utf-8", "surrogateescape"), openmetrics=openmetrics)
    return cache


@pytest.mark.parametrize("case", [*TEXT_VALID])
def test_valid_text(case: str) -> None:
    read(TEXT_VALID[case], False)


@pytest.mark.parametrize("case", [*TEXT_INVALID])
def test_invalid_text(case: str) -> None:
    with pytest.raises(ParseError):
        read(TEXT_INVALID[case], False)


@pytest.mark.parametrize("case", [*OPENMETRICS_VALID])
def test_valid_openmetrics(case: str) -> None:
    read(OPENMETRICS_VALID[case], True)


@pytest.mark.parametrize("case", [*OPENMETRICS_INVALID])
def test_invalid_openmetrics(case: str) -> None:
    with pytest.raises(ParseError):
        read(OPENMETRICS_INVALID[case], True)


def test_valid_texts_are_parsed() -> None:
    cases = {
        'a \t{ x = "1" ,\ty="\\t" , } \t1 \t 7 \t': ((("__name__", "a"), ("x", "1"), ("y", "\\t")), 7, 1.0),
        'a{x="",y="2",x="1"} 1': ((("__name__", "a"), ("y", "2")), None, 1.0),
        '  {x="1","a\\"b"} -iNf': ((("__name__", 'a"b'), ("x", "1")), None, -math.inf),
    }
    assert [next(parse_once(text)) for text in cases] == [*cases.values()]
    text = "a 1 1.9999\nb 2 -1.9999\nc 3 12345678901234567890\n# EOF\n"
    times = {dict(pairs)["__name__"]: at for pairs, at, _ in parse_once(text, openmetrics=True)}
    assert times == {"a": 1999, "b": -1999, "c": OUT_OF_RANGE_MS}, "cut off, not rounded"


def test_known_series_are_read_as_strictly() -> None:
    cache = SeriesCache(lambda pairs: 0)
    cache.parse('a 1\nb{x="1"} 1\n')
    assert cache.parse('a 1\t5\nb{x="1"} 2\n').timed == [(0, 5, 1.0)]
    for number in ("1e400", "+nan", "1_0", "\uff11", "\xa01", "1\r", ""):
        with pytest.raises(ParseError, match="line 2"):
            cache.parse(f'a 1\nb{{x="1"}} {number}\na 3\n')
        with pytest.raises(ParseError, match="line 1"):
            cache.parse(f"a {number}\n")
    assert cache.parse('a NaN\nb{x="1"} +Inf\n').values[1] == math.inf
    with pytest.raises(ParseError, match="line 1"):
        cache.parse("a 1\t5\n# EOF\n", openmetrics=True)


def labels(text: str, openmetrics: bool) -> list[Pairs]:
    return [pairs[1:] for pairs, _, _ in parse_once(text, openmetrics=openmetrics)]


@pytest.mark.parametrize("openmetrics", [False, True])
def test_le_and_quantile_are_written_as_prometheus_3_stores_them(openmetrics: bool) -> None:
    pairs = {
        "1": "1.0", "1.0": "1.0", "1e1": "10.0", "0": "0.0", "-0": "0.0", "+Inf": "+Inf", "inf": "+Inf",
        "-Inf": "-Inf", "nan": "NaN", "0.50": "0.5", "1000000": "1e+06", "123456": "123456.0", "1e-5": "1e-05",
        ".25": "0.25", "x": "x", "1e400": "1e400", " 1": " 1",
    }  # fmt: skip
    for kind, label in (("histogram", "le"), ("summary", "quantile")):
        lines = "".join(f'm{{{label}="{value}"}} 1\n' for value in pairs)
        end = "# EOF\n" if openmetrics else ""
        found = [dict(one)[label] for one in labels(f"# TYPE m {kind}\n{lines}{end}", openmetrics)]
        assert found == [*pairs.values()]
        other = "quantile" if label == "le" else "le"
        for untouched in (f'# TYPE m {kind}\nm{{{other}="1"}} 1\n', f'# TYPE m gauge\nm{{{label}="1"}} 1\n'):
            assert [value for ((_, value),) in labels(untouched + end, openmetrics)] == ["1"]


def test_the_last_type_line_decides_for_any_name() -> None:
    text = '# TYPE m histogram\nother{le="1"} 1\n# TYPE n gauge\nm_bucket{le="1"} 1\n'
    assert labels(text, False) == [(("le", "1.0"),), (("le", "1"),)]


LIMITS = TextLimits(labels=3, label_name_bytes=8, label_value_bytes=10, line_bytes=60, metadata_bytes=250)


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('a{a="1",b="2",c="3",d="4"} 1', "scrape_max_labels"),
        ('a{nnnnnnnnn="1"} 1', "scrape_max_label_name_bytes"),
        ('a{"ééééé"="1"} 1', "scrape_max_label_name_bytes"),
        ('a{a="12345678901"} 1', "scrape_max_label_value_bytes"),
        ('a{a="éééééé"} 1', "scrape_max_label_value_bytes"),
        ('{"long.name.of.it"} 1', "scrape_max_label_value_bytes"),
        ("a 1\n" + "b" * 61, "scrape_max_line_bytes"),
        (f"# {'b' * 60}\na 1", "scrape_max_line_bytes"),
    ],
)
def test_limits_hold_while_the_text_is_read(text: str, limit: str) -> None:
    for openmetrics in (False, True):
        with pytest.raises(LimitError) as raised:
            SeriesCache(lambda pairs: 0, limits=LIMITS).parse(f"{text}\n# EOF\n", openmetrics=openmetrics)
        assert raised.value.limit == limit
    SeriesCache(lambda pairs: 0, limits=LIMITS).parse('a{a="1234567890",b="ééééé",nnnnnnnn="3"} 1\n' + "#" * 60)


def test_metadata_past_its_limit_is_left_out_and_the_samples_stay() -> None:
    found = SeriesCache(lambda pairs: 0, limits=LIMITS).parse(
        '# HELP a x\n# HELP b x\n# HELP c x\n# TYPE c histogram\nc{le="1"} 1\n'
    )
    assert [*found.metadata] == ["a", "b"]
    assert (found.metadata_cut, found.values) == (True, [1.0])


def test_a_text_in_many_slices_is_read_as_one() -> None:
    lines = [f'm{{n="{number}"}} {number}' for number in range(200)]
    lines[100:100] = ["# TYPE m histogram", 'm{le="1"} 7 5']
    cache = SeriesCache(len, limits=TextLimits(line_bytes=64))
    found = cache.parse("\n".join(lines))
    assert (len(found.values), found.samples, found.timed) == (200, 201, [(2, 5, 7.0)])
    with pytest.raises(ParseError, match="line 202: not a number"):
        cache.parse("\n".join([*lines[:-1], 'm{n="199"} x']))


def test_openmetrics_own_cases() -> None:
    """All valid texts are accepted; `test_against_prometheus` tests which others are refused."""
    corpus = openmetrics_corpus()
    refused = {name for name, (body, _) in corpus.items() if is_refused(body)}
    assert {name for name in refused if corpus[name][1]} == set()
    assert (len(refused), len(corpus) - len(refused)) >= (88, 44)


def is_refused(body: bytes) -> bool:
    try:
        SeriesCache(lambda pairs: 0).parse(body, openmetrics=True)
    except ParseError:
        return True
    return False
