"""Builds one block from samples of many series: shared timestamp columns and one chunk per series.

The base column holds the times of the target's scrapes. A series that misses some of them refers to the base
column by range or bitmap. Times that several series share but that are not in the base column become further
columns; a series with unique times stores them in its own chunk.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np

from gpuscope.history.store.bundle import BundleRow, to_bundles
from gpuscope.history.store.chunk_codec import (
    TimeSelection,
    encode_values,
    join_chunk,
    pack_columns,
    pack_integers,
    select_by_mask,
)
from gpuscope.history.store.contents import Block
from gpuscope.history.store.tick import Bools, Float64s, Int64s


@dataclass(frozen=True, slots=True)
class BuiltBlock:
    """An encoded block, ready to be written."""

    block: Block
    times: bytes
    members: bytes
    bundles: list[BundleRow]

    def row(self) -> tuple[int, int, int, int, int, int, bytes, bytes]:
        one = self.block
        return one.id, one.target, one.level, one.first, one.last, one.samples, self.times, self.members


INSERT_BLOCK = (
    "INSERT INTO block (id, target, level, first, last, samples, times, members) VALUES (?,?,?,?,?,?,?,?)"
)
INSERT_BUNDLE = "INSERT INTO bundle (id, data) VALUES (?, ?)"


class BlockBuilder:
    """Call `add_masked` or `add_timed` once per series, then `build`."""

    def __init__(self, base: Int64s, *, quick: bool = False) -> None:
        self._quick = quick
        self._base = base
        self._series: list[tuple[int, bytes, TimeSelection | bytes]] = []
        self._masks: dict[bytes, TimeSelection] = {}
        self._own: dict[bytes, Int64s] = {}
        self._known: dict[int, TimeSelection | bytes] = {}
        self._keep: list[Int64s] = []
        self._uses: Counter[bytes] = Counter()
        self._first: int | None = None
        self._last: int | None = None
        self._samples = 0

    def add_masked(self, sid: int, present: Bools | None, values: Float64s) -> None:
        """Add a series that has a sample at the base times where `present` is set (None: at all of them)."""
        if present is None:
            where = TimeSelection()
            first, last = int(self._base[0]), int(self._base[-1])
        else:
            key = present.tobytes()
            found = self._masks.get(key)
            if found is None:
                found = self._masks[key] = select_by_mask(present)
            where = found
            at = np.flatnonzero(present)
            first, last = int(self._base[at[0]]), int(self._base[at[-1]])
        self._add(sid, values, where, first, last)

    def add_timed(self, sid: int, times: Int64s, values: Float64s) -> None:
        """Add a series with any times. Equal times are detected by array identity first, then by content."""
        where = self._known.get(id(times))
        if where is None:
            where = self._known[id(times)] = self._place(times)
            self._keep.append(times)  # keeps the array alive, so that its id is not reused
        if isinstance(where, bytes):
            self._uses[where] += 1
        self._add(sid, values, where, int(times[0]), int(times[-1]))

    def _place(self, times: Int64s) -> TimeSelection | bytes:
        base = self._base
        if len(base):
            at = np.minimum(np.searchsorted(base, times), len(base) - 1)
            if (base[at] == times).all():
                present = np.zeros(len(base), np.bool_)
                present[at] = True
                return select_by_mask(present)
        key = times.tobytes()
        self._own[key] = times
        return key

    def _add(self, sid: int, values: Float64s, where: TimeSelection | bytes, first: int, last: int) -> None:
        self._series.append((sid, encode_values(values, quick=self._quick), where))
        self._first = first if self._first is None else min(first, self._first)
        self._last = last if self._last is None else max(last, self._last)
        self._samples += len(values)

    def build(self, block: int, target: int, level: int) -> BuiltBlock | None:
        """Return the block; None if no series was added."""
        if self._first is None or self._last is None:
            return None
        columns = [self._base]
        places: dict[bytes, TimeSelection] = {}
        for key, times in self._own.items():
            if self._uses[key] > 1:
                places[key] = TimeSelection(len(columns))
                columns.append(times)
            else:
                places[key] = TimeSelection(own=pack_integers(times))
        self._series.sort(key=lambda one: one[0])
        chunks = [
            (sid, join_chunk(values, places[where] if isinstance(where, bytes) else where))
            for sid, values, where in self._series
        ]
        members = pack_integers(np.array([sid for sid, _, _ in self._series], np.int64))
        meta = Block(block, target, level, self._first, self._last, self._samples)
        return BuiltBlock(meta, pack_columns(columns), members, to_bundles(block, chunks))
