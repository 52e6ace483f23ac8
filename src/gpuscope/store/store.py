"""The embedded time-series store: ticks in, series out, in one folder.

Open it, `start()` it (only that starts threads), ask for a target's id and its series' ids once, then append
ticks. An append has returned when its commit has: it survives kill -9 and power loss. Reading never waits for
writing. `maintain()` does the housekeeping that the threads would do; a store opened read-only sees the file
as it was at that moment, also while another process writes to it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import numpy as np

from gpuscope.series import Admit, Labels, Matcher, Series
from gpuscope.store.delete import delete_samples
from gpuscope.store.export import export_openmetrics
from gpuscope.store.folder import make_private
from gpuscope.store.inspection import Cardinality, CheckReport, Stats, backup, cardinality, check, stats
from gpuscope.store.label_queries import Queries
from gpuscope.store.loading import Loaded, load
from gpuscope.store.lock import FolderLock
from gpuscope.store.options import Clock, StoreOptions, SystemClock
from gpuscope.store.own_stats import Health
from gpuscope.store.reader import PinnedReader, Reader
from gpuscope.store.salvage import salvage
from gpuscope.store.schema import FILE_NAME, connect, migrate
from gpuscope.store.store_errors import StoreClosedError, StoreDamagedError, StoreError, from_sqlite, is_damage
from gpuscope.store.tick import Appended, Int64s, Tick
from gpuscope.store.write_side import WriteSide

DAMAGE_MARK = "damaged"


class Store:
    """See the module's text. Implements `series.Storage`."""

    def __init__(
        self,
        folder: Path,
        options: StoreOptions | None = None,
        clock: Clock | None = None,
        *,
        read_only: bool = False,
    ) -> None:
        self.folder = folder
        self.options = options or StoreOptions()
        self._clock = clock or SystemClock()
        self._path = folder / FILE_NAME
        self._lock: FolderLock | None = None
        self._write: WriteSide | None = None
        self._closed = False
        self.health = Health()
        if read_only:
            self._open_read_only()
        else:
            self._open()
        self._queries = Queries(self._index, self._catalog, self._reader)

    def _open(self) -> None:
        try:
            make_private(self.folder, FILE_NAME)
            self._lock = FolderLock(self.folder)
        except OSError as error:
            raise StoreError(f"the data folder {self.folder} cannot be used: {error}") from error
        try:
            db, loaded = self._load_or_salvage()
        except BaseException:
            self._lock.release()
            raise
        self._index, self._catalog = loaded.index, loaded.catalog
        self._reader: Reader = Reader(self._path, self._catalog, self.options.cache_bytes, self.health)
        self._write = WriteSide(
            db, loaded, self._reader, self._clock, self.options, self.health, self._path, self._lock
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
            self.health.last_error = salvage(self._path, self._clock.now_ms(), str(error))
            mark.unlink(missing_ok=True)
            return self._load()

    def _load(self) -> tuple[sqlite3.Connection, Loaded]:
        db = connect(self._path)
        try:
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
        self._index, self._catalog = loaded.index, loaded.catalog
        self._reader = PinnedReader(db, self._path, self._catalog, self.options.cache_bytes, self.health)

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self) -> None:
        """Start the writer's and the keeper's threads."""
        self._writing().start()

    def close(self) -> None:
        """Finish queued ticks and let go of the folder. What is in memory is in the file too."""
        if self._closed:
            return
        self._closed = True
        if self._write is not None:
            self._write.close()
        self._reader.close()
        self._mark_damage()
        if self._write is not None:
            self._write.lock.release()

    def _mark_damage(self) -> None:
        """A file that could be read but not written when it was last open is rebuilt at the next opening."""
        if self.health.unwritable is not None:
            with suppress(OSError):
                (self.folder / DAMAGE_MARK).write_text(self.health.unwritable + "\n", "utf-8")

    def _writing(self) -> WriteSide:
        if self._write is None or self._closed:
            raise StoreClosedError("the store is closed" if self._closed else "the store is read-only")
        return self._write

    # Appending

    def target(self, name: str) -> int:
        """The id of a target (a scraped endpoint, a remote writer's instance), made up on first sight."""
        self._writing()
        return self._catalog.target(name)

    @property
    def epoch(self) -> int:
        """Changes when series are removed: a caller's cache of series ids is valid for one epoch."""
        return self._index.epoch

    def resolve(
        self, target: int, labels: Iterable[Labels], *, reserved: bool = False, origin: Hashable = None
    ) -> Int64s:
        """Series ids of label sets, made up on first sight and stored with the next tick. 0 stands for a new
        series that a limit refuses (`series_refused` says why); `reserved` ones are never refused. `origin` is
        whose allowance of new series they take; by default the target's."""
        self._writing()
        find = self._index.resolve
        return np.array([find(target, one, reserved=reserved, origin=origin) for one in labels], np.int64)

    def series_refused(self) -> str:
        """Why the last new series was refused."""
        return self._writing().series_limit.reason()

    def submit(self, tick: Tick) -> Future[Appended]:
        """Queue a tick; the future is done when its commit returned. Waits while the queue is full."""
        return self._writing().writer.submit(tick)

    def append(self, tick: Tick) -> Appended:
        """Keep a tick; returns when it is on disk. Raises StoreFullError, UnknownSeriesError, StoreError."""
        return self.submit(tick).result()

    # Reading

    asks_before_loading = True
    """For an evaluator: `select` and `latest` take `admit`, and call it before they load much."""

    def select(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, admit: Admit | None = None
    ) -> Sequence[Series]:
        """Every series that matches and has a sample in [start_ms, end_ms], those samples only."""
        return self._queries.select(matchers, start_ms, end_ms, admit)

    def latest(
        self, matchers: Sequence[Matcher], start_ms: int, end_ms: int, admit: Admit | None = None
    ) -> Sequence[Series]:
        """As `select`, but only the newest sample of each series: what an instant query needs."""
        return self._queries.latest(matchers, start_ms, end_ms, admit)

    def any_latest(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int,
        end_ms: int,
        admit: Admit | None = None,
    ) -> Sequence[Series]:
        """As `latest`, of series that meet any of the selectors, each once."""
        return self._queries.any_latest(selectors, start_ms, end_ms, admit)

    def held(self, matchers: Sequence[Matcher], start_ms: int, end_ms: int) -> tuple[int, int] | None:
        """How many series and, at most, samples a question asked before would find, if it were answered from
        memory and without waiting for anybody; None if it might not be. Costs next to nothing."""
        return self._queries.held(matchers, start_ms, end_ms)

    def series(
        self, matchers: Sequence[Matcher], start_ms: int | None = None, end_ms: int | None = None
    ) -> list[Labels]:
        """Label sets of matching series with data in (blocks that overlap) the time range."""
        return self._queries.series(matchers, start_ms, end_ms)

    def any_series(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> Iterator[Labels]:
        """As `series`, of those that meet any of the selectors, each once."""
        return self._queries.any_series(selectors, start_ms, end_ms)

    def any_pairs(
        self,
        selectors: Iterable[Sequence[Matcher]],
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> dict[str, list[str]]:
        """Label names and their sorted values, of series that meet any of the selectors."""
        return self._queries.any_pairs(selectors, start_ms, end_ms)

    def label_names(
        self, matchers: Sequence[Matcher] = (), start_ms: int | None = None, end_ms: int | None = None
    ) -> list[str]:
        return self._queries.label_names(matchers, start_ms, end_ms)

    def label_values(
        self,
        name: str,
        matchers: Sequence[Matcher] = (),
        start_ms: int | None = None,
        end_ms: int | None = None,
    ) -> list[str]:
        return self._queries.label_values(name, matchers, start_ms, end_ms)

    # Upkeep

    def maintain(self) -> None:
        """Do now what is due: seal, merge, retention. The keeper's thread calls this too."""
        self._writing().keeper.run()

    def seal(self) -> None:
        """Seal all heads now; samples older than these are late afterwards."""
        self._writing().keeper.seal_all()

    @property
    def out_of_order_ms(self) -> int:
        """`StoreOptions.out_of_order_ms`, or what `set_out_of_order` has made of it."""
        return self._writing().appender.out_of_order_ms

    def set_out_of_order(self, window_ms: int) -> None:
        """Change how late samples may be, from the next tick on."""
        self._writing().appender.out_of_order_ms = window_ms

    def compact(self) -> None:
        """Give every free page back to the file system and fold SQLite's journal into the file."""
        self._writing().compact()

    def delete_series(
        self, matchers: Sequence[Matcher], start_ms: int | None = None, end_ms: int | None = None
    ) -> int:
        """Delete samples of matching series, all or in [start_ms, end_ms]; returns how many series matched."""
        side = self._writing()
        sids = self._index.select(matchers)
        with side.keeper.alone():
            delete_samples(
                sids, start_ms, end_ms, self._index, self._catalog, self._reader, side.keeper, side.blocks
            )
        return len(sids)

    def trouble(self) -> str:
        """Why nothing can be kept at present; "" if all is well."""
        return self.health.lost or self.health.full_reason or ""

    def stats(self) -> Stats:
        return stats(self._reader, self._index, self._catalog, self.health, self._path)

    def cardinality(self, limit: int = 10) -> Cardinality:
        return cardinality(self._index, limit)

    def check(self) -> CheckReport:
        """Read everything and say what is wrong with it."""
        return check(self._reader, self._index, self._catalog, self.health)

    def export(
        self, matchers: Sequence[Matcher] = (), start_ms: int | None = None, end_ms: int | None = None
    ) -> Iterator[str]:
        """OpenMetrics text, piece by piece."""
        return export_openmetrics(self._index, self._reader, matchers, start_ms, end_ms)

    def backup(self, folder: Path) -> Path:
        """A copy of the store, consistent, while it runs; returns the new file."""
        return backup(self._path, folder)
