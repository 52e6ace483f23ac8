"""Limits of a query: label text, samples of intermediate results, time, cancellation."""

from __future__ import annotations

import threading
import time
import tracemalloc
from pathlib import Path

import pytest

from gpuscope.base import portioned_sort
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql import (
    Engine,
    ExecutionError,
    QueryCanceledError,
    QueryTimeoutError,
    frame,
    select,
)
from gpuscope.history.promql import budget as budgets
from gpuscope.history.promql.budget import Budget
from gpuscope.history.promql.result import Vector
from gpuscope.history.store import Store
from gpuscope.model.series import Matcher, MatchOp
from tests.promql.memory import MemoryStorage

MIB = 1 << 20


def storage(series: int = 1, samples: int = 1) -> MemoryStorage:
    made = MemoryStorage()
    for number in range(series):
        labels = {"__name__": "x", "n": str(number), "a": "0123456789", "le": str(number % 7)}
        made.add(labels, [(at * 1000, number + at / 8) for at in range(samples)])
    return made


def nested(function: str, depth: int) -> str:
    expr = "x"
    for _ in range(depth):
        expr = function.format(expr)
    return expr


REPLACE = 'label_replace({}, "a", "$1$1$1$1$1$1$1$1$1$1", "a", "(.*)")'
JOIN = 'label_join({}, "a", "-", "a", "a", "a", "a", "a", "a", "a", "a", "a", "a")'


@pytest.mark.parametrize("function", [REPLACE, JOIN])
def test_a_growing_label_is_refused_before_it_is_created(function: str) -> None:
    """Nine levels would create 10 GB."""
    before = LIMITS_REACHED.counts()["query_max_label_bytes"]
    tracemalloc.start()
    try:
        with pytest.raises(ExecutionError, match="query_max_label_bytes"):
            Engine(storage(), max_label_bytes=10 * MIB).instant(nested(function, 9), 0)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 40 * MIB
    assert LIMITS_REACHED.counts()["query_max_label_bytes"] == before + 1


def test_label_text_is_counted_over_all_series_and_calls() -> None:
    engine = Engine(storage(series=100), max_label_bytes=100 * (128 + 100))
    engine.instant(REPLACE.format("x"), 0)
    with pytest.raises(ExecutionError, match="label text"):
        engine.instant(REPLACE.format("x{n='1'}") + " or " + REPLACE.format("x"), 0)


def test_non_ascii_text_counts_by_its_memory() -> None:
    text = "é" * 1000
    engine = Engine(storage(), max_label_bytes=4000)
    with pytest.raises(ExecutionError, match="label text"):
        engine.instant(f'label_replace(x, "b", "{text}", "", "")', 0)


def test_count_values_charges_its_result() -> None:
    with pytest.raises(ExecutionError, match="label text"):
        Engine(storage(series=100), max_label_bytes=10_000).instant('count_values("v", x)', 0)
    with pytest.raises(ExecutionError, match="too many samples"):  # a row per value, a column per step
        Engine(storage(10, 100), max_samples=20_000).range('count_values("v", x)', 0, 99_000, 1000)


def test_scalars_of_long_subqueries_are_charged() -> None:
    """Each level holds one number per step: five million in total."""
    expr = "1"
    for _ in range(50):
        expr = f"time() + ({expr})"
    with pytest.raises(ExecutionError, match="too many samples"):
        Engine(storage(), max_samples=100_000).instant(f"sum_over_time(vector({expr})[10000s:1s])", 0)


# Only expressions that need Python code per series or group: array operations are short.
PER_SERIES = [
    'count_values("v", x)',
    "topk by (n) (1, x)",
    "quantile by (n) (0.5, x)",
    "histogram_quantile(0.5, x)",
    "label_replace(x, 'a', '$1', 'n', '(.*)')",
    "label_join(x, 'a', '', 'n', 'le')",
    "last_over_time(x[5m])",
    "x[5m]",
    "x[5m:1s]",
]


class _Patience(Budget):
    """Cancels the query after a number of checks."""

    __slots__ = ("checks", "last")

    def __init__(self, last: int) -> None:
        super().__init__()
        self.checks, self.last = 0, last

    def check(self, during: str = "expression evaluation") -> None:
        self.checks += 1
        if self.checks > self.last:
            raise QueryCanceledError(during)


@pytest.mark.parametrize("expr", PER_SERIES)
def test_loops_over_series_check_the_budget(expr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ten times the series there are more checks, so no loop runs over all series unchecked."""
    monkeypatch.setattr(budgets, "ITEMS_PER_CHECK", 10)
    monkeypatch.setattr(select, "MAX_WINDOWS", 10)
    counts = []
    for series in (10, 100):
        patience = _Patience(10**9)
        Engine(storage(series)).instant(expr, 0, budget=patience)
        counts.append(patience.checks)
    assert counts[1] >= counts[0] + 5, counts


# Operators on arrays: no loop over series, so the checks lie between array operations.
VECTORS = [
    "sum by (n) (x)",
    "x + on (n) x",
    "x and on (n) x",
    "x or x",
    "-x",
    "abs(x)",
    "timestamp(x)",
]


@pytest.mark.parametrize("expr", VECTORS)
def test_vector_operators_can_be_cancelled_at_every_check(expr: str) -> None:
    engine, whole, selector = Engine(storage(100)), _Patience(10**9), _Patience(10**9)
    engine.instant(expr, 0, budget=whole)
    engine.instant("x", 0, budget=selector)
    # `timestamp` reads its series itself.
    more = 0 if expr.startswith("timestamp") else 1
    assert whole.checks >= selector.checks + more, "the operator checks too, not only what reads its series"
    for last in range(whole.checks):
        with pytest.raises(QueryCanceledError):
            engine.instant(expr, 0, budget=_Patience(last))


@pytest.mark.parametrize("expr", [*VECTORS, "x > 3", "topk(5, x)", "x * on (n) group_left (a) x", "sum(x)"])
def test_the_memory_of_a_wide_query_is_counted(expr: str) -> None:
    """What a query really allocates is in proportion to what its budget counts."""
    made, budget = storage(5000, 20), _Counted()
    tracemalloc.start()
    try:
        Engine(made).range(expr, 0, 19_000, 1000, budget=budget)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * budgets.BYTES_PER_SAMPLE * budget.most + MIB


@pytest.mark.parametrize("expr", VECTORS)
def test_vector_operators_respect_the_sample_limit(expr: str) -> None:
    made = storage(100, 20)
    counted = Budget()
    Engine(made).range(expr, 0, 19_000, 1000, budget=counted)
    Engine(made, max_samples=counted.peak).range(expr, 0, 19_000, 1000)
    with pytest.raises(ExecutionError, match="too many samples"):
        Engine(made, max_samples=counted.peak - 1).range(expr, 0, 19_000, 1000)


class _Counted(Budget):
    """Remembers the most memory that was counted at a time, in samples."""

    __slots__ = ("most",)

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def update_pool(self) -> None:
        held = self.samples + self._overhead + self._reserved + self._label_bytes // budgets.BYTES_PER_SAMPLE
        self.most = max(self.most, held)
        super().update_pool()


def test_the_order_of_a_million_label_sets_is_found_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portioned_sort, "ITEMS_PER_SORT", 10)
    patience = _Patience(10**9)
    Engine(storage(101)).range("x", 0, 1000, 1000, budget=patience)
    assert patience.checks > 22, "each of two labels with 101 values is sorted in eleven portions"


def test_sorting_is_done_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portioned_sort, "ITEMS_PER_SORT", 10)
    patience = _Patience(10**9)
    assert patience.sort([7 * n % 101 for n in range(101)]) == list(range(101))
    assert patience.checks > 11
    assert patience.sort([]) == []
    with pytest.raises(QueryCanceledError):
        _Patience(3).sort(range(101))


@pytest.mark.parametrize("function", ["sum_over_time", "avg_over_time", "stddev_over_time", "deriv"])
def test_one_very_long_window_can_be_cancelled(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compensated sum adds a window's samples one by one: five million take most of a minute."""
    monkeypatch.setattr(frame, "MAX_UNCHECKED_WORK", 1_000_000)
    expr, patience = f"{function}(vector(time())[6h:1s])", _Patience(15)
    with pytest.raises(QueryCanceledError):
        Engine(storage()).instant(expr, 0, budget=patience)


def test_cancelling_during_evaluation() -> None:
    cancelled = threading.Event()
    real = budgets.Budget.watch

    def watch(self: Budget, items: list[object]) -> object:
        cancelled.set()
        self.check()
        return real(self, items)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budgets.Budget, "watch", watch)
        with pytest.raises(QueryCanceledError):
            Engine(storage(10)).instant('count_values("v", x)', 0, cancelled=cancelled)


def test_the_time_limit_includes_the_wait_for_other_queries() -> None:
    engine = Engine(storage(), timeout_seconds=60)
    assert (engine.budget(received_at=time.monotonic() - 20).seconds_left() or 0) <= 40
    with pytest.raises(QueryTimeoutError, match="query queue"):
        engine.budget(received_at=time.monotonic() - 61)


@pytest.mark.parametrize(
    "expr", ['label_replace(x, "b", "$1", "le", "([1-3])")', 'label_join(x, "b", "", "le")']
)
def test_a_label_is_computed_once_for_equal_values(expr: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`le` has seven values; all series with one of them get the same label, also if the loop is checked."""
    monkeypatch.setattr(budgets, "ITEMS_PER_CHECK", 3)
    result = Engine(storage(series=100)).instant(expr, 0)
    assert isinstance(result, Vector)
    found = [dict(labels) for labels in result.labels]
    is_join = expr.startswith("label_join")
    assert len(found) == 100
    assert all(one.get("b") == (one["le"] if is_join or one["le"] in "123" else None) for one in found)


def test_messages_truncate_long_labels() -> None:
    with pytest.raises(ExecutionError) as failed:
        Engine(storage(2)).instant(f'label_replace(x, "a", "{"y" * 5000}", "", "") + on (missing) x', 0)
    assert len(str(failed.value)) < 5000


def test_at_most_ten_annotations_are_returned() -> None:
    made = MemoryStorage()
    for number in range(25):
        made.add({"__name__": "b", "le": f"no number {number}"}, [(0, 1.0)])
    warnings = Engine(made).instant("histogram_quantile(0.5, b)", 0).warnings
    assert len(warnings) == 11
    assert warnings[-1] == "15 more warning annotations omitted"


def test_regular_expressions_over_many_values_stop_at_the_time_limit(tmp_path: Path) -> None:
    """900 expressions over 20,000 values take minutes; each value is tested under the query's budget."""
    with Store(tmp_path) as store:
        store.resolve(store.target("t"), [(("__name__", "x"), ("pod", f"pod-{n}")) for n in range(5000)])
        selectors = [[Matcher("pod", MatchOp.REGEX, f"p.d-[0-9]*{n}")] for n in range(900)]
        patience = _Patience(20)
        with pytest.raises(QueryCanceledError):
            store.any_series(selectors, admit=patience.admit)
        with pytest.raises(QueryCanceledError):
            Engine(store).instant('x{pod=~"p.d-[0-9]*7+"}', 0, budget=_Patience(4))
        assert store.any_series(selectors[:2], admit=Budget().admit)
