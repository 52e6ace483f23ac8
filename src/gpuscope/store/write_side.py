"""What only a store opened for writing has: the writer, the housekeeping, the lock, and how they begin anew."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from pathlib import Path

from gpuscope.store.appender import Appender
from gpuscope.store.background import Keeper
from gpuscope.store.block_writer import BlockWriter
from gpuscope.store.loading import Loaded
from gpuscope.store.lock import FolderLock
from gpuscope.store.options import Clock, StoreOptions
from gpuscope.store.own_stats import Health
from gpuscope.store.reader import Reader
from gpuscope.store.restart import FolderWatch, copy_unsealed
from gpuscope.store.series_limit import SeriesLimit, default_max_series
from gpuscope.store.writer import Writer


class WriteSide:
    """Built by `Store`; `start` starts the threads."""

    def __init__(
        self,
        db: sqlite3.Connection,
        loaded: Loaded,
        reader: Reader,
        clock: Clock,
        options: StoreOptions,
        health: Health,
        path: Path,
        lock: FolderLock,
    ) -> None:
        index, catalog = loaded.index, loaded.catalog
        self.db = db
        self.lock = lock
        self._path, self._clock = path, clock
        self._catalog, self._reader = catalog, reader
        self.watch = FolderWatch(path, health)
        most = default_max_series() if options.max_series is None else options.max_series
        self.series_limit = index.limit = SeriesLimit(most, options.max_new_series, clock)
        self.appender = Appender(db, index, catalog, clock, options, health, self.watch)
        self.appender.next_sequence, self.appender.next_layout = loaded.next_sequence, loaded.next_layout
        self.writer = Writer(self.appender, options.queue_ticks, options.batch_ticks)
        self.blocks = BlockWriter(db, self.writer, catalog)
        self.keeper = Keeper(
            db, self.writer, self.blocks, reader, catalog, index, clock, options, health, path, self.watch,
            restart=lambda: self.writer.call(self._restart),
        )  # fmt: skip
        self.blocks.discard(loaded.orphans)

    def start(self) -> None:
        self.writer.start()
        self.keeper.start()

    def close(self) -> None:
        self.keeper.stop()
        self.writer.close()
        self.db.close()

    def compact(self) -> None:
        self.keeper.compact()

    def _restart(self) -> None:
        """Begin a new file in the place of one that was deleted; in the writer's turn."""
        self.watch.check_place()
        fresh = copy_unsealed(self.db, self._path, self._clock.now_ms())
        self.lock.release()
        try:
            self.lock = FolderLock(self._path.parent)
        except BaseException:
            fresh.close()
            raise
        with self._catalog.lock:
            old, self.db = self.db, fresh
            for user in (self.appender, self.blocks, self.keeper):
                user.use_database(fresh)
            self._catalog.forget_blocks()
            self._reader.use_new_file()
        self.watch.found_again()
        with suppress(sqlite3.Error):
            old.close()
