"""Sorts in portions, so that a sort can be stopped. While Python sorts a list, no other thread runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

T = TypeVar("T")

ITEMS_PER_SORT = 65_536
"""Sorted between two checks: about 100 ms."""


def sort_in_portions(
    items: Iterable[T], key: Callable[[T], Any] | None = None, check: Callable[[], None] = lambda: None
) -> list[T]:
    """As `sorted`; `check` is called before each portion and may raise."""
    every = list(items)
    if len(every) <= ITEMS_PER_SORT:
        check()
        every.sort(key=key)
        return every
    runs = [every[at : at + ITEMS_PER_SORT] for at in range(0, len(every), ITEMS_PER_SORT)]
    for run in runs:
        check()
        run.sort(key=key)
    while len(runs) > 1:
        pairs = [runs[at : at + 2] for at in range(0, len(runs), 2)]
        runs = []
        for pair in pairs:
            check()
            # Python's sort detects two sorted runs and merges them.
            merged = [item for run in pair for item in run]
            merged.sort(key=key)
            runs.append(merged)
    return runs[0]
