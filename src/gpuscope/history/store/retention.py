"""Retention: drops blocks that are too old or exceed the size limit, then series without data.

Whole blocks are dropped, oldest first, and each is a line in the log; roll-ups have a longer retention of their
own. `retention_bytes` limits the disk space of the folder, including SQLite's WAL and damaged files that were
moved aside; the latter are deleted before any block. A series is removed only if two passes in a row find it
without data, so that a new series whose first tick is not committed yet is kept.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from gpuscope.base.clock import CONFIRM_SECONDS, ConfirmedTime
from gpuscope.base.time_text import to_rfc3339
from gpuscope.history.store.contents import Block, Contents, StoredTargetState
from gpuscope.history.store.folder import folder_bytes
from gpuscope.history.store.index import Index
from gpuscope.history.store.options import HOUR_MS, MillisecondClock, OwnStats, StoreOptions
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.tick import Int64s, distinct
from gpuscope.history.store.writer import BlockWriter, Writer

log = logging.getLogger(__name__)

# The time by which retention deletes: the wall clock, without steps forward that nothing has confirmed yet.
#
# A clock that is set forward, or that was wrong when the machine started, would make the whole history expire
# at once. Besides the steps that `ConfirmedTime` sees, the time between the newest sample and the start is
# doubted for a day, and gaps in the newest day of samples, which an earlier process may have stored by a
# wrong clock.

MIN_GAP_MS: Final = HOUR_MS
"""Shorter ones are restarts and updates; they delete at most an hour too early."""

Interval = tuple[int, int]


class RetentionClock:
    def __init__(self, clock: MillisecondClock, contents: Contents) -> None:
        self._clock = clock
        self._contents = contents
        self._confirmed = ConfirmedTime()
        self._is_started = False

    def now_ms(self) -> int:
        now, doubted = self._clock.now_ms(), 0
        if not self._is_started:
            self._is_started = True
            doubted = unconfirmed_ms(self._intervals(), now)
        monotonic = self._clock.monotonic_ms()
        return int(1000 * self._confirmed.advance(now / 1000, monotonic / 1000, doubted / 1000))

    def _intervals(self) -> Iterable[Interval]:
        for state in self._contents.states():
            yield from ((block.first, block.last) for block in state.blocks)
            for head in (state.head, *(late.head for late in state.late)):
                if head.first is not None and head.last is not None:
                    yield head.first, head.last


def unconfirmed_ms(intervals: Iterable[Interval], now: int) -> int:
    """The gaps between samples, and between the newest one and `now`, with less than a day of samples after
    them. 0 if there are no samples, which could be lost."""
    doubted = covered = 0
    newer = now
    for first, last in sorted(intervals, key=lambda interval: interval[1], reverse=True):
        if last > now:
            continue  # stored by a clock that was ahead
        if newer - last >= MIN_GAP_MS:
            doubted += newer - last
        covered += max(0, min(newer, last) - first)
        newer = min(newer, first)
        if covered >= 1000 * CONFIRM_SECONDS:
            break
    return doubted


_COLLECT_INTERVAL_MS = HOUR_MS
_SLACK_BYTES = 12 << 20
"""How much WAL and free pages may grow between two passes."""


@dataclass(frozen=True, slots=True)
class DataDisk:
    """The data folder, and a function that minimises its size."""

    folder: Path
    compact: Callable[[], None]


class Retention:
    """Runs as part of the background tasks."""

    def __init__(
        self,
        writer: Writer,
        blocks: BlockWriter,
        reader: Reader,
        contents: Contents,
        index: Index,
        options: StoreOptions,
        own_stats: OwnStats,
        disk: DataDisk,
        clock: MillisecondClock,
    ) -> None:
        self._writer = writer
        self._blocks = blocks
        self._reader = reader
        self._contents = contents
        self._index = index
        self._options = options
        self._own_stats = own_stats
        self._disk = disk
        self._clock = RetentionClock(clock, contents)
        self._spares = False
        """Blocks are kept that are too old by a clock that is not confirmed."""
        self._suspects: set[int] = set()
        self._idle_targets: set[int] = set()
        self._collected_ms: int | None = None

    def run(self, now: int) -> None:
        confirmed, spared = self._clock.now_ms(), 0
        for state in self._contents.states():
            kept_ms = self._kept_ms(state)
            self._drop(
                [block for block in state.blocks if block.last < confirmed - kept_ms],
                "older than the retention",
            )
            spared += sum(confirmed <= block.last + kept_ms < now for block in state.blocks)
        self._log_spared(spared, (now - confirmed) / HOUR_MS)
        self._shrink()
        if self._collected_ms is None or abs(now - self._collected_ms) >= _COLLECT_INTERVAL_MS:
            self._collected_ms = now
            self.collect()

    def _kept_ms(self, state: StoredTargetState) -> int:
        options = self._options
        return (
            max(options.retention_ms, options.rollup_retention_ms) if state.is_rollup else options.retention_ms
        )

    def _drop(self, blocks: list[Block], reason: str) -> None:
        for block in blocks:
            self._blocks.publish([], dropped=[block])
            self._own_stats.dropped_blocks += 1
            state = self._contents.get(block.target)
            log.info(
                "store: dropped %d samples from %s to %s of %s: %s",
                block.samples,
                to_rfc3339(block.first / 1000, "seconds"),
                to_rfc3339(block.last / 1000, "seconds"),
                "a removed target" if state is None else state.name,
                reason,
            )

    def _log_spared(self, blocks: int, hours: float) -> None:
        """Once for each step of the clock that would have deleted something."""
        if blocks and not self._spares:
            log.warning(
                "store: the clock has jumped %.1f hours ahead; until it has gone on for a day, %d "
                "blocks are kept that are too old by this clock",
                hours,
                blocks,
            )
        self._spares = bool(blocks)

    def _shrink(self) -> None:
        allowed = self._options.retention_bytes
        if allowed is None or folder_bytes(self._disk.folder) <= allowed:
            return
        # Free more than needed, otherwise each pass would compact the file again.
        goal = allowed - min(_SLACK_BYTES, allowed // 4)
        self._disk.compact()
        self._drop_damaged(goal)
        # Roll-ups last: they are a small part of the folder, and the only one that goes back a year.
        rollups = {state.id for state in self._contents.states() if state.is_rollup}
        oldest = sorted(
            self._contents.blocks(), key=lambda block: (block.target in rollups, block.last, block.id)
        )
        others = folder_bytes(self._disk.folder) - self._blocks.transaction(_live_bytes)
        while oldest and others + self._blocks.transaction(_live_bytes) > goal:
            self._drop([oldest.pop(0)], "the data folder is larger than retention_bytes")
        self._disk.compact()

    def _drop_damaged(self, goal: int) -> None:
        """Delete files that a salvage moved aside: their readable part is in the store."""
        for path in sorted(self._disk.folder.glob("*.damaged-*")):
            if folder_bytes(self._disk.folder) <= goal:
                return
            path.unlink(missing_ok=True)
            log.warning("store: deleted %s: the data folder is larger than retention_bytes", path)

    def with_data(self) -> Int64s:
        """Return the series that have a sample in a block or head."""
        targets = [state.id for state in self._contents.states()]
        series = [np.empty(0, np.int64)]
        with self._reader.snapshot(targets, -(2**62), 2**62) as snapshot:
            for view in snapshot.targets.values():
                series += [head.sorted_series for head in (view.head, *view.late)]
                series += [snapshot.blocks.members(block) for block in view.blocks]
        return distinct(np.concatenate(series))

    def collect(self) -> int:
        """Remove series without data, then targets without series; return the number of series removed."""
        alive = self.with_data()
        everything = self._index.select(())
        idle = set(everything[~np.isin(everything, alive)].tolist())
        going, self._suspects = idle & self._suspects, idle
        if going:
            self.remove_series(going)
        self._drop_targets()
        return len(going)

    def remove_series(self, series: set[int]) -> None:
        """Remove series without samples from file and index, in one job of the writer."""
        self._writer.call(lambda: self._remove_now(series))

    def _remove_now(self, series: set[int]) -> None:
        in_heads = {
            int(sid)
            for state in self._contents.states()
            for head in (state.head, *(late_head.head for late_head in state.late))
            for sid in head.view().sorted_series
        }
        going = sorted(series - in_heads)
        with self._index.removing(going) as orphans:

            def delete(db: sqlite3.Connection) -> None:
                rows = [(sid,) for sid in going]
                db.executemany("DELETE FROM series WHERE id = ?", rows)
                db.executemany("DELETE FROM shared WHERE series = ?", rows)
                db.executemany("DELETE FROM pair WHERE id = ?", [(number,) for number in orphans])

            self._blocks.transaction(delete)

    def _drop_targets(self) -> None:
        used = self._index.targets()
        idle = {
            state.id
            for state in self._contents.states()
            if state.id not in used and not state.blocks and state.head.first is None and not state.late
        }
        going, self._idle_targets = idle & self._idle_targets, idle
        for target in going:
            self._drop_target(target)

    def _drop_target(self, target: int) -> None:
        def delete(db: sqlite3.Connection) -> None:
            db.execute("DELETE FROM target WHERE id = ?", (target,))

        self._blocks.transaction(delete, lambda: self._contents.drop_target(target))


def _live_bytes(db: sqlite3.Connection) -> int:
    pages, free, size = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0])
        for name in ("page_count", "freelist_count", "page_size")
    )
    return (pages - free) * size
