"""Compares results with a real Prometheus 3.x on the same data.

Series and presence must be equal, values within a relative error of 1e-12. The last tests break the evaluator
on purpose and expect the comparison to fail.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np
import pytest

from gpuscope.history.promql import Engine, over_time, range_functions, select
from gpuscope.model.series import Matcher, MatchOp
from tests.engines import running_prometheus
from tests.promql.corpus import by_hand, random_expressions
from tests.promql.hostile import SPAN_MS, START_MS, hostile_storage
from tests.promql.prometheus import Question, difference, fill

END_MS = START_MS + SPAN_MS


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[Engine, str]]:
    storage = hostile_storage()
    with running_prometheus() as url:
        fill(url, storage.series)
        yield Engine(storage), url


def questions(expr: str, step_ms: int) -> Iterator[Question]:
    yield Question(expr, START_MS - 600_000, END_MS + 600_000, step_ms)
    yield Question(expr, START_MS + 100 * step_ms % SPAN_MS)


def problems(expressions: Iterable[str], pair: tuple[Engine, str], step_ms: int = 47_000) -> list[str]:
    found = []
    for expr in expressions:
        for question in questions(expr, step_ms):
            problem = difference(question, *pair)
            if problem is not None:
                found.append(f"{question}\n    {problem}")
    return found


def test_every_function_and_operator(pair: tuple[Engine, str]) -> None:
    found = problems(by_hand(), pair)
    assert not found, f"{len(found)} differ:\n" + "\n".join(found[:20])


def test_random_expressions(pair: tuple[Engine, str]) -> None:
    found = problems(random_expressions(seed=7, count=300), pair)
    assert not found, f"{len(found)} differ:\n" + "\n".join(found[:20])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("seed", "step_ms"), [(2, 15_000), (3, 60_000), (4, 1_000_000), (5, 7_919), (6, 300_000)]
)
def test_other_data_and_many_more_expressions(seed: int, step_ms: int) -> None:
    storage = hostile_storage(seed)
    with running_prometheus() as url:
        fill(url, storage.series)
        expressions = chain(by_hand(), random_expressions(seed, 1_000))
        found = problems(expressions, (Engine(storage), url), step_ms)
    assert not found, f"{len(found)} differ:\n" + "\n".join(found[:20])


def _closed_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    real = select.windows
    monkeypatch.setattr(select, "windows", lambda series, ends, range_ms: real(series, ends, range_ms + 1))


def _closed_lookback(monkeypatch: pytest.MonkeyPatch) -> None:
    real = select.latest
    monkeypatch.setattr(
        select, "latest", lambda series, at, lookback, *rest: real(series, at, lookback + 1, *rest)
    )


def _blind_to_staleness(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select, "STALE_NAN_BITS", 0)


def _blind_to_resets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_functions, "add_resets", lambda *_: None)


def _no_extrapolation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_functions, "extrapolation_factor", lambda windows, low, *_: np.ones(low.size))


def _plain_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    def add(increment: Any, total: Any, error: Any) -> None:
        total += increment

    monkeypatch.setattr(over_time, "add", add)


def _nan_is_greatest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(over_time, "reduce_windows", lambda operation, values, low, counts: values[low])


@pytest.mark.parametrize(
    ("damage", "expr"),
    [
        (_closed_windows, "count_over_time(steps[5m])"),
        (_closed_lookback, "gauge"),
        (_blind_to_staleness, "gauge"),
        (_blind_to_staleness, "count_over_time(gauge[5m])"),
        (_blind_to_resets, "rate(events_total[5m])"),
        (_no_extrapolation, "increase(events_total[5m])"),
        (_plain_sums, "sum_over_time(cancels[3m])"),
        (_nan_is_greatest, "max_over_time(gauge[5m])"),
    ],
)
def test_a_broken_evaluator_is_caught(
    pair: tuple[Engine, str],
    monkeypatch: pytest.MonkeyPatch,
    damage: Callable[[pytest.MonkeyPatch], None],
    expr: str,
) -> None:
    # Steps at the times of the samples: only there is a sample exactly on a window's edge.
    sound = [Question(expr, raster, END_MS, 15_000) for raster in _rasters(pair[0])]
    assert [difference(question, *pair) for question in sound] == [None] * len(sound)
    damage(monkeypatch)
    assert any(difference(question, *pair) for question in sound)


def _rasters(engine: Engine) -> set[int]:
    """Offsets of the 15-second intervals of the hostile series."""
    matcher = Matcher("__name__", MatchOp.REGEX, "steps|gauge")
    series = engine.storage.select([matcher], START_MS, END_MS)
    return {START_MS + (int(one.timestamps[0]) - START_MS) % 15_000 for one in series}
