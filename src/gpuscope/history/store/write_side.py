"""The part of a store that exists only when it is open for writing: writer, background tasks, lock."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from gpuscope.history.store.appender import Appender
from gpuscope.history.store.background import BackgroundTasks
from gpuscope.history.store.contents import Block, Contents
from gpuscope.history.store.folder import FolderLock, FolderWatch, copy_unsealed
from gpuscope.history.store.index import Index
from gpuscope.history.store.options import (
    MillisecondClock,
    OwnStats,
    SeriesLimit,
    StoreOptions,
    default_max_series,
)
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.schema import replay
from gpuscope.history.store.seal import replay_late
from gpuscope.history.store.store_errors import StoreDamagedError
from gpuscope.history.store.writer import BlockWriter, Writer, orphans

# Loads index, contents and heads from the file when a store is opened.


@dataclass(frozen=True, slots=True)
class Loaded:
    """The loaded data and the next free ids."""

    index: Index
    contents: Contents
    next_sequence: int
    next_layout: int
    orphans: list[int]
    """Blocks that a crash left incomplete."""


def check_labels(pairs: list[tuple[int, str, str]], series: list[tuple[int, int, bytes]]) -> None:
    """Raise StoreDamagedError if labels are not as the store writes them: every query on them would fail."""
    for number, name, value in pairs:
        if not (isinstance(name, str) and isinstance(value, str)):
            raise StoreDamagedError(f"label pair {number} is not text")
    for sid, target, packed in series:
        if not isinstance(target, int) or not isinstance(packed, bytes) or len(packed) % 4:
            raise StoreDamagedError(f"series {sid} has damaged labels")
    used = np.frombuffer(b"".join(packed for _, _, packed in series), "<i4")
    known = np.fromiter((number for number, _, _ in pairs), np.int64, len(pairs))
    at = np.minimum(np.searchsorted(known, used), max(0, len(known) - 1))
    if len(used) and (not len(known) or (known[at] != used).any()):
        raise StoreDamagedError("a series has a label that does not exist")


def load(db: sqlite3.Connection, now_ms: int) -> Loaded:
    """Load everything except chunks. Raises sqlite3.Error if the file cannot be read."""
    index, contents = Index(), Contents()
    for target, name, floor in db.execute("SELECT id, name, floor FROM target"):
        if not isinstance(name, str) or not isinstance(floor, int | None):
            raise StoreDamagedError(f"target {target} has a damaged name or time")
        contents.add(target, name, floor)
    pairs = db.execute("SELECT id, name, value FROM pair ORDER BY id").fetchall()
    series = db.execute("SELECT id, target, pairs FROM series ORDER BY id").fetchall()
    check_labels(pairs, series)
    index.load(pairs, series, db.execute("SELECT series, target FROM shared"))
    rows = db.execute("SELECT id, target, level, first, last, samples FROM block").fetchall()
    contents.add_blocks(Block(*row) for row in rows if contents.get(row[1]) is not None)
    heads = {state.id: state.head for state in contents.states()}
    sequence = max(replay(db, heads, index.epoch), replay_late(db, contents, now_ms))
    for state in contents.states():
        state.appended_ms = now_ms
        contents.newest.publish(state.id, state.head)
    index.count_ended(contents.living_series())
    layout = db.execute("SELECT max(id) FROM layout").fetchone()[0] or 0
    unfinished = orphans(db, {row[0] for row in rows})
    return Loaded(index, contents, sequence + 1, layout + 1, unfinished)


class WriteSide:
    """Created by `Store`; `start` starts the threads."""

    def __init__(
        self,
        db: sqlite3.Connection,
        loaded: Loaded,
        reader: Reader,
        clock: MillisecondClock,
        options: StoreOptions,
        own_stats: OwnStats,
        path: Path,
        lock: FolderLock,
    ) -> None:
        index, contents = loaded.index, loaded.contents
        self.db = db
        self.lock = lock
        self._path, self._clock = path, clock
        self._contents, self._reader = contents, reader
        self.watch = FolderWatch(path, own_stats)
        max_series = default_max_series() if options.max_series is None else options.max_series
        self.series_limit = index.limit = SeriesLimit(max_series, options.max_new_series, clock)
        self.appender = Appender(db, index, contents, clock, options, own_stats, self.watch)
        self.appender.next_sequence, self.appender.next_layout = loaded.next_sequence, loaded.next_layout
        self.writer = Writer(self.appender, options.queue_ticks, options.batch_ticks)
        self.blocks = BlockWriter(db, self.writer, contents)
        self.background = BackgroundTasks(
            db, self.writer, self.blocks, reader, contents, index, clock, options, own_stats, path, self.watch,
            restart=lambda: self.writer.call(self._restart),
        )  # fmt: skip
        self.blocks.discard(loaded.orphans)

    def start(self) -> None:
        self.writer.start()
        self.background.start()

    def close(self) -> None:
        self.background.stop()
        self.writer.close()
        self.db.close()

    def compact(self) -> None:
        self.background.compact()

    def _restart(self) -> None:
        """Create a new file in place of a deleted one; called on the writer's thread."""
        self.watch.check_place()
        fresh = copy_unsealed(self.db, self._path, self._clock.now_ms())
        self.lock.release()
        try:
            self.lock = FolderLock(self._path.parent)
        except BaseException:
            fresh.close()
            raise
        with self._contents.lock:
            old, self.db = self.db, fresh
            for user in (self.appender, self.blocks, self.background):
                user.use_database(fresh)
            self._contents.forget_blocks()
            self._reader.use_new_file()
        self.watch.reopened()
        with suppress(sqlite3.Error):
            old.close()
