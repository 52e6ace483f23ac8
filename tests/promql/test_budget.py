"""Limits of a query: label text, samples of intermediate results, time, cancellation."""

from __future__ import annotations

import threading
import tracemalloc

import pytest

from gpuscope.limits import LIMITS_REACHED
from gpuscope.promql import Engine, ExecutionError, QueryCanceledError, select, windows
from gpuscope.promql import budget as budgets
from gpuscope.promql.budget import Budget
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


def test_sorting_is_done_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budgets, "ROWS_PER_SORT", 10)
    patience = _Patience(10**9)
    assert patience.sort([7 * n % 101 for n in range(101)]) == list(range(101))
    assert patience.checks > 11
    assert patience.sort([]) == []
    with pytest.raises(QueryCanceledError):
        _Patience(3).sort(range(101))


@pytest.mark.parametrize("function", ["sum_over_time", "avg_over_time", "stddev_over_time", "deriv"])
def test_one_very_long_window_can_be_cancelled(function: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compensated sum adds a window's samples one by one: five million take most of a minute."""
    monkeypatch.setattr(windows, "MAX_UNCHECKED_WORK", 1_000_000)
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
