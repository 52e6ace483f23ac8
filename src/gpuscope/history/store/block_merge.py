"""Merges blocks of one target: fewer, longer chunks compress better and are read faster.

Samples of overlapping blocks (late samples, or a clock that was set back) are sorted and deduplicated. A target
with very many series gets several merged blocks, each with a part of the series, to bound memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.history.store.arrays import distinct
from gpuscope.history.store.block_builder import BlockBuilder, BuiltBlock
from gpuscope.history.store.blocks import BlockReader
from gpuscope.history.store.contents import LATE_LEVEL, Block, StoredTargetState
from gpuscope.history.store.head_view import Samples
from gpuscope.history.store.options import DAY_MS
from gpuscope.history.store.reader import PartJoiner
from gpuscope.history.store.seal import shift_ms
from gpuscope.history.store.tick import Int64s

FINAL_LEVEL = 100
"""The level of a block that holds a whole period; a lower level is the number of merges."""
_MERGE_COUNT = 4
SERIES_PER_BLOCK = 4096
_BATCH_SERIES = 64


@dataclass(frozen=True, slots=True)
class Merge:
    """Blocks to merge, and the level of the result."""

    blocks: list[Block]
    level: int


def due_merges(state: StoredTargetState, now: int, window_ms: int, period_ms: int = DAY_MS) -> list[Merge]:
    """Return the merges that are due: all blocks of a past period, and every four blocks of one level of the
    current one, so that a query over the last hours opens a few chunks per series instead of dozens."""
    shift = shift_ms(state.id, window_ms)
    periods: dict[int, list[Block]] = {}
    for block in state.blocks:
        periods.setdefault((block.first - shift) // period_ms, []).append(block)
    settled = not state.late and abs(now - state.late_ms) > window_ms
    due = []
    for period, blocks in sorted(periods.items()):
        late = [block for block in blocks if block.level == LATE_LEVEL]
        if late and not settled and len(late) < _MERGE_COUNT:
            blocks = [block for block in blocks if block.level != LATE_LEVEL]  # wait for more
            late = []
        if (period + 1) * period_ms + shift + 2 * window_ms <= now:
            if len(blocks) > 1 and any(block.level < FINAL_LEVEL for block in blocks):
                due.append(Merge(blocks, FINAL_LEVEL))
            continue
        if late:
            due.append(_with_overlapped(late, blocks))
            continue
        for level in sorted({block.level for block in blocks if block.level < FINAL_LEVEL}):
            same = [block for block in blocks if block.level == level]
            if _runs(same) >= _MERGE_COUNT:
                due.append(Merge(same, level + 1))
    return due


def _with_overlapped(late: list[Block], blocks: list[Block]) -> Merge:
    """Merge late blocks of the current period with the blocks they overlap, to the highest level of these."""
    first, last = min(block.first for block in late), max(block.last for block in late)
    others = [
        block for block in blocks if block.level != LATE_LEVEL and block.first <= last and block.last >= first
    ]
    return Merge([*others, *late], max((block.level for block in others), default=0))


def _runs(blocks: list[Block]) -> int:
    """Count the disjoint time ranges that the blocks cover: the parts of one large merge are one range."""
    count, reached = 0, -1
    for block in sorted(blocks, key=lambda one: one.first):
        count += block.first > reached
        reached = max(reached, block.last)
    return count


def members_of(reader: BlockReader, blocks: list[Block]) -> Int64s:
    """Return the ids of all series in the blocks, ascending."""
    return distinct(np.concatenate([reader.members(block) for block in blocks]))


def merge_series(reader: BlockReader, merge: Merge, series: Int64s, block_id: int) -> BuiltBlock | None:
    """Build one block from the given series of the merged blocks."""
    blocks = merge.blocks
    bases = [base for block in blocks if (base := reader.base_times(block)) is not None]
    builder = BlockBuilder(distinct(np.concatenate(bases)) if bases else np.empty(0, np.int64))
    join = PartJoiner()
    for at in range(0, len(series), _BATCH_SERIES):
        parts: dict[int, list[Samples]] = {}
        for block in blocks:
            for sid, samples in reader.read(block, series[at : at + _BATCH_SERIES]).items():
                parts.setdefault(sid, []).append(samples)
        for sid, some in parts.items():
            times, values = some[0] if len(some) == 1 else join(some)
            builder.add_timed(sid, times, values)
    return builder.build(block_id, blocks[0].target, merge.level)
