"""The embedded time-series store: ticks in, series out, in one data folder.

Open it, call `start()` to start its threads, get ids of targets and series once, then append ticks. An append
returns after its commit: the samples survive kill -9 and power loss. Reads never wait for writes. `maintain()`
runs the background tasks in the caller's thread. A store opened read-only shows the file as it was when opened,
also while another process writes to it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from gpuscope.history.store.background import delete_samples
from gpuscope.history.store.folder import FolderLock, make_private
from gpuscope.history.store.inspection import (
    Cardinality,
    CheckReport,
    Stats,
    backup,
    cardinality,
    check,
    export_openmetrics,
    stats,
)
from gpuscope.history.store.label_queries import LabelQueries
from gpuscope.history.store.options import MillisecondClock, OwnStats, StoreOptions, SystemMillisecondClock
from gpuscope.history.store.reader import PinnedReader, Reader
from gpuscope.history.store.salvage import committed_frames, lost_commits, salvage
from gpuscope.history.store.schema import FILE_NAME, connect, migrate
from gpuscope.history.store.store_errors import (
    StoreClosedError,
    StoreDamagedError,
    StoreError,
    from_sqlite,
    is_damage,
)
from gpuscope.history.store.tick import Appended, Int64s, OwnInstances, Tick, is_verified
from gpuscope.history.store.write_side import Loaded, WriteSide, load
from gpuscope.model.series import Labels, Matcher

log = logging.getLogger(__name__)

DAMAGE_MARK = "damaged"


class Store(LabelQueries):
    """See the module docstring. Implements `series.Storage`; what it is asked is in `LabelQueries`."""

    def __init__(
        self,
        folder: Path,
        options: StoreOptions | None = None,
        clock: MillisecondClock | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.folder = folder
        self.options = options or StoreOptions()
        self._clock = clock or SystemMillisecondClock()
        self._path = folder / FILE_NAME
        self._lock: FolderLock | None = None
        self._write: WriteSide | None = None
        self._closed = False
        self.own_stats = OwnStats()
        self.own_instances = OwnInstances()
        self.filled_until_ms: int | None = None
        """While somebody fills in the past: until when the samples are complete; then None."""
        if read_only:
            self._open_read_only()
        else:
            self._open()
        super().__init__(self._index, self.contents, self.reader)

    def _open(self) -> None:
        try:
            make_private(self.folder, FILE_NAME)
            self._lock = FolderLock(self.folder)
        except OSError as error:
            raise StoreError(f"the folder cannot be used: {error.strerror or error}") from error
        try:
            db, loaded = self._load_or_salvage()
        except BaseException:
            self._lock.release()
            raise
        self._index, self.contents = loaded.index, loaded.contents
        self.reader: Reader = Reader(self._path, self.contents, self.options.cache_bytes, self.own_stats)
        self._write = WriteSide(
            db, loaded, self.reader, self._clock, self.options, self.own_stats, self._path, self._lock
        )

    def _load_or_salvage(self) -> tuple[sqlite3.Connection, Loaded]:
        mark = self.folder / DAMAGE_MARK
        try:
            if mark.exists():
                raise StoreDamagedError(mark.read_text("utf-8", "replace").strip())
            return self._load()
        except (sqlite3.Error, StoreDamagedError) as error:
            if not is_damage(error):
                raise from_sqlite(error) if isinstance(error, sqlite3.Error) else error from error
            self.own_stats.last_error = salvage(self._path, self._clock.now_ms(), str(error))
            mark.unlink(missing_ok=True)
            return self._load()

    def _load(self) -> tuple[sqlite3.Connection, Loaded]:
        committed = committed_frames(self._path)
        db = connect(self._path)
        try:
            if lost := lost_commits(db, committed):
                self.own_stats.last_error = (
                    f"the write-ahead log {self._path}-wal is damaged: of its {len(committed)} transactions "
                    f"{lost} are lost, with the samples and the new series in them"
                )
                log.error("store: %s", self.own_stats.last_error)
            migrate(db, self._clock.now_ms())
            return db, load(db, self._clock.now_ms())
        except BaseException:
            db.close()
            raise

    def _open_read_only(self) -> None:
        if not self._path.exists():
            raise StoreError(f"there is no store in {self.folder}")
        try:
            db = connect(self._path, read_only=True)
            try:
                db.execute("BEGIN")
                loaded = load(db, self._clock.now_ms())
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:
            raise from_sqlite(error) from error
        self._index, self.contents = loaded.index, loaded.contents
        self.reader = PinnedReader(db, self._path, self.contents, self.options.cache_bytes, self.own_stats)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the threads of the writer and of the background tasks."""
        self.write_side().start()

    def close(self) -> None:
        """Commit queued ticks and release the folder. Unsealed samples are in the file too."""
        if self._closed:
            return
        self._closed = True
        if self._write is not None:
            self._write.close()
        self.reader.close()
        self._mark_damage()
        if self._write is not None:
            self._write.lock.release()

    def _mark_damage(self) -> None:
        """Mark a file that could not be written, so that the next start rebuilds it."""
        if self.own_stats.unwritable is not None:
            with suppress(OSError):
                (self.folder / DAMAGE_MARK).write_text(self.own_stats.unwritable + "\n", "utf-8")

    def write_side(self) -> WriteSide:
        """Raises StoreClosedError if the store is closed or read-only."""
        if self._write is None or self._closed:
            raise StoreClosedError("the store is closed" if self._closed else "the store is read-only")
        return self._write

    # Appending

    def target(self, name: str) -> int:
        """Return the id of a target (a scraped endpoint, a remote writer's instance); assign one if it is
        new."""
        self.write_side()
        return self.contents.target(name)

    def is_verified(self, labels: Mapping[str, str]) -> bool:
        """Whether only targets wrote this series that the server reads itself or that a token is bound to."""
        series = self._index.find(tuple(labels.items()))
        if series is None:
            return False
        states = self.contents.get_all(self._index.by_target(np.array([series], np.int64)))
        return is_verified(labels, [state.name for state in states])

    @property
    def epoch(self) -> int:
        """Changes when series are removed: cached series ids are valid for one epoch."""
        return self._index.epoch

    def resolve(
        self, target: int, labels: Iterable[Labels], *, reserved: bool = False, origin: Hashable = None
    ) -> Int64s:
        """Return the series ids of label sets; assign ids to new ones, which are stored with the next tick. The
        id 0 means that a limit refused a new series (`series_refused`); `reserved` series are never refused.
        `origin` says whose allowance of new series is used; the default is the target."""
        self.write_side()
        find = self._index.resolve
        return np.array([find(target, label, reserved=reserved, origin=origin) for label in labels], np.int64)

    def series_refused(self) -> str:
        """Return why the last new series was refused."""
        return self.write_side().series_limit.reason()

    def submit(self, tick: Tick) -> Future[Appended]:
        """Queue a tick; its future completes after the commit. Blocks while the queue is full."""
        return self.write_side().writer.submit(tick)

    def try_submit(self, tick: Tick) -> Future[Appended] | None:
        """As `submit`; return None instead of waiting while the queue is full."""
        return self.write_side().writer.try_submit(tick)

    def append(self, tick: Tick) -> Appended:
        """Append a tick and return after its commit. Raises StoreFullError, UnknownSeriesError, StoreError."""
        return self.submit(tick).result()

    # Maintenance

    def maintain(self) -> None:
        """Run the background tasks that are due: seal, merge, retention."""
        self.write_side().background.run()

    def seal(self) -> None:
        """Seal all heads now; older samples are late afterwards."""
        self.write_side().background.seal_all()

    @property
    def out_of_order_ms(self) -> int:
        """`StoreOptions.out_of_order_ms`, or the value set by `set_out_of_order`."""
        return self.write_side().appender.out_of_order_ms

    def set_out_of_order(self, window_ms: int) -> None:
        """Change the out-of-order window, from the next tick on."""
        self.write_side().appender.out_of_order_ms = window_ms

    def compact(self) -> None:
        """Return every free page to the file system and checkpoint SQLite's WAL."""
        self.write_side().compact()

    def delete_series(
        self, matchers: Sequence[Matcher], start_ms: int | None = None, end_ms: int | None = None
    ) -> int:
        """Delete samples of matching series, all or in [start_ms, end_ms]; return the number of series."""
        side = self.write_side()
        sids = self._index.select(matchers)
        with side.background.paused():
            delete_samples(
                sids, start_ms, end_ms, self._index, self.contents, self.reader, side.background, side.blocks
            )
        return len(sids)

    def write_problem(self) -> str:
        """Return why the store cannot keep samples at present; "" if it can."""
        return self.own_stats.lost or self.own_stats.full_reason or ""

    def stats(self) -> Stats:
        kept = self.kept_rows_bytes
        return stats(self.reader, self._index, self.contents, self.own_stats, self._path, kept)

    def cardinality(self, limit: int = 10) -> Cardinality:
        return cardinality(self._index, limit)

    def check(self) -> CheckReport:
        """Read everything and report problems."""
        return check(self.reader, self._index, self.contents, self.own_stats)

    def export(
        self, matchers: Sequence[Matcher] = (), start_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[str]:
        """Yield the store as OpenMetrics text, in parts."""
        return export_openmetrics(self._index, self.reader, matchers, start_ms, end_ms)

    def backup(self, folder: Path) -> Path:
        """Write a consistent copy while the store runs; return the new file."""
        return backup(self._path, folder)
