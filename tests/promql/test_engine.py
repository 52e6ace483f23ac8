"""Result types, limits, cancellation, and agreement of range queries with instant queries."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql import (
    BadQueryError,
    Engine,
    ExecutionError,
    Matrix,
    PromQLError,
    QueryCanceledError,
    QueryTimeoutError,
    RangeVector,
    Scalar,
    Text,
    Vector,
    evaluate,
)
from gpuscope.history.promql.parse import FUNCTIONS
from gpuscope.history.store import Store
from gpuscope.model.series import Matcher, Series
from tests.examples import examples
from tests.promql.corpus import RANGES, VECTORS, by_hand, random_expressions
from tests.promql.hostile import START_MS, hostile_storage
from tests.promql.memory import STALE, MemoryStorage
from tests.promql.prometheus import Question, points, same
from tests.promql.test_parse import TOKENS
from tests.store.support import HandClock, labels, tick

HOSTILE = hostile_storage()


@pytest.fixture
def storage() -> MemoryStorage:
    storage = MemoryStorage()
    storage.add({"__name__": "x", "a": "2"}, [(t * 1000, float(t)) for t in range(0, 600, 10)])
    storage.add({"__name__": "x", "a": "1"}, [(t * 1000, 1.0) for t in range(0, 100, 10)])
    storage.add({"__name__": "gone"}, [(0, 1.0), (10_000, STALE)])
    return storage


def test_instant_results(storage: MemoryStorage) -> None:
    engine = Engine(storage)
    assert engine.instant("1 + 1", 5_000) == Scalar(5_000, 2.0)
    assert engine.instant("'text'", 5_000) == Text(5_000, "text")
    vector = engine.instant("x", 50_000)
    assert isinstance(vector, Vector)
    assert vector.labels == [(("__name__", "x"), ("a", "1")), (("__name__", "x"), ("a", "2"))]
    assert vector.values.tolist() == [1.0, 50.0]
    nothing = engine.instant("missing", 0)
    assert isinstance(nothing, Vector)
    assert nothing.labels == []


@pytest.mark.parametrize(
    ("modifier", "end"),
    [
        ("", 300),
        ("offset 1m", 240),
        ("offset -1m", 360),
        ("@ 100", 100),
        ("@ end() offset 30s", 270),
        ("@ start()", 300),
    ],
)
def test_a_range_selector_respects_offset_and_at(storage: MemoryStorage, modifier: str, end: int) -> None:
    samples = Engine(storage).instant(f'x{{a="2"}}[30s] {modifier}', 300_000)
    assert isinstance(samples, RangeVector)
    assert [times.tolist() for times in samples.timestamps] == [
        [1000 * (end - 20), 1000 * (end - 10), 1000 * end]
    ]


def test_a_range_selector_has_no_stale_markers_and_keeps_other_nans(storage: MemoryStorage) -> None:
    storage.add({"__name__": "odd"}, [(1000, 1.0), (2000, np.nan), (3000, STALE), (4000, np.inf)])
    samples = Engine(storage).instant("odd[1m]", 10_000)
    assert isinstance(samples, RangeVector)
    assert samples.timestamps[0].tolist() == [1000, 2000, 4000]
    assert [str(value) for value in samples.values[0].tolist()] == ["1.0", "nan", "inf"]


def test_a_range_selector_keeps_the_times_of_each_series(storage: MemoryStorage) -> None:
    engine = Engine(storage)
    samples = engine.instant("{__name__=~'x|gone'}[20s]", 20_000)
    assert isinstance(samples, RangeVector)
    assert [dict(one)["__name__"] for one in samples.labels] == ["x", "x"]
    assert [times.tolist() for times in samples.timestamps] == [[10_000, 20_000]] * 2
    sub = engine.instant("x{a='2'}[1m:20s]", 65_000)
    assert isinstance(sub, RangeVector)
    assert sub.timestamps[0].tolist() == [20_000, 40_000, 60_000]
    assert sub.values[0].tolist() == [20.0, 40.0, 60.0]


def test_range_results_are_sorted_by_labels_on_one_axis(storage: MemoryStorage) -> None:
    matrix = Engine(storage).range("sort_desc(x)", 0, 500_000, 250_000)
    assert isinstance(matrix, Matrix)
    assert matrix.times_ms.tolist() == [0, 250_000, 500_000]
    assert [dict(one)["a"] for one in matrix.labels] == ["1", "2"]
    assert matrix.present.tolist() == [[True, True, False], [True, True, True]]
    assert matrix.values[1].tolist() == [0.0, 250.0, 500.0]


@pytest.mark.parametrize(
    ("start", "end", "step", "why"),
    [(0, 10, 0, "step"), (0, 10, -1, "step"), (10, 0, 1, "end"), (0, 11_001, 1, "11001"), (0, 1, 1, "type")],
)
def test_bad_ranges(storage: MemoryStorage, start: int, end: int, step: int, why: str) -> None:
    expr = "x[5m]" if why == "type" else "x"
    with pytest.raises(BadQueryError, match=why):
        Engine(storage).range(expr, start, end, step)


def test_eleven_thousand_steps_are_allowed(storage: MemoryStorage) -> None:
    assert Engine(storage).range("1", 0, 11_000, 1).times_ms.size == 11_001


def _week(every_ms: int) -> MemoryStorage:
    storage = MemoryStorage()
    for day, name in enumerate(("whole", "short")):
        times = range(0, (7 - 5 * day) * 86_400_000, every_ms)
        storage.add({"__name__": "x", "n": name}, [(t, float(t % 997)) for t in times])
    return storage


@pytest.mark.parametrize(
    "expr",
    [
        "x",
        "x offset 5h",
        "timestamp(x)",
        "rate(x[1h])",
        "quantile_over_time(0.5, x[1h])",
        "sum_over_time(x[2d])",
        "absent_over_time(x{n='short'}[1h])",
        "sum(x) - x @ 100000",
        "max_over_time(sum(x)[3h:10m])",
    ],
)
def test_evaluation_in_portions_gives_the_same_result(monkeypatch: pytest.MonkeyPatch, expr: str) -> None:
    engine = Engine(_week(600_000))
    question = Question(expr, -3_600_000, 7 * 86_400_000, 1_777_000)
    few_days_at_a_time = question.ask(engine)
    monkeypatch.setattr(evaluate, "MAX_PORTION_SAMPLES", 1)
    day_by_day = question.ask(engine)
    monkeypatch.setattr(evaluate, "DAY_MS", 10**15)
    assert few_days_at_a_time == day_by_day == question.ask(engine)


def test_a_long_range_query_holds_one_day_at_a_time() -> None:
    storage = _week(60_000)
    with pytest.raises(ExecutionError):
        Engine(storage, max_samples=5_000).instant("count_over_time(x[7d])", 7 * 86_400_000)
    Engine(storage, max_samples=5_000).range("x", 0, 7 * 86_400_000, 3_600_000)


@pytest.mark.parametrize("expr", ["x", "rate(x[5m])", "sum_over_time(vector(1)[10m:1s])", "x @ 5"])
def test_too_many_samples(storage: MemoryStorage, expr: str) -> None:
    before = LIMITS_REACHED.counts()["query_max_samples"]
    with pytest.raises(ExecutionError, match="too many samples"):
        Engine(storage, max_samples=50).range(expr, 0, 600_000, 10_000)
    assert LIMITS_REACHED.counts()["query_max_samples"] == before + 1
    Engine(storage, max_samples=100_000).range(expr, 0, 600_000, 10_000)


def test_query_timeout(storage: MemoryStorage) -> None:
    before = LIMITS_REACHED.counts()["query_timeout"]
    with pytest.raises(QueryTimeoutError) as caught:
        Engine(storage, timeout_seconds=0).instant("x", 0)
    assert caught.value.error_type == "timeout"
    with pytest.raises(QueryTimeoutError):
        Engine(storage).range("x", 0, 10, 1, timeout_seconds=0)
    assert LIMITS_REACHED.counts()["query_timeout"] == before + 2


def test_a_cancelled_query_stops(storage: MemoryStorage) -> None:
    cancelled = threading.Event()

    class Leaving(MemoryStorage):
        def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
            cancelled.set()
            return storage.select(matchers, start_ms, end_ms)

    with pytest.raises(QueryCanceledError) as caught:
        Engine(Leaving()).instant("x + x", 0, cancelled=cancelled)
    assert caught.value.error_type == "canceled"


def test_lookback_delta_is_configurable(storage: MemoryStorage) -> None:
    short = Engine(storage).instant("x{a='1'}", 120_000, lookback_ms=30_000)
    assert isinstance(short, Vector)
    assert short.labels == []


def test_a_deep_tree_is_an_error_not_a_crash(storage: MemoryStorage) -> None:
    with pytest.raises(BadQueryError, match="deep"):
        Engine(storage).instant("x" + " + x" * 900, 0)
    assert isinstance(Engine(storage).instant("x{a='2'}" + " + x{a='2'}" * 100, 0), Vector)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.sampled_from([*TOKENS, *VECTORS, *RANGES]), max_size=8).map(" ".join),
    st.integers(-(2**62), 2**62),
)
def test_any_text_at_any_time_gives_a_result_or_a_promql_error(text: str, time_ms: int) -> None:
    with contextlib.suppress(PromQLError):
        Engine(HOSTILE, max_samples=10**6).instant(text, time_ms)


def test_subquery_steps_are_limited(storage: MemoryStorage) -> None:
    with pytest.raises(ExecutionError, match="subquery"):
        Engine(storage).instant("sum_over_time(x[100y:1ms])", 0)


def test_absent_nan_and_zero_are_distinct() -> None:
    storage = MemoryStorage()
    storage.add({"__name__": "v", "is": "zero"}, [(0, 0.0)])
    storage.add({"__name__": "v", "is": "nan"}, [(0, float("nan"))])
    storage.add({"__name__": "v", "is": "stale"}, [(0, STALE)])
    vector = Engine(storage).instant("v", 0)
    assert isinstance(vector, Vector)
    assert {dict(one)["is"]: value for one, value in zip(vector.labels, vector.values, strict=True)}.keys() == {
        "zero",
        "nan",
    }
    assert np.isnan(vector.values[0])
    assert vector.values[1] == 0.0


def test_stored_arrays_are_not_modified() -> None:
    before = [(one.timestamps.copy(), one.values.copy()) for one in HOSTILE.series]
    for expr in ("-gauge", "gauge > 300", "sum(gauge)", "rate(gauge[5m])", "sort(gauge)", "clamp(gauge, 1, 2)"):
        Engine(HOSTILE).range(expr, START_MS, START_MS + 3_600_000, 60_000)
        Engine(HOSTILE).instant(expr, START_MS + 3_600_000)
    for one, (timestamps, values) in zip(HOSTILE.series, before, strict=True):
        assert (one.timestamps == timestamps).all()
        assert (one.values.view(np.int64) == values.view(np.int64)).all()


def test_a_range_query_agrees_with_instant_queries() -> None:
    engine = Engine(HOSTILE)
    start, step = START_MS + 600_000, 1_111_000
    for expr in random_expressions(seed=3, count=120):
        if "start()" in expr or "end()" in expr:
            continue
        try:
            whole = Question(expr, start, start + 4 * step, step).ask(engine).points
        except ExecutionError:
            continue
        for time in range(start, start + 4 * step + 1, step):
            part = points(engine.instant(expr, time))
            there = {labels: row[time] for labels, row in whole.items() if time in row}
            assert there.keys() == part.keys(), expr
            assert all(same(value, part[labels][time]) for labels, value in there.items()), expr


def test_the_corpus_calls_every_function() -> None:
    text = "\n".join(by_hand())
    # Newer than some 3.x releases that tests run against; it has its own test file.
    assert sorted(name for name in FUNCTIONS if f"{name}(" not in text) == ["first_over_time"]


@pytest.mark.parametrize("hours", [-7, 6], ids=["before the first sample", "after the last sample"])
def test_a_store_that_has_samples_only_at_other_times(hours: int, tmp_path: Path) -> None:
    """As the history of a large simulated fleet while it is being filled in: the series exist already."""
    clock = HandClock()
    at = clock.at + hours * 3_600_000
    with Store(tmp_path, clock=clock) as store:
        for number in range(130):
            target = store.target(f"t{number}")
            series = store.resolve(target, [labels("x", a=str(number)), labels("y", a=str(number))])
            store.append(tick(target, clock.at, series, [1.0, 2.0]))
        engine = Engine(store)
        for query in (
            "x", "timestamp(x)", "time() - timestamp(x) < 180", "min_over_time(timestamp(x)[10m:1m])",
            "rate(x[5m])", "last_over_time(x[5m])", "count by (a) (x)", "x and y", "x * on (a) y", "topk(1, x)",
            "sort(x)", 'label_replace(x, "b", "$1", "a", "(.*)")', 'count_values("v", x)', "quantile(0.5, x)",
        ):  # fmt: skip
            instant, over_time = engine.instant(query, at), engine.range(query, at - 600_000, at, 60_000)
            assert isinstance(instant, Vector)
            assert list(instant.labels) == list(over_time.labels) == [], query
