"""Deletes samples on request.

Heads are sealed first, so that only blocks hold samples to delete. A block that loses samples is replaced by a
new one with another id: blocks never change, so cached chunks stay valid.
"""

from __future__ import annotations

import numpy as np

from gpuscope.history.store.background import BackgroundTasks
from gpuscope.history.store.block_builder import BlockBuilder, BuiltBlock
from gpuscope.history.store.block_writer import BlockWriter
from gpuscope.history.store.blocks import BlockReader
from gpuscope.history.store.cache import ChunkCache
from gpuscope.history.store.contents import Block, Contents
from gpuscope.history.store.index import Index
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.store_errors import StoreError
from gpuscope.history.store.tick import Int64s

_BATCH_SERIES = 64


def delete_samples(
    series: Int64s,
    start: int | None,
    end: int | None,
    index: Index,
    contents: Contents,
    reader: Reader,
    background: BackgroundTasks,
    blocks: BlockWriter,
) -> None:
    """Delete samples of the series in [start, end]; None means unbounded."""
    low = -(2**62) if start is None else start
    high = 2**62 if end is None else end
    groups = index.by_target(series)
    for target, wanted in groups.items():
        state = contents.get(target)
        if state is None:
            continue
        background.seal_target(state)
        for block in state.blocks:
            if block.first <= high and block.last >= low:
                _rewrite(block, wanted, low, high, contents, reader, blocks)
    if start is None and end is None:
        background.remove_series(set(series.tolist()))


def _rewrite(
    block: Block, going: Int64s, low: int, high: int, contents: Contents, reader: Reader, blocks: BlockWriter
) -> None:
    number = contents.next_block()
    with reader.snapshot([], 0, 0) as snapshot:
        source = BlockReader(snapshot.db, ChunkCache(0), reader.own_stats)
        members = source.members(block)
        if not np.isin(members, going).any():
            return
        built = _without(source, block, members, set(going.tolist()), low, high, number)
    try:
        if built is not None:
            blocks.stage(built)
        blocks.publish([built] if built is not None else [], dropped=[block])
    except StoreError:
        blocks.discard([number])
        raise


def _without(
    source: BlockReader, block: Block, members: Int64s, going: set[int], low: int, high: int, number: int
) -> BuiltBlock | None:
    base = source.base_times(block)
    builder = BlockBuilder(np.empty(0, np.int64) if base is None else base)
    for at in range(0, len(members), _BATCH_SERIES):
        for sid, (times, values) in source.read(block, members[at : at + _BATCH_SERIES]).items():
            if sid not in going:
                builder.add_timed(sid, times, values)
                continue
            kept = (times < low) | (times > high)
            if kept.any():
                builder.add_timed(sid, times[kept], values[kept])
    return builder.build(number, block.target, block.level)
