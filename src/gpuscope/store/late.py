"""Samples that come after their window was sealed: a head of their own, then blocks that overlap others.

A remote-write shard that catches up sends samples hours old. They go into the target's late head and the table
`late`, and are sealed into blocks of level `LATE` when they are many, old, or no more come. Readers and merges
put overlapping blocks together; where a time has a sample already, the one stored first stays. A target
without late samples has no late head, and its queries cost nothing more.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

from gpuscope.store.block_builder import BuiltBlock
from gpuscope.store.contents import LATE, Catalog, LateHead, TargetState
from gpuscope.store.options import DAY_MS, MINUTE_MS
from gpuscope.store.schema import TICK_BITS
from gpuscope.store.seal import build_block, shift_ms
from gpuscope.store.tick import Float64s, Int64s
from gpuscope.store.tick_rows import tick_range, unpack_mixed

LateRow = tuple[int, bytes]
INSERT_LATE = "INSERT INTO late (id, data) VALUES (?, ?)"

_QUIET_MS = 5 * MINUTE_MS
_OLDEST_MS = 30 * MINUTE_MS
_ALL_BYTES = 64 << 20
_FEW_BYTES = 1 << 20


def add_late(state: TargetState, series: Int64s, times: Int64s, values: Float64s, now: int) -> None:
    """In the writer's turn."""
    if not state.late or state.late[-1].closed_at is not None:
        state.late = (*state.late, LateHead(now))
    state.late_ms = now
    state.late[-1].head.place(series, times, values)


def replay_late(db: sqlite3.Connection, catalog: Catalog, now: int) -> int:
    """Fill late heads from the file; returns the highest sequence number."""
    highest = 0
    if db.execute("SELECT 1 FROM sqlite_schema WHERE name = 'late'").fetchone() is None:
        return highest  # a file of an older version, opened for reading
    for row_id, data in db.execute("SELECT id, data FROM late ORDER BY id"):
        highest = max(highest, row_id & ((1 << TICK_BITS) - 1))
        state = catalog.get(row_id >> TICK_BITS)
        if state is not None:
            add_late(state, *unpack_mixed(data), now)
    return highest


def drop_late(db: sqlite3.Connection, target: int, closed_at: int) -> None:
    """Remove the rows of a late head that has become blocks."""
    low, _ = tick_range(target)
    db.execute("DELETE FROM late WHERE id >= ? AND id < ?", (low, low | closed_at))


def late_due(states: list[TargetState], now: int) -> list[TargetState]:
    """Targets whose late head should be sealed now."""
    having = [state for state in states if state.late]
    if not having:
        return []
    most = max(_FEW_BYTES, _ALL_BYTES // len(having))
    return [
        state
        for state in having
        if state.late[0].closed_at is not None
        or abs(now - state.late_ms) > _QUIET_MS
        or abs(now - state.late[0].since_ms) > _OLDEST_MS
        or state.late[0].head.nbytes() > most
    ]


def build_late(late: LateHead, target: int, window_ms: int, catalog: Catalog) -> Iterator[BuiltBlock]:
    """A block for each day as merges count them, so that a merge of one day concerns no other."""
    shift = shift_ms(target, window_ms)
    rest = late.head
    while rest.first is not None:
        boundary = (rest.first - shift) // DAY_MS * DAY_MS + DAY_MS + shift
        built = build_block(rest, boundary, catalog.next_block(), target, LATE)
        if built is not None:
            yield built
        rest = rest.from_time(boundary)
