"""Dates, times and numbers at the ends of their ranges: as a real Prometheus answers them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpuscope.history.promql import BadQueryError, Engine, parse
from gpuscope.history.promql.ast_json import describe
from gpuscope.history.promql.numeric import CALENDAR
from gpuscope.history.promql.result import Vector
from gpuscope.history.promql.syntax import Number, VectorSelector
from tests.engines import running_prometheus
from tests.promql.memory import MemoryStorage
from tests.promql.prometheus import Question, difference, fill

NOW_MS = int(time.time()) // 60 * 60_000
SECONDS = (
    "NaN", "+Inf", "-Inf", "1e300", "-1e300", "1e17", "-1e17", "9e15", "-9e15", "9e18", "-62135596801", "1.9",
)  # fmt: skip
DATES = tuple(f"{name}(vector({seconds}))" for name in sorted(CALENDAR) for seconds in SECONDS)
TIMES = (
    "m @ -1", "m @ -1.5", "m @ - 5m", "m @ -0x10", "m @ -9e18", "m @ 9e18", "m @ -Inf", "m @ NaN", "m @ Inf",
    "last_over_time(m[1h] @ -3600)", "m @ -1 offset -1h", "m @ 5 - 3", "count_over_time(m[5m:1m] @ -60)",
)  # fmt: skip
NUMBERS = (
    "1e400", "-1e400", "1e+400", "1e-400", "9" * 309, "1_", "1__0", "1_0", "0x1_", "0x_1", "1e1_0", "1_.5",
    "1._5", "1_5.2_5", "1e_5", "1_e3", "0x", "0b1", "1e", "0x1e-5", "0x1e - 5", "0xe+1",
    "0xee-5", "1_0m", "1_000 + 0x1_f",
)  # fmt: skip


def one_sample() -> MemoryStorage:
    """A query at any other time has no result."""
    storage = MemoryStorage()
    storage.add({"__name__": "m"}, [(NOW_MS - 1000, 5.0)])
    return storage


@pytest.fixture(scope="module")
def prometheus() -> Iterator[str]:
    with running_prometheus() as url:
        fill(url, one_sample().series)
        yield url


@pytest.mark.engine("prometheus")
@pytest.mark.parametrize("expression", [*DATES, *TIMES, *NUMBERS])
def test_as_prometheus(prometheus: str, expression: str) -> None:
    assert difference(Question(expression, NOW_MS), Engine(one_sample()), prometheus) is None


def test_dates_out_of_range_are_those_of_go() -> None:
    result = Engine(one_sample()).instant("year(vector(NaN)) + day_of_week(vector(+Inf))", NOW_MS)
    assert isinstance(result, Vector)
    assert result.values.tolist() == [292277026596.0]


def test_a_time_before_1970_is_read_and_shown() -> None:
    tree = parse("m @ -1.5")
    assert isinstance(tree, VectorSelector)
    assert tree.at == -1500
    assert describe("m @ -1.5")["timestamp"] == -1500
    assert parse('m{a="@ -5"}') == parse("m{a='@ -5'}")


@pytest.mark.parametrize("text", ["1e400", "1_", "1__0", "0x1_", "1_e3"])
def test_numbers_that_are_none(text: str) -> None:
    with pytest.raises(BadQueryError, match="number"):
        parse(text)
    assert parse("1_0") == Number(10.0)
