"""Blocks of one target and day to one: fewer, longer chunks compress better and are read faster.

Overlapping blocks (the clock had jumped back) come out in order and without repetition. A target with very
many series gets several merged blocks, each with some of the series, so that memory stays bounded.
"""

from __future__ import annotations

import numpy as np

from gpuscope.store.blockbuild import BlockBuilder, BuiltBlock
from gpuscope.store.blocks import BlockReader
from gpuscope.store.catalog import Block, TargetState
from gpuscope.store.headview import Samples
from gpuscope.store.options import DAY_MS
from gpuscope.store.reader import Joined
from gpuscope.store.seal import shift_ms
from gpuscope.store.tick import Int64s

MERGED = 1
SERIES_PER_BLOCK = 4096
_AT_ONCE = 64


def due_merges(state: TargetState, now: int, window_ms: int) -> list[list[Block]]:
    """The groups of blocks that should each become one: those of a day that is over."""
    shift = shift_ms(state.id, window_ms)
    days: dict[int, list[Block]] = {}
    for block in state.blocks:
        days.setdefault((block.first - shift) // DAY_MS, []).append(block)
    due = []
    for day, blocks in sorted(days.items()):
        over = (day + 1) * DAY_MS + shift + 2 * window_ms <= now
        if over and len(blocks) > 1 and any(block.level < MERGED for block in blocks):
            due.append(blocks)
    return due


def members_of(reader: BlockReader, blocks: list[Block]) -> Int64s:
    """All series of some blocks, ascending."""
    return np.unique(np.concatenate([reader.members(block) for block in blocks]))


def merge_series(reader: BlockReader, blocks: list[Block], series: Int64s, block_id: int) -> BuiltBlock | None:
    """One new block with some series of the old ones."""
    bases = [base for block in blocks if (base := reader.base_times(block)) is not None]
    builder = BlockBuilder(np.unique(np.concatenate(bases)) if bases else np.empty(0, np.int64))
    joined = Joined()
    for at in range(0, len(series), _AT_ONCE):
        parts: dict[int, list[Samples]] = {}
        for block in blocks:
            for sid, samples in reader.read(block, series[at : at + _AT_ONCE]).items():
                parts.setdefault(sid, []).append(samples)
        for sid, some in parts.items():
            times, values = some[0] if len(some) == 1 else joined(some)
            builder.add_timed(sid, times, values)
    return builder.build(block_id, blocks[0].target, MERGED)
