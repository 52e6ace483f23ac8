"""The exposition parser: any bytes are an exposition or a `ParseError`.

The result depends neither on the state of the cache nor on how the text is divided.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpuscope.model.exposition.parser import LimitError, ParseError, SeriesCache, TextLimits

SEEDS = (
    b'T# HELP a Some \\n help\n# TYPE a counter\na{x="1",y="a\\"b\\\\c\\n"} 1.5 1700000000000\na 2\n\n',
    b'T# TYPE h histogram\nh_bucket{le="1e1"} 1\nh_bucket{le="+Inf"} 2\nh_sum 3\n'
    b'# TYPE s summary\ns{quantile="0.50"} NaN\n',
    b'T{"a.b", "c d" = "e" , } +Inf\n  b{ } -7e3 12\n# remark \xff\na 1\n',
    b'O# HELP a_seconds help\n# TYPE a_seconds counter\n# UNIT a_seconds seconds\na_seconds_total{x="1"} 3 17.5'
    b' # {trace="#1"} 0.5 1\na_seconds_created 1\n# EOF\n',
    b'O# TYPE h gaugehistogram\nh_bucket{le="1"} 1 # {} 1\n{"a.b","c"="d",} 0 12345678901234567890\n# EOF\n',
)
TOKENS = (
    b" ", b"\t", b"\n", b"\r\n", b"{", b"}", b",", b"=", b'"', b"\\", b"\\n", b'\\"', b"#", b" # {", b'"} 1\n',
    b"# HELP ", b"# TYPE ", b"# UNIT ", b"# EOF\n", b"counter", b"gauge", b"histogram", b"summary", b"untyped",
    b"unknown", b"info", b"le", b"quantile", b'le="1"', b'quantile="0.50"', b"1e400", b"NaN", b"+Inf", b"-0",
    b"1_0", b"0x1p3", b"9223372036854775808", b"\xff", b"\xc3\xa9",
)  # fmt: skip
SMALL = TextLimits(labels=3, label_name_bytes=8, label_value_bytes=16, line_bytes=64, metadata_bytes=300)


def run(data: bytes) -> None:
    openmetrics, body = data[:1] == b"O", data[1:]
    fresh = Numbering()
    first = read(SeriesCache(fresh.number), body, openmetrics)
    used = Numbering()
    cache = SeriesCache(used.number, keep_empty=False)
    second, third = read(cache, body, openmetrics), read(cache, body, openmetrics)
    cache.forget_all_but(0, 0)
    assert repr(first) == repr(second) == repr(third) == repr(read(cache, body, openmetrics))
    for pairs in fresh.pairs:
        assert pairs[0][0] == "__name__"
        assert pairs[0][1]
        assert all(name and value for name, value in pairs)
        repr(pairs).encode()
        "".join(name + value for name, value in pairs).encode()
    small = Numbering()
    read(SeriesCache(small.number, keep_empty=True, limits=SMALL), body, openmetrics)
    for pairs in small.pairs:
        assert len(pairs) <= 4
        assert all(len(value.encode()) <= 64 for _, value in pairs)


class Numbering:
    """Assigns a number to each label set; every fifth gets none, like a series dropped by relabelling."""

    def __init__(self) -> None:
        self.pairs: list[Any] = []
        self.numbers: dict[Any, int] = {}

    def number(self, pairs: Any) -> int | None:
        self.pairs.append(pairs)
        number = self.numbers.setdefault(pairs, len(self.numbers))
        return None if number % 5 == 4 else number


def read(cache: SeriesCache, body: bytes, openmetrics: bool) -> Any:
    try:
        found = cache.parse(body, openmetrics=openmetrics)
    except LimitError as error:
        return ("limit", error.limit)
    except ParseError as error:
        return ("refused", str(error).isprintable() or pytest.fail(repr(error)))
    assert len(found.ids) == len(found.values)
    assert all(-(2**63) <= at < 2**63 for _, at, _ in found.timed)
    return found.ids, found.values, found.timed, found.metadata, found.samples
