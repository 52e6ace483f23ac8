from __future__ import annotations

from collections.abc import Sequence

import pytest

from gpuscope.promql.frame import Steps
from gpuscope.promql.small_query import LONGEST_TEXT, MAX_NUMBERS, MAX_SERIES, is_small
from gpuscope.series import Matcher, Series

NOW, MINUTE = 1_700_000_000_000, 60_000
ONCE = Steps(NOW, 1, 1)


class Held:
    """A store that says what it holds, and notes what it was asked."""

    def __init__(self, series: int = 1, samples: int = 240) -> None:
        self.answer: tuple[int, int] | None = series, samples
        self.asked: list[tuple[int, int]] = []

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
        raise AssertionError("weighing reads nothing")

    def count_in_memory(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int
    ) -> tuple[int, int] | None:
        self.asked.append((start_ms, end_ms))
        return self.answer


@pytest.mark.parametrize("text", ["1", "up", "up[1h]", "sum(rate(up[5m])) by (x)", "up + -up", "topk(3, up)"])
def test_few_series_in_memory_are_small(text: str) -> None:
    assert is_small(text, Held(), ONCE, 5 * MINUTE)


@pytest.mark.parametrize("text", ["up[1h:1m]", "max_over_time(up[1h:1m])", "up @ 5", "sum(up @ end())"])
def test_subqueries_and_fixed_times_are_not(text: str) -> None:
    assert not is_small(text, Held(), ONCE, 5 * MINUTE)


def test_series_samples_and_steps_all_weigh() -> None:
    assert is_small("up", Held(MAX_SERIES), ONCE, MINUTE)
    assert not is_small("up", Held(MAX_SERIES + 1), ONCE, MINUTE)
    assert not is_small("up + up", Held(MAX_SERIES // 2 + 1), ONCE, MINUTE)
    assert not is_small("up", Held(1, MAX_NUMBERS), ONCE, MINUTE)
    assert is_small("up", Held(4), Steps(NOW, 1000, 240), MINUTE)
    assert not is_small("up", Held(4), Steps(NOW, 1000, MAX_NUMBERS // 4), MINUTE)
    assert not is_small("rate(up[1h])", Held(1, 240), Steps(NOW, 1000, 240), MINUTE)
    assert not is_small("up +" * (LONGEST_TEXT // 4) + "up", Held(1, 1), ONCE, MINUTE)


def test_what_is_not_known_to_be_in_memory_is_not_small() -> None:
    store = Held()
    store.answer = None
    assert not is_small("up", store, ONCE, MINUTE)
    assert is_small("1", store, ONCE, MINUTE)


def test_a_store_is_asked_for_all_that_the_evaluator_will_read() -> None:
    store = Held()
    is_small("up + rate(up[10m] offset 2m)", store, Steps(NOW, 1000, 61), 5 * MINUTE)
    assert store.asked == [
        (NOW - 5 * MINUTE, NOW + MINUTE),
        (NOW - 12 * MINUTE, NOW - MINUTE),
    ]


def test_a_store_that_does_not_say_has_no_small_queries() -> None:
    class Plain:
        def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> Sequence[Series]:
            return []

    assert not is_small("up", Plain(), ONCE, MINUTE)
