"""The growth of counters against a plain sum over their samples: births, ends, gaps, resets."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.store.series_pairs import predicate
from gpuscope.judge.reports.counter_growth import counter_growth
from gpuscope.model.series import Labels, Matcher, MatchOp, Series
from tests.examples import examples

STEP_MS = 15_000
END_MS = 1_790_000_100_000
POINTS = 960  # four hours


class Samples:
    """Series in memory, as a storage of the evaluator."""

    def __init__(self, series: Sequence[Series]) -> None:
        self._by_name: dict[str, list[tuple[dict[str, str], Series]]] = {}
        for one in series:
            labels = dict(one.labels)
            self._by_name.setdefault(labels["__name__"], []).append((labels, one))

    def select(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> list[Series]:
        found = []
        (named,) = [one for one in matchers if one.name == "__name__"]
        accept = [(one.name, predicate(one)) for one in matchers]
        is_named = predicate(named)
        names = [named.value] if named.op is MatchOp.EQUAL else filter(is_named, self._by_name)
        for labels, one in (pair for name in names for pair in self._by_name.get(name, ())):
            low, high = np.searchsorted(one.timestamps, [start_ms, end_ms + 1])
            if low < high and all(accepts(labels.get(label, "")) for label, accepts in accept):
                found.append(Series(one.labels, one.timestamps[low:high], one.values[low:high]))
        return found


def counter(values: Sequence[float | None], name: str = "a") -> Series:
    labels: Labels = (("__name__", "x_total"), ("owner", name))
    there = [
        (END_MS - (len(values) - 1 - n) * STEP_MS, value) for n, value in enumerate(values) if value is not None
    ]
    return Series(
        labels, np.array([at for at, _ in there], np.int64), np.array([value for _, value in there], float)
    )


def growth(series: Sequence[Series], seconds: float) -> dict[str, float]:
    engine = EmbeddedEngine(None, Engine(Samples(series)))  # type: ignore[arg-type]
    found = asyncio.run(counter_growth(engine, "x_total", END_MS - int(seconds * 1000), END_MS))
    return {dict(labels)["owner"]: total for labels, total in zip(found.labels, found.totals, strict=True)}


def truth(values: Sequence[float | None], first: int) -> float:
    """The plain sum from sample number `first` on; earlier samples only give the value to start from."""
    before = [value for value in values[:first] if value is not None]
    value = before[-1] if before else 0.0
    total = 0.0
    for now in values[first:]:
        if now is not None:
            total += now - value if now >= value else now
            value = now
    return total


def test_a_counter_that_was_there_before_grows_from_its_value() -> None:
    values = [1000.0 + n for n in range(POINTS)]
    assert growth([counter(values)], 3600) == {"a": pytest.approx(240)}


def test_a_job_of_twenty_seconds_is_counted_whole() -> None:
    values: list[float | None] = [None] * POINTS
    values[500:502] = [7.0, 20.0]
    assert growth([counter(values)], 4 * 3600) == {"a": pytest.approx(20)}


def test_a_reset_counts_both_parts() -> None:
    values = [float(n) for n in range(700)] + [float(n) for n in range(POINTS - 700)]
    assert growth([counter(values)], 3600 * 2) == {"a": pytest.approx(truth(values, POINTS - 480))}


def test_a_gap_in_which_the_counter_went_on_is_counted() -> None:
    values: list[float | None] = [float(n) for n in range(POINTS)]
    values[300:600] = [None] * 300
    assert growth([counter(values)], 4 * 3600 - 15) == {"a": pytest.approx(959)}


@settings(max_examples=examples(40))
@given(
    st.lists(
        st.tuples(st.integers(1, 200), st.sampled_from(["grow", "still", "gap", "reset"]), st.floats(0.1, 15)),
        min_size=1,
        max_size=12,
    ),
    st.integers(20, 940),
)
def test_any_history(pieces: list[tuple[int, str, float]], samples: int) -> None:
    values: list[float | None] = []
    value = 0.0
    for length, what, rate in pieces:
        value = 0.0 if what == "reset" else value
        for _ in range(length):
            value += 0.0 if what == "still" else rate
            values.append(None if what == "gap" else value)
    values = [*([None] * (POINTS - len(values))), *values][-POINTS:]
    first = POINTS - samples
    found = growth([counter(values)], samples * 15) if any(v is not None for v in values) else {}
    assert found.get("a", 0.0) == pytest.approx(truth(values, first), rel=1e-6, abs=1e-6)


def test_hostile_names_are_quoted() -> None:
    name = 'a"b\\c\nd'
    values = [float(n % 50) for n in range(POINTS)]  # resets, so that the series is read by its own labels
    assert growth([counter(values, name)], 3600) == {name: pytest.approx(truth(values, POINTS - 240))}
