"""The newest rows of all heads: what a reader gets while heads grow, are sealed and are removed."""

from __future__ import annotations

import numpy as np

from gpuscope.history.store.contents import NO_ROW, NewestRows
from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT_BITS

IDS = np.array([3, 5, 2000])
"""One of them is beyond the first size of the arrays."""


def head_of(series: np.ndarray, rows: list[tuple[int, list[float]]]) -> Head:
    head = Head()
    for time, values in rows:
        head.append_row(time, head.add_layout(series, 0), np.array(values))
    return head


def read(rows: NewestRows, heads: list[Head], target: int = 1, series: np.ndarray = IDS) -> list[float | None]:
    """The values of a usable target, None for an absent one."""
    found = rows.read(np.array([target]), series, heads)
    assert found.is_usable.tolist() == [True]
    return [None if bits == ABSENT_BITS else value for bits, value in
            zip(found.values.view(np.int64).tolist(), found.values.tolist(), strict=True)]  # fmt: skip


def test_the_last_published_row_is_read() -> None:
    rows, head = NewestRows(), head_of(IDS, [(10, [1.0, 2.0, 3.0])])
    rows.publish(1, head)
    assert read(rows, [head]) == [1.0, 2.0, 3.0]
    head.append_row(20, head.add_layout(IDS[:2], 0), np.array([4.0, 5.0]))
    rows.publish(1, head)
    assert read(rows, [head]) == [4.0, 5.0, None]
    assert rows.read(np.array([1]), IDS, [head]).moments.tolist() == [20]


def test_columns_in_another_order_than_the_ids() -> None:
    rows, head = NewestRows(), head_of(IDS[::-1].copy(), [(10, [3.0, 2.0, 1.0])])
    rows.publish(1, head)
    assert read(rows, [head]) == [1.0, 2.0, 3.0]


def test_a_series_that_came_after_the_newest_row() -> None:
    rows, head = NewestRows(), head_of(IDS[:2], [(10, [1.0, 2.0])])
    head.add_layout(IDS, 0)
    rows.publish(1, head)
    assert read(rows, [head]) == [1.0, 2.0, None]


def test_a_replaced_head_is_not_usable_until_it_is_published() -> None:
    rows, old = NewestRows(), head_of(IDS, [(10, [1.0, 2.0, 3.0])])
    rows.publish(1, old)
    new = head_of(IDS[:1], [(20, [4.0])])
    assert not rows.read(np.array([1]), IDS, [new]).is_usable.any()
    rows.publish(1, new)
    assert read(rows, [new]) == [4.0, None, None]
    assert not rows.read(np.array([1]), IDS, [old]).is_usable.any()


def test_targets_that_are_unknown_removed_or_not_in_rows() -> None:
    rows, head = NewestRows(), head_of(IDS, [(10, [1.0, 2.0, 3.0])])
    assert not rows.read(np.array([9, 10**6]), np.array([10**7]), [head, head]).is_usable.any()
    rows.publish(1, head)
    rows.forget(1)
    assert not rows.read(np.array([1]), IDS, [head]).is_usable.any()
    empty = Head()
    rows.publish(2, empty)
    assert rows.read(np.array([2]), IDS, [empty]).moments.tolist() == [NO_ROW]


def test_a_target_that_is_being_written_is_not_usable() -> None:
    """`publish` may be interrupted anywhere: here a reader comes while it asks the head for its row."""
    rows, head = NewestRows(), head_of(IDS, [(10, [1.0, 2.0, 3.0])])
    rows.publish(1, head)
    seen: list[bool] = []

    class Watched(Head):
        @property
        def order(self) -> tuple[np.ndarray, np.ndarray]:
            seen.append(bool(rows.read(np.array([1]), IDS, [self]).is_usable.any()))
            return super().order

    watched = Watched()
    watched.append_row(20, watched.add_layout(IDS, 0), np.array([7.0, 8.0, 9.0]))
    rows.publish(1, watched)
    assert seen == [False]
    rows.publish(1, head)  # asks the head before for its series while it writes
    assert seen == [False, False]
