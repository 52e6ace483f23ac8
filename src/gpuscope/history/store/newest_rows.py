"""The newest row of every head in one array by series id: an instant query over 1,000 targets is one read.

The writer publishes a head after each change. Readers take no lock: a target whose version is odd, or differs
before and after the read, was being written, and its head is read instead. Two targets that write one series
would overwrite each other's value: selections with such series are not read here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT
from gpuscope.history.store.tick import Bools, Float64s, Int64s

NO_ROW: Final = np.iinfo(np.int64).max
"""The time of a target that has no row, or whose samples are not all in ascending rows."""
_MIN_SIZE = 1024

Number = TypeVar("Number", np.float64, np.int64)


class NewestCells(NamedTuple):
    """What the newest rows of some targets have."""

    moments: Int64s
    """The time of each target's newest row."""
    values: Float64s
    """Of each series; `ABSENT` if the row has none."""
    is_usable: Bools
    """By target; the numbers of any other are not valid."""


class NewestRows:
    """`publish` and `forget` belong to the writer's thread, `read` to any."""

    def __init__(self) -> None:
        self._values = np.full(_MIN_SIZE, ABSENT)
        """By series id. The last cell is never used: ids that are not here yet are read from it."""
        self._moments = np.full(_MIN_SIZE, NO_ROW)
        """By target id, the last one as above."""
        self._versions = np.zeros(_MIN_SIZE, np.int64)
        self._heads: dict[int, Head] = {}

    def publish(self, target: int, head: Head) -> None:
        series, columns = head.order
        self._make_room(target, int(series[-1]) if len(series) else 0)
        row = head.newest_row(NO_ROW)
        before = self._heads.get(target)
        self._versions[target] += 1
        if before is not None and before is not head:  # a seal drops series that have no newer samples
            self._values[before.order[0]] = ABSENT
        if row is None:
            self._moments[target] = NO_ROW
        else:
            self._moments[target], cells = row
            if len(cells) < len(series):  # the row is older than a column
                cells = np.append(cells, np.full(len(series) - len(cells), ABSENT))
            self._values[series] = cells[: len(series)] if head.columns_ascend else cells[columns]
        self._heads[target] = head
        self._versions[target] += 1

    def forget(self, target: int) -> None:
        """A removed target's head must not stay in memory."""
        self._heads.pop(target, None)

    def _make_room(self, target: int, sid: int) -> None:
        """Replace full arrays by larger ones; readers that have the old ones see another version."""
        if sid + 1 >= len(self._values):
            self._values = _grown(self._values, sid + 2, ABSENT)
        if target + 1 >= len(self._moments):
            self._moments = _grown(self._moments, target + 2, NO_ROW)
            self._versions = _grown(self._versions, target + 2, 0)

    def read(self, targets: Int64s, series: Int64s, heads: Sequence[Head]) -> NewestCells:
        """`heads` are those of the targets: rows of a head that a seal has replaced meanwhile are not
        usable."""
        before = self._versions.take(targets, mode="clip")
        moments = self._moments.take(targets, mode="clip")
        values = self._values.take(series, mode="clip")
        known = list(map(self._heads.get, targets.tolist()))
        is_usable = (self._versions.take(targets, mode="clip") == before) & (before & 1 == 0)
        if known != heads:
            is_usable &= np.array([one is other for one, other in zip(known, heads, strict=True)], np.bool_)
        return NewestCells(moments, values, is_usable)


def _grown(old: NDArray[Number], size: int, empty: float) -> NDArray[Number]:
    new = np.full(max(size, len(old) * 5 // 4), empty, old.dtype)
    new[: len(old)] = old
    return new
