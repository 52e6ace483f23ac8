"""Reads served from memory: heads and cached chunks."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpuscope.history.store import Store
from gpuscope.model.series import Matcher, MatchOp
from tests.store.support import NOW, HandClock, contents_of, labels, tick

X = (Matcher("__name__", MatchOp.EQUAL, "x"),)
SPAN = (NOW, NOW + 5000)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Two series of one target, three ticks; a third series is added later."""
    clock = HandClock()
    with Store(tmp_path, clock=clock) as opened:
        target = opened.target("node")
        series = opened.resolve(target, [labels("x", gpu="0"), labels("x", gpu="1")])
        for step in range(3):
            opened.append(tick(target, NOW + step * 1000, series, (1.0, 2.0)))
        clock.at = NOW + 3000
        yield opened


@pytest.fixture
def no_file(monkeypatch: pytest.MonkeyPatch, store: Store) -> Any:
    """Return a function after which a read of the file fails the test."""

    def close() -> None:
        monkeypatch.setattr(store.reader, "take_connection", lambda: pytest.fail("the file was read"))

    return close


def test_a_head_needs_no_file(store: Store, no_file: Any) -> None:
    no_file()
    assert [len(one.timestamps) for one in store.select(X, *SPAN)] == [3, 3]
    assert [one.timestamps.tolist() for one in store.latest(X, *SPAN)] == [[NOW + 2000]] * 2


def test_a_block_read_once_needs_no_file(store: Store, no_file: Any) -> None:
    store.seal()
    before = contents_of(store)
    no_file()
    assert contents_of(store) == before
    assert [one.timestamps.tolist() for one in store.latest(X, *SPAN)] == [[NOW + 2000]] * 2


def test_the_absence_of_a_series_in_a_block_is_cached(store: Store, no_file: Any) -> None:
    store.seal()
    target = store.target("node")
    late = store.resolve(target, [labels("x", gpu="2")])
    store.append(tick(target, NOW + 3000, late, (3.0,)))
    first = store.select(X, *SPAN)
    assert [len(one.timestamps) for one in first] == [3, 3, 1]
    no_file()
    assert [len(one.timestamps) for one in store.select(X, *SPAN)] == [3, 3, 1]


def test_an_unreadable_series_is_not_cached_as_absent(store: Store, tmp_path: Path) -> None:
    store.seal()
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as db, db:
        whole = db.execute("SELECT id, data FROM bundle").fetchall()
        db.execute("UPDATE bundle SET data = x'00'")
    assert not store.select(X, *SPAN)
    with closing(sqlite3.connect(tmp_path / "store.sqlite")) as db, db:
        db.executemany("UPDATE bundle SET data = ? WHERE id = ?", [(data, number) for number, data in whole])
    assert [len(one.timestamps) for one in store.select(X, *SPAN)] == [3, 3]


def test_count_in_memory_needs_an_earlier_query(store: Store) -> None:
    assert store.count_in_memory(X, *SPAN) is None
    store.select(X, *SPAN)
    assert store.count_in_memory(X, *SPAN) == (2, 6)
    with store.contents.lock:  # a block is being published: a query would have to wait
        assert store.count_in_memory(X, *SPAN) is None
    store.seal()
    assert store.count_in_memory(X, *SPAN) is None
    assert store.count_in_memory(X, NOW + 2001, NOW + 5000) == (2, 0)
    store.select(X, *SPAN)
    assert store.count_in_memory(X, *SPAN) == (2, 6)
    assert store.count_in_memory(X, NOW, NOW + 1000) == (2, 3)  # about half of the block's time range


def test_a_read_that_needs_the_file_calls_admit_once(store: Store) -> None:
    store.seal()
    store.reader.use_new_file()  # nothing is cached
    asked: list[tuple[int, int]] = []
    groups = store.selections.find(X).groups
    store.reader.read(groups, *SPAN, lambda *some: asked.append(some))
    assert sum(samples for _, samples in asked) == 6


def test_series_found_by_several_selectors_are_returned_once(store: Store) -> None:
    gpu = (Matcher("gpu", MatchOp.EQUAL, "1"),)
    assert sorted(store.any_series([X, gpu, X])) == [labels("x", gpu="0"), labels("x", gpu="1")]
    assert list(store.any_series([gpu], *SPAN)) == [labels("x", gpu="1")]
    assert list(store.any_series([], *SPAN)) == []

    def selectors() -> Iterator[tuple[Matcher, ...]]:
        yield X
        raise TimeoutError

    with pytest.raises(TimeoutError):
        list(store.any_series(selectors()))
