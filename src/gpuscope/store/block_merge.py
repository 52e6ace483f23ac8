"""Blocks of one target to one: fewer, longer chunks compress better and are read faster.

Overlapping blocks (late samples, or the clock had jumped back) come out in order and without repetition. A
target with very many series gets several merged blocks, each with some of the series, so that memory stays
bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.store.arrays import distinct
from gpuscope.store.block_builder import BlockBuilder, BuiltBlock
from gpuscope.store.blocks import BlockReader
from gpuscope.store.contents import LATE, Block, TargetState
from gpuscope.store.head_view import Samples
from gpuscope.store.options import DAY_MS
from gpuscope.store.reader import Joined
from gpuscope.store.seal import shift_ms
from gpuscope.store.tick import Int64s

FINISHED = 100
"""The level of a block that holds a whole day; lower levels count how often samples were merged."""
_TOGETHER = 4
SERIES_PER_BLOCK = 4096
_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Merge:
    """Blocks that should become one of a higher level."""

    blocks: list[Block]
    level: int


def due_merges(state: TargetState, now: int, window_ms: int) -> list[Merge]:
    """All blocks of a day that is over; of a running day, each four of a level, so that a query over the last
    hours opens a handful of chunks for each series and not dozens."""
    shift = shift_ms(state.id, window_ms)
    days: dict[int, list[Block]] = {}
    for block in state.blocks:
        days.setdefault((block.first - shift) // DAY_MS, []).append(block)
    settled = not state.late and abs(now - state.late_ms) > window_ms
    due = []
    for day, blocks in sorted(days.items()):
        late = [block for block in blocks if block.level == LATE]
        if late and not settled and len(late) < _TOGETHER:
            blocks = [block for block in blocks if block.level != LATE]  # more may come: merge once
            late = []
        if (day + 1) * DAY_MS + shift + 2 * window_ms <= now:
            if len(blocks) > 1 and any(block.level < FINISHED for block in blocks):
                due.append(Merge(blocks, FINISHED))
            continue
        if late:
            due.append(_with_overlapped(late, blocks))
            continue
        for level in sorted({block.level for block in blocks if block.level < FINISHED}):
            same = [block for block in blocks if block.level == level]
            if _runs(same) >= _TOGETHER:
                due.append(Merge(same, level + 1))
    return due


def _with_overlapped(late: list[Block], blocks: list[Block]) -> Merge:
    """Late blocks of a running day and those whose time they share, to blocks of the same level."""
    first, last = min(block.first for block in late), max(block.last for block in late)
    others = [block for block in blocks if block.level != LATE and block.first <= last and block.last >= first]
    return Merge([*others, *late], max((block.level for block in others), default=0))


def _runs(blocks: list[Block]) -> int:
    """How many stretches of time some blocks cover; the parts of one large merge are one stretch."""
    count, reached = 0, -1
    for block in sorted(blocks, key=lambda one: one.first):
        count += block.first > reached
        reached = max(reached, block.last)
    return count


def members_of(reader: BlockReader, blocks: list[Block]) -> Int64s:
    """All series of some blocks, ascending."""
    return distinct(np.concatenate([reader.members(block) for block in blocks]))


def merge_series(reader: BlockReader, merge: Merge, series: Int64s, block_id: int) -> BuiltBlock | None:
    """One new block with some series of the old ones."""
    blocks = merge.blocks
    bases = [base for block in blocks if (base := reader.base_times(block)) is not None]
    builder = BlockBuilder(distinct(np.concatenate(bases)) if bases else np.empty(0, np.int64))
    joined = Joined()
    for at in range(0, len(series), _AT_ONCE):
        parts: dict[int, list[Samples]] = {}
        for block in blocks:
            for sid, samples in reader.read(block, series[at : at + _AT_ONCE]).items():
                parts.setdefault(sid, []).append(samples)
        for sid, some in parts.items():
            times, values = some[0] if len(some) == 1 else joined(some)
            builder.add_timed(sid, times, values)
    return builder.build(block_id, blocks[0].target, merge.level)
