"""The part of a store that exists only when it is open for writing: writer, background tasks, lock."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from gpuscope.history.store.appender import Appender
from gpuscope.history.store.background import BackgroundTasks
from gpuscope.history.store.block_writer import BlockWriter
from gpuscope.history.store.loading import Loaded
from gpuscope.history.store.lock import FolderLock
from gpuscope.history.store.lost_folder import FolderWatch, copy_unsealed
from gpuscope.history.store.options import MillisecondClock, StoreOptions
from gpuscope.history.store.own_stats import OwnStats
from gpuscope.history.store.reader import Reader
from gpuscope.history.store.series_limit import SeriesLimit, default_max_series
from gpuscope.history.store.writer import Writer


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
