"""The memory that queries share: waiting, returning, and no leaks."""

from __future__ import annotations

import contextlib
import gc
import threading
from pathlib import Path

import numpy as np
import pytest

from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.promql import Engine, ExecutionError, QueryCanceledError, QueryTimeoutError
from gpuscope.history.promql import budget as budgets
from gpuscope.history.promql.budget import FREE_SAMPLES, Budget, SamplePool
from gpuscope.history.promql.frame import Frame
from gpuscope.history.store import Store
from gpuscope.model.label_columns import LabelColumns
from tests.promql.memory import MemoryStorage
from tests.store.support import NOW, HandClock, labels, named, tick

SIZE = 10 * FREE_SAMPLES
HOUR_MS = 3_600_000


@pytest.fixture
def pool() -> SamplePool:
    return SamplePool(SIZE)


def budget(pool: SamplePool, cancelled: threading.Event | None = None) -> Budget:
    return Budget(10**9, None, cancelled, 10**9, pool)


def test_small_queries_do_not_use_the_pool(pool: SamplePool) -> None:
    one = budget(pool)
    one.charge(FREE_SAMPLES)
    assert pool.left == SIZE
    one.charge(1)
    assert pool.left == SIZE - FREE_SAMPLES


def test_released_and_closed_budgets_return_their_memory(pool: SamplePool) -> None:
    one = budget(pool)
    one.charge(5 * FREE_SAMPLES)
    assert pool.left == SIZE - 4 * FREE_SAMPLES
    one.release(2 * FREE_SAMPLES)
    assert pool.left == SIZE - 2 * FREE_SAMPLES
    one.close()
    assert pool.left == SIZE
    one.charge(5 * FREE_SAMPLES)
    del one
    gc.collect()
    assert pool.left == SIZE


def test_memory_is_taken_from_the_pool_before_it_is_allocated(pool: SamplePool) -> None:
    """Otherwise each of twenty queries would allocate its frame before it waits for the others."""
    one, other = budget(pool), budget(pool, cancelled := threading.Event())
    one.reserve(3 * FREE_SAMPLES)
    one.reserve(5 * FREE_SAMPLES)
    assert pool.left == SIZE - 7 * FREE_SAMPLES
    cancelled.set()
    with pytest.raises(QueryCanceledError):  # it waits
        other.reserve(8 * FREE_SAMPLES)
    one.charge(8 * FREE_SAMPLES)
    assert pool.left == SIZE - 7 * FREE_SAMPLES
    one.reserve(FREE_SAMPLES)
    one.close()
    assert pool.left == SIZE


def test_label_text_is_taken_from_the_pool(pool: SamplePool) -> None:
    one = budget(pool)
    one.charge_labels(16 * 3 * FREE_SAMPLES, is_ascii=True)
    assert pool.left <= SIZE - 2 * FREE_SAMPLES


def test_a_query_waits_for_another(pool: SamplePool) -> None:
    first, second = budget(pool), budget(pool)
    first.charge(10 * FREE_SAMPLES)
    waiter = threading.Thread(target=second.charge, args=(5 * FREE_SAMPLES,))
    waiter.start()
    first.close()
    waiter.join()
    assert pool.left == SIZE - 4 * FREE_SAMPLES


def test_waiting_is_limited(pool: SamplePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two queries may wait for each other."""
    monkeypatch.setattr(budgets, "WAIT_SECONDS", 0.0)
    before = LIMITS_REACHED.counts()["query_max_total_samples"]
    first, second = budget(pool), budget(pool)
    first.charge(10 * FREE_SAMPLES)
    with pytest.raises(QueryTimeoutError, match="query_max_total_samples"):
        second.charge(5 * FREE_SAMPLES)
    assert LIMITS_REACHED.counts()["query_max_total_samples"] == before + 1


def test_a_query_that_waits_can_be_cancelled(pool: SamplePool) -> None:
    cancelled = threading.Event()
    first, second = budget(pool), budget(pool, cancelled)
    first.charge(10 * FREE_SAMPLES)
    cancelled.set()
    with pytest.raises(QueryCanceledError):
        second.charge(5 * FREE_SAMPLES)


def test_a_request_larger_than_the_pool_fails_at_once(pool: SamplePool) -> None:
    one = budget(pool)
    one.charge(6 * FREE_SAMPLES)
    with pytest.raises(ExecutionError, match="query_max_total_samples"):
        one.charge(6 * FREE_SAMPLES)


@pytest.mark.parametrize(
    "query", ["sum_over_time(vector(1)[300000s:1s])", "vector(1)[300000s:1s]", "vector(1)[1y:1s]"]
)
def test_an_engine_returns_the_memory_of_its_queries(query: str) -> None:
    pool = SamplePool(30 * FREE_SAMPLES)
    engine = Engine(MemoryStorage(), max_samples=20 * FREE_SAMPLES, pool=pool)
    for _ in range(3):
        with contextlib.suppress(ExecutionError):
            engine.instant(query, 0)
        gc.collect()
        assert pool.left == pool.size


def test_overhead_is_taken_from_the_pool_but_not_counted_as_samples(pool: SamplePool) -> None:
    one = budget(pool)
    one.charge(10, 3 * FREE_SAMPLES)
    assert (one.samples, one.peak) == (10, 10)
    assert pool.left == SIZE - 3 * FREE_SAMPLES
    one.keep_only(10)
    assert pool.left == SIZE


def test_a_store_is_stopped_before_it_loads_more_than_the_pool_holds(tmp_path: Path) -> None:
    hours = 150
    with Store(tmp_path, clock=HandClock(NOW + hours * HOUR_MS)) as store:
        target = store.target("node")
        series = store.resolve(target, [labels("x", gpu="0")])
        for hour in range(hours):
            store.append(tick(target, NOW + hour * HOUR_MS, series, (1.0,)))
        asked: list[tuple[int, int]] = []
        whole = store.select(named("x"), NOW, NOW + hours * HOUR_MS, lambda *some: asked.append(some))
        assert sum(samples for _, samples in asked) >= len(whole[0].timestamps) == hours
        engine = Engine(store, max_samples=hours - 1)
        with pytest.raises(ExecutionError, match="too many samples"):
            engine.instant(f"sum_over_time(x[{hours}h])", NOW + hours * HOUR_MS)


def test_few_samples_are_loaded_without_admit(tmp_path: Path) -> None:
    with Store(tmp_path, clock=HandClock(NOW)) as store:
        target = store.target("node")
        store.append(tick(target, NOW, store.resolve(target, [labels("x", gpu="0")]), (1.0,)))
        assert store.select(named("x"), NOW - HOUR_MS, NOW, lambda *_: pytest.fail("asked"))


def test_a_copy_without_empty_rows_is_taken_from_the_pool(pool: SamplePool) -> None:
    """The copy is nine bytes a value; while it is made, the original is there too."""
    one = budget(pool)
    values = np.ones((2, 2 * FREE_SAMPLES))
    present = np.ones(values.shape, dtype=np.bool_)
    present[1] = False
    frame = Frame(LabelColumns.of([(), ()]), values, present)
    one.charge(2 * FREE_SAMPLES)
    before = pool.left
    assert len(one.run(frame.without_empty_rows).labels) == 1
    assert one.samples == 2 * FREE_SAMPLES, "they are no samples of the query's again"
    assert pool.left == before - 2 * FREE_SAMPLES
    one.close()
    assert pool.left == SIZE
