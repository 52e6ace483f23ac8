"""Seals a head: decides which part of it is due, and encodes its samples as a block.

Windows are aligned to the clock but shifted by target id, so that many targets do not seal in the same second.
A window is sealed when the target's samples have passed its end by a grace period, or when the target has sent
nothing for a whole window.
"""

from __future__ import annotations

import numpy as np

from gpuscope.history.store.arrays import distinct
from gpuscope.history.store.block_builder import BlockBuilder, BuiltBlock
from gpuscope.history.store.contents import StoredTargetState
from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT_BITS, HeadView
from gpuscope.history.store.options import StoreOptions
from gpuscope.history.store.tick import Int64s

_GOLDEN = 0.6180339887498949
_BATCH_SERIES = 512
"""Series read from the head at a time: a few MB, independent of the head's size."""


def shift_ms(target: int, window_ms: int) -> int:
    """Return the offset of a target's window boundaries; consecutive ids are spread evenly."""
    return int(target * _GOLDEN % 1.0 * window_ms)


def next_boundary(time: int, target: int, window_ms: int) -> int:
    """Return the first boundary after a time."""
    shift = shift_ms(target, window_ms)
    return (time - shift) // window_ms * window_ms + window_ms + shift


def due_boundary(state: StoredTargetState, now: int, window_ms: int, options: StoreOptions) -> int | None:
    """Return the time before which everything is due to be sealed; None if nothing is."""
    head = state.head
    if head.first is None or head.last is None:
        return None
    boundary = next_boundary(head.first, state.id, window_ms)
    passed = min(head.last, now + options.max_ahead_ms) >= boundary + options.grace_ms(window_ms)
    if passed:
        return boundary
    silent = abs(now - state.appended_ms) > window_ms
    return min(boundary, head.last + 1) if silent else None


def build_block(head: Head, boundary: int, block: int, target: int, level: int = 0) -> BuiltBlock | None:
    """Encode the samples before `boundary`; the writer accepts no more of them meanwhile."""
    view = head.view()
    end = boundary - 1
    scattered = distinct(view.side[1][view.side[0] <= end])
    regular = view.sorted_series[~np.isin(view.sorted_series, scattered)]
    columns = view.columns[np.searchsorted(view.sorted_series, regular)]
    base, _ = view.dense(columns[:0], 0, end)
    builder = BlockBuilder(base, quick=True)
    for at in range(0, len(regular), _BATCH_SERIES):
        _, cells = view.dense(columns[at : at + _BATCH_SERIES], 0, end)
        if not cells.shape[1]:
            break
        present = cells.view(np.int64) != ABSENT_BITS
        whole = present.all(axis=1).tolist()
        some = present.any(axis=1).tolist()
        for i, sid in enumerate(regular[at : at + _BATCH_SERIES].tolist()):
            if whole[i]:
                builder.add_masked(sid, None, cells[i])
            elif some[i]:
                builder.add_masked(sid, present[i], cells[i][present[i]])
    _add_scattered(builder, view, scattered, end)
    return builder.build(block, target, level)


def _add_scattered(builder: BlockBuilder, view: HeadView, scattered: Int64s, end: int) -> None:
    for sid, (times, values) in view.read(scattered, 0, end).items():
        builder.add_timed(sid, times, values)
