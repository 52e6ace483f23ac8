"""Samples that arrive after their window was sealed: kept in a late head, then in blocks that overlap others.

A remote-write shard that catches up sends samples that are hours old. They go into the target's late head and
the table `late`. The late head is sealed into blocks of `LATE_LEVEL` when it is large or old, or when no more
samples arrive. Readers and merges combine overlapping blocks; of two samples at the same time, the one stored
first is kept. A target without late samples has no late head and no extra cost.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from gpuscope.history.store.block_builder import BuiltBlock
from gpuscope.history.store.contents import LATE_LEVEL, Contents, LateHead, StoredTargetState
from gpuscope.history.store.options import DAY_MS, MINUTE_MS
from gpuscope.history.store.schema import TICK_BITS
from gpuscope.history.store.seal import build_block, shift_ms
from gpuscope.history.store.tick import Float64s, Int64s
from gpuscope.history.store.tick_rows import tick_range, unpack_mixed

LateRow = tuple[int, bytes]
INSERT_LATE = "INSERT INTO late (id, data) VALUES (?, ?)"

_IDLE_MS = 5 * MINUTE_MS
_MAX_AGE_MS = 30 * MINUTE_MS
_MAX_TOTAL_BYTES = 64 << 20
_MIN_HEAD_BYTES = 1 << 20


def add_late(state: StoredTargetState, series: Int64s, times: Int64s, values: Float64s, now: int) -> None:
    """Add late samples to a target; called on the writer's thread."""
    if not state.late or state.late[-1].closed_at is not None:
        state.late = (*state.late, LateHead(now))
    state.late_ms = now
    state.late[-1].head.insert(series, times, values)


def replay_late(db: sqlite3.Connection, contents: Contents, now: int) -> int:
    """Fill late heads from the file; return the highest sequence number."""
    highest = 0
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'late'").fetchone() is None:
        return highest  # a file of schema 1, opened read-only
    for row_id, data in db.execute("SELECT id, data FROM late ORDER BY id"):
        highest = max(highest, row_id & ((1 << TICK_BITS) - 1))
        state = contents.get(row_id >> TICK_BITS)
        if state is not None:
            add_late(state, *unpack_mixed(data), now)
    return highest


def drop_late(db: sqlite3.Connection, target: int, closed_at: int) -> None:
    """Delete the rows of a late head that was sealed."""
    low, _ = tick_range(target)
    db.execute("DELETE FROM late WHERE id >= ? AND id < ?", (low, low | closed_at))


def late_due(states: list[StoredTargetState], now: int) -> list[StoredTargetState]:
    """Return the targets whose late head is due to be sealed."""
    having = [state for state in states if state.late]
    if not having:
        return []
    max_bytes = max(_MIN_HEAD_BYTES, _MAX_TOTAL_BYTES // len(having))
    return [
        state
        for state in having
        if state.late[0].closed_at is not None
        or abs(now - state.late_ms) > _IDLE_MS
        or abs(now - state.late[0].since_ms) > _MAX_AGE_MS
        or state.late[0].head.nbytes() > max_bytes
    ]


def build_late(late: LateHead, target: int, window_ms: int, contents: Contents) -> Iterator[BuiltBlock]:
    """Build one block per day as `block_merge` divides days, so that a block concerns the merge of one day."""
    shift = shift_ms(target, window_ms)
    rest = late.head
    while rest.first is not None:
        boundary = (rest.first - shift) // DAY_MS * DAY_MS + DAY_MS + shift
        built = build_block(rest, boundary, contents.next_block(), target, LATE_LEVEL)
        if built is not None:
            yield built
        rest = rest.from_time(boundary)
