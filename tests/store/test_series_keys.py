"""Finding series by their label pairs, compared with a dictionary, also where hashes collide."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.history.store import series_pairs
from gpuscope.history.store.series_pairs import SeriesKeys, SeriesPairs

KEYS = st.lists(st.integers(1, 3), min_size=1, max_size=4).map(lambda some: np.array(some, "<i4").tobytes())
STEPS = st.lists(st.tuples(st.lists(KEYS, max_size=6), st.booleans(), st.sets(st.integers(1, 30))), max_size=8)


@pytest.mark.parametrize("hash_of", [hash, len, lambda _: 7])
@given(steps=STEPS)
def test_series_are_found_until_they_are_removed(
    hash_of: Callable[[bytes], int], steps: list[tuple[list[bytes], bool, set[int]]]
) -> None:
    pairs = SeriesPairs()
    keys = SeriesKeys(pairs, hash_of)
    model: dict[bytes, int] = {}
    everything: set[bytes] = set()
    following = 1
    for some, at_once, removed in steps:
        fresh = {key: sid for sid, key in enumerate(dict.fromkeys(some), following) if key not in model}
        following += len(some)
        for key, sid in fresh.items():
            pairs.add(sid, key)
            if not at_once:
                keys.add(key, sid)
        if at_once:
            keys.extend(list(fresh), np.array(list(fresh.values()), np.int64))
        model |= fresh
        everything |= fresh.keys()
        gone = sorted(set(model.values()) & removed)
        keys.remove(np.array(gone, np.int64))
        pairs.remove(np.array(gone, np.int64))
        model = {key: sid for key, sid in model.items() if sid not in removed}
        assert {key: keys.find(key) for key in everything} == {key: model.get(key) for key in everything}


@pytest.mark.parametrize("hash_of", [hash, lambda key: key[0] % 5])
def test_many_series_are_found_after_each_merge(
    monkeypatch: pytest.MonkeyPatch, hash_of: Callable[[bytes], int]
) -> None:
    monkeypatch.setattr(series_pairs, "MAX_NEW", 10)
    pairs = SeriesPairs()
    keys = SeriesKeys(pairs, hash_of)
    added: list[bytes] = []
    for sid in range(1, 300):
        key = np.array([sid, sid % 7], "<i4").tobytes()
        assert keys.find(key) is None
        pairs.add(sid, key)
        keys.add(key, sid)
        added.append(key)
        assert keys.find(key) == sid
    assert [keys.find(key) for key in added] == list(range(1, 300))
