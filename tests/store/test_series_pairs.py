"""The flat array of label pairs, compared with a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.store.series_pairs import SeriesPairs

NUMBERS = st.lists(st.integers(1, 2**31 - 1), max_size=6)
ADDED = st.lists(NUMBERS, max_size=5)
REMOVED = st.sets(st.integers(1, 40))


def packed(numbers: list[int]) -> bytes:
    return np.array(numbers, "<i4").tobytes()


def check(pairs: SeriesPairs, model: dict[int, list[int]]) -> None:
    assert len(pairs) == len(model)
    assert pairs.ids().tolist() == sorted(model)
    for sid in (*model, 0, 5_000):
        assert (sid in pairs) == (sid in model)
        assert pairs.get(sid).tolist() == model.get(sid, [])
    for sids in (sorted(model), sorted(model)[::2], sorted(model)[::-1], []):
        flat, counts = pairs.numbers_of(np.array(sids, np.int64))
        assert counts.tolist() == [len(model[sid]) for sid in sids]
        assert flat.tolist() == [number for sid in sids for number in model[sid]]


@given(st.lists(st.tuples(ADDED, st.booleans(), REMOVED), max_size=8))
def test_series_are_added_and_removed(steps: list[tuple[list[list[int]], bool, set[int]]]) -> None:
    pairs = SeriesPairs()
    model: dict[int, list[int]] = {}
    following = 1
    for added, at_once, removed in steps:
        new = dict(enumerate(added, following))
        following += len(new)
        if at_once:
            pairs.extend(np.array(list(new), np.int64), [packed(numbers) for numbers in new.values()])
        else:
            for sid, numbers in new.items():
                pairs.add(sid, packed(numbers))
        model |= new
        check(pairs, model)
        gone = sorted(removed & model.keys())
        pairs.remove(np.array(gone, np.int64))
        for sid in gone:
            del model[sid]
        check(pairs, model)


def test_many_series() -> None:
    """More than fit before the arrays grow."""
    pairs, model = SeriesPairs(), {sid: [sid, sid + 1, 7] for sid in range(1, 3_000)}
    for sid, numbers in model.items():
        pairs.add(sid, packed(numbers))
    check(pairs, model)
