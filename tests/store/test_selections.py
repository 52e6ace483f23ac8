from __future__ import annotations

import numpy as np
import pytest

from gpuscope.history.store import selections
from gpuscope.history.store.index import Index
from gpuscope.history.store.selections import Selections
from gpuscope.model.series import Matcher, MatchOp
from tests.store.support import labels

X = (Matcher("__name__", MatchOp.EQUAL, "x"),)


def test_a_repeated_selection_is_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    index.resolve(1, labels("x", gpu="0"))
    known = Selections(index)
    first = known.find(X)
    monkeypatch.setattr(index, "select", lambda matchers, admit: pytest.fail("the index was searched again"))
    assert known.find(list(X)) is first


def test_every_change_of_the_index_invalidates_the_cache() -> None:
    index = Index()
    one = index.resolve(1, labels("x", gpu="0"))
    known = Selections(index)
    assert _ids(known) == {1: [one]}
    two = index.resolve(2, labels("x", gpu="1"))
    assert _ids(known) == {1: [one], 2: [two]}
    index.claim(2, np.array([one]))
    assert _ids(known) == {1: [one], 2: [one, two]}
    with index.removing([two]):
        pass
    assert _ids(known) == {1: [one], 2: [one]}


def test_new_series_that_do_not_match_keep_the_selection() -> None:
    index = Index()
    index.resolve(1, labels("x", gpu="0"))
    known = Selections(index)
    first = known.find(X)
    index.resolve(1, labels("y", gpu="0"))
    assert known.known(X) is None
    assert known.find(X) is first
    assert known.known(X) is first


def test_a_selection_made_while_the_index_changes_is_not_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    index = Index()
    index.resolve(1, labels("x", gpu="0"))
    known, select = Selections(index), index.select

    def slow_select(matchers: object, admit: object) -> object:
        found = select(X)
        index.resolve(1, labels("x", gpu="1"))
        return found

    monkeypatch.setattr(index, "select", slow_select)
    assert len(_ids(known)[1]) == 1
    monkeypatch.setattr(index, "select", select)
    assert len(_ids(known)[1]) == 2


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selections, "MIN_CACHED_SERIES", 5)
    index = Index()
    for number in range(4):
        index.resolve(1, labels("x", gpu=str(number)))
    known = Selections(index)
    first = known.find(X)
    assert known.find(X) is first
    known.find(
        (*X, Matcher("gpu", MatchOp.REGEX, "0|1|2"))
    )  # seven series in total: the older entry is dropped
    assert known.find(X) is not first


def test_selections_of_a_whole_store_stay_cached(monkeypatch: pytest.MonkeyPatch) -> None:
    """A round of the checks over 1,000 nodes selects most series, and the next one selects nothing anew."""
    monkeypatch.setattr(selections, "MIN_CACHED_SERIES", 5)
    index = Index()
    names = ["x", "y", "z"]
    for name in names:
        for number in range(4):
            index.resolve(1, labels(name, gpu=str(number)))
    known = Selections(index)
    round_of_checks = [(Matcher("__name__", MatchOp.EQUAL, name),) for name in names]
    first = [known.find(matchers) for matchers in round_of_checks]
    monkeypatch.setattr(index, "select", lambda matchers, admit: pytest.fail("the index was searched again"))
    assert [known.find(matchers) for matchers in round_of_checks] == first


def test_long_selections_are_not_cached() -> None:
    index = Index()
    one = index.resolve(1, labels("x", gpu="0"))
    known = Selections(index)
    long = (
        *X,
        Matcher("gpu", MatchOp.REGEX, "0|" + "y" * 3000),
        Matcher("gpu", MatchOp.REGEX, "0.?|" + "y" * 3000),
    )
    assert known.find(long).groups[1].tolist() == [one]
    assert known.known(long) is None
    assert index.cached_regexes() == (0, 0)


def _ids(known: Selections) -> dict[int, list[int]]:
    return {target: series.tolist() for target, series in known.find(X).groups.items()}
