"""Background tasks: seal heads, merge blocks, apply retention, return free disk pages; and deletion on request.

Each step works on one target or a few blocks; ticks are committed between steps. `run` does all the work that
is due; `start()` starts a thread that calls it every few seconds. A step that fails (for example on a full
disk) is logged once per episode and retried at the next run; the other steps still run.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.history.store.blocks import BlockReader, ChunkCache
from gpuscope.history.store.contents import Block, Contents, LateHead, StoredTargetState
from gpuscope.history.store.folder import FolderWatch, has_room
from gpuscope.history.store.index import Index
from gpuscope.history.store.options import DAY_MS, MillisecondClock, OwnStats, StoreOptions
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.retention import DataDisk, Retention
from gpuscope.history.store.schema import drop_before, vacuum_pages
from gpuscope.history.store.seal import (
    SERIES_PER_BLOCK,
    BlockBuilder,
    BuiltBlock,
    Merge,
    build_block,
    build_late,
    drop_late,
    due_boundary,
    due_merges,
    late_due,
    members_of,
    merge_series,
)
from gpuscope.history.store.store_errors import StoreError
from gpuscope.history.store.tick import Int64s
from gpuscope.history.store.writer import BlockWriter, Writer

log = logging.getLogger(__name__)
_VACUUM_PAGES = 256
_SPARE_PAGES = 1024
"""Free pages that stay in the file: the next ticks use them."""


class BackgroundTasks:
    """Runs all maintenance steps; one instance per store."""

    def __init__(
        self,
        db: sqlite3.Connection,
        writer: Writer,
        blocks: BlockWriter,
        reader: Reader,
        contents: Contents,
        index: Index,
        clock: MillisecondClock,
        options: StoreOptions,
        own_stats: OwnStats,
        path: Path,
        watch: FolderWatch,
        restart: Callable[[], None],
    ) -> None:
        self._folder = path.parent
        self._db = db
        self._writer = writer
        self._blocks = blocks
        self._reader = reader
        self._contents = contents
        self._index = index
        self._clock = clock
        self._options = options
        self._own_stats = own_stats
        disk = DataDisk(path.parent, self.compact)
        self._retention = Retention(writer, blocks, reader, contents, index, options, own_stats, disk, clock)
        self._watch = watch
        self._restart = restart
        self._busy = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._failing: dict[str, EpisodeLog] = {}
        self._unreadable: set[int] = set()

    def start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._loop, name="gpuscope-store-background", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._watch.wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _loop(self) -> None:
        while not self._stop.is_set():
            self._watch.wake.wait(self._options.maintain_interval_s)
            self._watch.wake.clear()
            try:
                self.run()
            except Exception:  # a bug in one run must not end the maintenance of the store
                log.exception("store: background tasks failed")

    def use_database(self, db: sqlite3.Connection) -> None:
        """Use another file from now on."""
        self._db = db

    def _window_ms(self, state: StoredTargetState) -> int:
        if state.is_rollup:
            return self._options.rollup_window_ms
        large = len(self._index) > self._options.large_from_series
        return self._options.large_window_ms if large else self._options.window_ms

    def run(self) -> None:
        """Do all the work that is due. A failing step does not stop the others."""
        with self._busy:
            now = self._clock.now_ms()
            if self._watch.is_lost():
                self._attempt("recreating the data folder", self._restart)
            if self._own_stats.lost is not None:
                return  # blocks sealed now would be lost with the deleted file
            if self._own_stats.full_since_ms is not None:
                self._attempt("writing", self._try_to_write)
            for state in self._contents.states():
                self._attempt(f"sealing {state.name}", lambda state=state: self._seal_due(state, now))  # type: ignore[misc]
            for state in late_due(self._contents.states(), now):
                self._attempt(f"sealing late {state.name}", lambda state=state: self.seal_late(state))  # type: ignore[misc]
            for state in self._contents.states():
                self._attempt(f"merging {state.name}", lambda state=state: self._merge_due(state, now))  # type: ignore[misc]
            self._attempt("retention", lambda: self._retention.run(now))
            self._index.count_ended(self._contents.living_series())
            self._attempt("freeing pages", lambda: self.free_pages(_SPARE_PAGES))

    def _try_to_write(self) -> None:
        """Check for free space: a server that is not ready may get no samples to commit."""
        if has_room(self._folder):
            self._own_stats.full_since_ms = self._own_stats.full_reason = None

    def _attempt(self, step_name: str, step: Callable[[], object]) -> None:
        if self._stop.is_set():
            return
        try:
            step()
        except (StoreError, sqlite3.Error) as error:
            self._own_stats.last_error = str(error)
            if step_name not in self._failing:
                self._failing[step_name] = EpisodeLog(log, f"store: {step_name}", level=logging.ERROR)
            self._failing[step_name].failed(f"failed and will be retried: {error}")
        else:
            episode = self._failing.pop(step_name, None)
            if episode is not None:
                episode.succeeded()

    def _seal_due(self, state: StoredTargetState, now: int) -> None:
        while not self._stop.is_set():
            boundary = due_boundary(state, now, self._window_ms(state), self._options)
            if boundary is None:
                return
            self._seal(state, boundary)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the background tasks while a caller changes blocks."""
        with self._busy:
            yield

    def seal_all(self) -> None:
        """Seal every head completely, whether due or not."""
        with self._busy:
            for state in self._contents.states():
                self.seal_target(state)

    def seal_target(self, state: StoredTargetState) -> None:
        last = self._writer.call(lambda: state.head.last)
        if last is not None:
            self._seal(state, last + 1)
        self.seal_late(state)

    def seal_late(self, state: StoredTargetState) -> None:
        """Seal the late samples received so far into blocks; later ones go into a new late head."""
        self._writer.call(lambda: self._close_late(state))
        while state.late and state.late[0].closed_at is not None:
            self._seal_closed(state, state.late[0], state.late[0].closed_at)

    def _close_late(self, state: StoredTargetState) -> None:
        for late_head in state.late:
            if late_head.closed_at is None:
                late_head.closed_at = self._writer.next_sequence()

    def _seal_closed(self, state: StoredTargetState, late: LateHead, closed_at: int) -> None:
        built = list(build_late(late, state.id, self._options.window_ms, self._contents))

        def swap() -> None:
            state.late = state.late[1:]

        try:
            for new_block in built:
                self._blocks.stage(new_block)
            self._blocks.publish(built, change=lambda db: drop_late(db, state.id, closed_at), swap=swap)
        except StoreError:
            self._blocks.discard(new_block.block.id for new_block in built)
            raise
        self._own_stats.seals += 1

    def _seal(self, state: StoredTargetState, boundary: int) -> None:
        def close_window() -> None:
            # From here on, older samples go to the late head: the block built below is complete.
            state.floor = max(state.floor, boundary - 1)

        self._writer.call(close_window)
        block = self._contents.next_block()
        built = build_block(state.head, boundary, block, state.id)

        def move(db: sqlite3.Connection) -> None:
            drop_before(db, state.id, boundary)
            db.execute("UPDATE target SET floor = ? WHERE id = ?", (boundary - 1, state.id))

        def swap() -> None:
            state.head = state.head.from_time(boundary)
            self._contents.newest.publish(state.id, state.head)

        try:
            if built is not None:
                self._blocks.stage(built)
            self._blocks.publish([built] if built is not None else [], change=move, swap=swap)
        except StoreError:
            self._blocks.discard([block])
            raise
        self._own_stats.seals += 1

    def _merge_due(self, state: StoredTargetState, now: int) -> None:
        period_ms = self._options.rollup_period_ms if state.is_rollup else DAY_MS
        for merge in due_merges(state, now, self._window_ms(state), period_ms):
            if self._stop.is_set():
                return
            self.merge(merge)

    def merge(self, merge: Merge) -> None:
        """Replace blocks of one target by one block, or by several if the target has very many series."""
        blocks = merge.blocks
        if self._unreadable.intersection(block.id for block in blocks):
            return
        damaged = self._own_stats.damaged_chunks
        built: list[BuiltBlock] = []
        try:
            self._build_merged(merge, built)
            if self._own_stats.damaged_chunks > damaged:
                # Merging would drop chunks that cannot be read now but may be recovered by other means.
                self._unreadable.update(block.id for block in blocks)
                self._blocks.discard(new_block.block.id for new_block in built)
                return
            self._blocks.publish(built, dropped=blocks)
        except StoreError:
            self._blocks.discard(new_block.block.id for new_block in built)
            raise
        self._own_stats.merges += 1

    def _build_merged(self, merge: Merge, built: list[BuiltBlock]) -> None:
        with self._reader.snapshot([], 0, 0) as snapshot:
            reader = BlockReader(snapshot.db, ChunkCache(0), self._own_stats)
            members = members_of(reader, merge.blocks)
            for at in range(0, len(members), SERIES_PER_BLOCK):
                part = members[at : at + SERIES_PER_BLOCK]
                one = merge_series(reader, merge, part, self._contents.next_block())
                if one is not None:
                    built.append(one)
                    self._blocks.stage(one)

    def remove_series(self, series: set[int]) -> None:
        """Remove series that have no samples left."""
        self._retention.remove_series(series)

    def free_pages(self, spare: int) -> None:
        """Return free pages beyond `spare` to the file system, a few at a time."""
        while not self._stop.is_set():
            free = self._writer.call(self._free_page_count)
            if free <= max(spare, 0):
                return
            self._writer.call(lambda: vacuum_pages(self._db, _VACUUM_PAGES))
            if self._writer.call(self._free_page_count) >= free:
                return

    def compact(self) -> None:
        """Return every free page to the file system and checkpoint SQLite's WAL."""
        self.free_pages(0)
        self._writer.call(lambda: self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone())

    def _free_page_count(self) -> int:
        return int(self._db.execute("PRAGMA freelist_count").fetchone()[0])


# Deletes samples on request.
#
# Heads are sealed first, so that only blocks hold samples to delete. A block that loses samples is replaced
# by a new one with another id: blocks never change, so cached chunks stay valid.

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
