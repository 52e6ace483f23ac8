"""Makes blocks: builds them, seals heads, seals late samples, and merges small blocks into longer ones.

Windows are aligned to the clock but shifted by target id, so that many targets do not seal in the same second.
A window is sealed when the target's samples have passed its end by a grace period, or when the target has sent
nothing for a whole window.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from gpuscope.history.store.blocks import BlockReader
from gpuscope.history.store.chunk_codec import (
    BundleRow,
    TimeSelection,
    encode_values,
    join_chunk,
    pack_columns,
    pack_integers,
    select_by_mask,
    to_bundles,
)
from gpuscope.history.store.contents import LATE_LEVEL, Block, Contents, LateHead, StoredTargetState
from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT_BITS, HeadView, Samples
from gpuscope.history.store.options import DAY_MS, MINUTE_MS, StoreOptions
from gpuscope.history.store.reader import PartJoiner
from gpuscope.history.store.schema import TICK_BITS, tick_range, unpack_mixed
from gpuscope.history.store.tick import Bools, Float64s, Int64s, distinct

# Builds one block from samples of many series: shared timestamp columns and one chunk per series.
#
# The base column holds the times of the target's scrapes. A series that misses some of them refers to the
# base column by range or bitmap. Times that several series share but that are not in the base column become
# further columns; a series with unique times stores them in its own chunk.


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
            selection = self._masks.get(key)
            if selection is None:
                selection = self._masks[key] = select_by_mask(present)
            where = selection
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
        self._series.sort(key=lambda entry: entry[0])
        chunks = [
            (sid, join_chunk(values, places[where] if isinstance(where, bytes) else where))
            for sid, values, where in self._series
        ]
        members = pack_integers(np.array([sid for sid, _, _ in self._series], np.int64))
        meta = Block(block, target, level, self._first, self._last, self._samples)
        return BuiltBlock(meta, pack_columns(columns), members, to_bundles(block, chunks))


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


# Samples that arrive after their window was sealed: kept in a late head, then in blocks that overlap others.
#
# A remote-write shard that catches up sends samples that are hours old. They go into the target's late head
# and the table `late`. The late head is sealed into blocks of `LATE_LEVEL` when it is large or old, or when
# no more samples arrive. Readers and merges combine overlapping blocks; of two samples at the same time, the
# one stored first is kept. A target without late samples has no late head and no extra cost.

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


# Merges blocks of one target: fewer, longer chunks compress better and are read faster.
#
# Samples of overlapping blocks (late samples, or a clock that was set back) are sorted and deduplicated. A
# target with very many series gets several merged blocks, each with a part of the series, to bound memory.

FINAL_LEVEL = 100
"""The level of a block that holds a whole period; a lower level is the number of merges."""
_MERGE_COUNT = 4
SERIES_PER_BLOCK = 4096
_MERGE_BATCH_SERIES = 64


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
    for block in sorted(blocks, key=lambda block: block.first):
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
    for at in range(0, len(series), _MERGE_BATCH_SERIES):
        parts: dict[int, list[Samples]] = {}
        for block in blocks:
            for sid, samples in reader.read(block, series[at : at + _MERGE_BATCH_SERIES]).items():
                parts.setdefault(sid, []).append(samples)
        for sid, some in parts.items():
            times, values = some[0] if len(some) == 1 else join(some)
            builder.add_timed(sid, times, values)
    return builder.build(block_id, blocks[0].target, merge.level)
