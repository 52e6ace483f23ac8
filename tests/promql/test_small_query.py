from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuscope.history.promql.engine import MAX_CHARACTERS, MAX_SAMPLES, MAX_SERIES, is_small
from gpuscope.history.promql.frame import Steps
from gpuscope.model.series import Matcher, Series

NOW, MINUTE = 1_700_000_000_000, 60_000
ONCE = Steps(NOW, 1, 1)


class StoreWithCount:
    """A store with a fixed number of series in memory; records the time ranges of its calls."""

    def __init__(self, series: int = 1, samples: int = 240) -> None:
        self.count: tuple[int, int] | None = series, samples
        self.calls: list[tuple[int, int]] = []

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        raise AssertionError("is_small must not read samples")

    def count_in_memory(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int
    ) -> tuple[int, int] | None:
        self.calls.append((start_ms, end_ms))
        return self.count


@pytest.mark.parametrize("text", ["1", "up", "up[1h]", "sum(rate(up[5m])) by (x)", "up + -up", "topk(3, up)"])
def test_few_series_in_memory_are_small(text: str) -> None:
    assert is_small(text, StoreWithCount(), ONCE, 5 * MINUTE)


@pytest.mark.parametrize("text", ["up[1h:1m]", "max_over_time(up[1h:1m])", "up @ 5", "sum(up @ end())"])
def test_subqueries_and_fixed_times_are_not_small(text: str) -> None:
    assert not is_small(text, StoreWithCount(), ONCE, 5 * MINUTE)


def test_series_samples_and_steps_are_limited() -> None:
    assert is_small("up", StoreWithCount(MAX_SERIES), ONCE, MINUTE)
    assert not is_small("up", StoreWithCount(MAX_SERIES + 1), ONCE, MINUTE)
    assert not is_small("up + up", StoreWithCount(MAX_SERIES // 2 + 1), ONCE, MINUTE)
    assert not is_small("up", StoreWithCount(1, MAX_SAMPLES), ONCE, MINUTE)
    assert is_small("up", StoreWithCount(4), Steps(NOW, 1000, 240), MINUTE)
    assert not is_small("up", StoreWithCount(4), Steps(NOW, 1000, MAX_SAMPLES // 4), MINUTE)
    assert not is_small("rate(up[1h])", StoreWithCount(1, 240), Steps(NOW, 1000, 240), MINUTE)
    assert not is_small("up +" * (MAX_CHARACTERS // 4) + "up", StoreWithCount(1, 1), ONCE, MINUTE)


def test_a_query_on_unknown_series_is_not_small() -> None:
    store = StoreWithCount()
    store.count = None
    assert not is_small("up", store, ONCE, MINUTE)
    assert is_small("1", store, ONCE, MINUTE)


def test_the_store_is_queried_for_the_ranges_that_the_evaluator_reads() -> None:
    store = StoreWithCount()
    is_small("up + rate(up[10m] offset 2m)", store, Steps(NOW, 1000, 61), 5 * MINUTE)
    assert store.calls == [
        (NOW - 5 * MINUTE, NOW + MINUTE),
        (NOW - 12 * MINUTE, NOW - MINUTE),
    ]


def test_a_store_without_count_in_memory_has_no_small_queries() -> None:
    class Plain:
        def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
            return []

    assert not is_small("up", Plain(), ONCE, MINUTE)
