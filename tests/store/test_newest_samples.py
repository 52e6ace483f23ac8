"""The newest samples by target, compared with instant queries while targets come, change and go."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from gpuscope.history.promql import Engine
from gpuscope.history.promql.result import Vector
from gpuscope.history.store import Store
from gpuscope.history.store.label_queries import NewestSamples
from gpuscope.model.series import STALE_NAN_BITS, Labels
from tests.store.support import NOW, HandClock, labels, tick

STEP = 15_000
LOOKBACK = 300_000
STALE = float(np.array([STALE_NAN_BITS], dtype=np.int64).view(np.float64)[0])
Contents = dict[Labels, float]


def only_x(name: str, found: Mapping[str, str]) -> bool:
    return name == "x" and found.get("gpu") != "unwanted"


def contents(newest: NewestSamples, now_ms: int) -> Contents:
    found: Contents = {}
    for samples in newest.read(now_ms).values():
        for name, some, value in samples:
            key = labels(name, **some)
            assert found.get(key, value) == value, "targets that write one series agree"
            found[key] = value
    return found


def queried(store: Store, now_ms: int) -> Contents:
    result = Engine(store).instant('x{gpu!="unwanted"}', now_ms)
    assert isinstance(result, Vector)
    return dict(zip(result.labels, result.values.tolist(), strict=True))


@pytest.mark.parametrize("seed", range(3))
def test_it_equals_an_instant_query(store: Store, clock: HandClock, seed: int) -> None:
    """Gaps, stale markers, two requests for one time, late and future samples, shared series, seals."""
    rng = np.random.default_rng(seed)
    newest = store.newest_samples(only_x, LOOKBACK)
    targets = [store.target(f"node{number}") for number in range(4)]
    sets = [[labels("x", node=str(n), gpu=str(g)) for g in range(5)] for n in range(4)]
    for n in range(4):
        sets[n] += [labels("x", node=str(n), gpu="unwanted"), labels("y", node=str(n), gpu="0")]
    if seed % 3 == 2:  # a series that two targets write
        sets[1][0] = sets[0][0]
    series = [store.resolve(*pair) for pair in zip(targets, sets, strict=True)]
    for number in range(70):
        clock.at = NOW + number * STEP
        for node, target in enumerate(targets):
            if node == 2 and 20 < number < 50:
                continue  # does not answer for longer than the lookback delta
            chosen = np.flatnonzero(rng.random(7) < (0.8 if node else 1.0))
            values = np.round(rng.random(len(chosen)), 3)
            values[rng.random(len(chosen)) < 0.1] = STALE
            late = int(rng.integers(0, 40 * STEP)) if node == 3 and rng.random() < 0.2 else 0
            future = 2 * STEP if node == 1 and rng.random() < 0.1 else 0
            half = len(chosen) // 2
            for part in (slice(0, half), slice(half, None)):  # as a remote writer sends one scrape
                if len(chosen[part]):
                    at = clock.at + node * 7 - late + future
                    store.append(tick(target, at, series[node][chosen[part]], values[part]))
        if number == 30:
            series[0] = store.resolve(targets[0], [*sets[0], labels("x", node="0", gpu="new")])[:-1]
        if number in (25, 45):
            store.seal()
        for now in (clock.at, clock.at + 1000, clock.at + STEP - 1):
            assert contents(newest, now) == queried(store, now), (number, now - clock.at)
    clock.at += LOOKBACK + 2 * STEP + 100
    assert contents(newest, clock.at) == queried(store, clock.at) == {}


def test_only_targets_with_new_samples_are_read_again(store: Store, clock: HandClock) -> None:
    newest = store.newest_samples(only_x, LOOKBACK)
    targets = [store.target(f"node{number}") for number in range(3)]
    series = [store.resolve(one, [labels("x", node=str(one))]) for one in targets]
    for target, ids in zip(targets, series, strict=True):
        store.append(tick(target, NOW, ids, np.array([1.0])))
    before = newest.read(NOW + 1)
    store.append(tick(targets[1], NOW + 1000, series[1], np.array([2.0])))
    after = newest.read(NOW + 1001)
    assert list(after) == ["node0", "node1", "node2"]
    assert [before[name] is after[name] for name in after] == [True, False, True]


def test_series_of_one_subject_share_their_labels(store: Store, clock: HandClock) -> None:
    newest = store.newest_samples(lambda name, found: True, LOOKBACK)
    target = store.target("node")
    series = store.resolve(target, [labels(name, gpu="0") for name in "abc"])
    store.append(tick(target, NOW, series, np.array([1.0, 2.0, 3.0])))
    (samples,) = newest.read(NOW).values()
    assert {name for name, _, _ in samples} == set("abc")
    assert len({id(found) for _, found, _ in samples}) == 1
