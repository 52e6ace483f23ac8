"""Full collections visit only new objects; cycles among frozen objects are freed in the end."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gpuscope.cli.wiring import heap
from gpuscope.cli.wiring.heap import (
    collect_all_if_grown,
    freeze_survivors,
    paused_while_starting,
    stop_freezing,
)


class Node:
    """Refers to itself, so that only the garbage collector can free it."""

    def __init__(self) -> None:
        self.self = self


@pytest.fixture(autouse=True)
def collector() -> Iterator[None]:
    yield
    stop_freezing()
    gc.collect()


def test_survivors_are_not_visited_again() -> None:
    freeze_survivors()
    kept = [[number] for number in range(10_000)]
    before = gc.get_freeze_count()
    gc.collect()
    assert gc.get_freeze_count() > before + len(kept) // 2, "other objects may have been freed"
    assert len(gc.get_objects()) < len(kept), "only objects of this test's own frames are left to visit"


def test_frozen_objects_are_freed_by_their_reference_count() -> None:
    freeze_survivors()
    kept = [[number] for number in range(10_000)]
    gc.collect()
    before = gc.get_freeze_count()
    kept.clear()
    assert gc.get_freeze_count() <= before - 10_000


def test_a_start_has_no_collections_until_survivors_are_frozen() -> None:
    with paused_while_starting():
        assert not gc.isenabled()
    assert gc.isenabled(), "the start failed"
    with paused_while_starting():
        freeze_survivors()
        assert gc.isenabled()


def test_a_new_cycle_is_collected_as_before() -> None:
    freeze_survivors()
    watched = weakref.ref(Node())
    gc.collect()
    assert watched() is None


def test_cycles_that_were_frozen_are_collected_after_growth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heap, "MIN_GROWTH", 1000)
    freeze_survivors()
    before = gc.get_freeze_count()
    node = Node()
    watched = weakref.ref(node)
    gc.collect()
    del node
    gc.collect()
    assert watched() is not None, "a frozen cycle: this is the price"
    assert collect_all_if_grown(before) == before, "there was no growth"
    kept = [[number] for number in range(2 * before + 2000)]
    gc.collect()
    after = collect_all_if_grown(before)
    assert after >= len(kept)
    assert watched() is None
    assert collect_all_if_grown(after) == after
