"""The single writer: executes every change of the file, one after the other, and publishes blocks.

Before `start()` a call runs in the caller's thread. After it, ticks and calls are queued for the writer's
thread, and queued ticks share one commit. The queue is bounded: a sender that is too fast waits.
"""

from __future__ import annotations

import contextlib
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from gpuscope.history.store.appender import Appender, Outcome
from gpuscope.history.store.chunk_codec import BundleRow
from gpuscope.history.store.contents import Block, Contents
from gpuscope.history.store.schema import BLOCK_BITS
from gpuscope.history.store.seal import INSERT_BLOCK, INSERT_BUNDLE, BuiltBlock
from gpuscope.history.store.store_errors import StoreClosedError, StoreError, from_sqlite
from gpuscope.history.store.tick import Appended, Tick

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _TickJob:
    tick: Tick
    future: Future[Appended]


@dataclass(frozen=True, slots=True)
class _CallJob:
    work: Callable[[], Any]
    future: Future[Any]


_QUEUE_EMPTY = _CallJob(lambda: None, Future())


class Writer:
    """Executes jobs one at a time."""

    def __init__(self, appender: Appender, queue_ticks: int, batch_ticks: int) -> None:
        self.appender = appender
        self._batch_ticks = batch_ticks
        self._turn = threading.RLock()
        self._queue: queue.Queue[_TickJob | _CallJob | None] = queue.Queue(queue_ticks)
        self._thread: threading.Thread | None = None
        self._closed = False

    def start(self) -> None:
        if self._thread is None and not self._closed:
            self._thread = threading.Thread(target=self._run, name="gpuscope-store-writer", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Finish the queued jobs and accept no more."""
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()
            self._thread = None
        self._refuse_queued()

    def next_sequence(self) -> int:
        """Return the lowest sequence number of ticks appended from now on; called on the writer's thread."""
        return self.appender.next_sequence

    def waiting(self) -> int:
        return self._queue.qsize()

    def submit(self, tick: Tick) -> Future[Appended]:
        """Queue a tick; the future completes when its commit succeeded or failed."""
        job = _TickJob(tick, Future())
        self._enqueue(job)
        return job.future

    def try_submit(self, tick: Tick) -> Future[Appended] | None:
        """As `submit`; return None instead of waiting while the queue is full."""
        job = _TickJob(tick, Future())
        try:
            self._enqueue(job, wait=False)
        except queue.Full:
            return None
        return job.future

    def call(self, work: Callable[[], T]) -> T:
        """Run a function on the writer's thread and return its result."""
        if threading.current_thread() is self._thread:
            return work()
        job = _CallJob(work, Future())
        self._enqueue(job)
        return job.future.result()  # type: ignore[no-any-return]

    def _enqueue(self, job: _TickJob | _CallJob, *, wait: bool = True) -> None:
        if self._closed:
            raise StoreClosedError("the store is closed")
        if self._thread is None:
            self._execute([job] if isinstance(job, _TickJob) else job)
            return
        self._queue.put(job, block=wait)
        if self._closed and not self._thread.is_alive():
            self._refuse_queued()

    def _run(self) -> None:
        job = self._queue.get()
        while job is not None:
            if isinstance(job, _CallJob):
                self._execute(job)
                job = self._queue.get()
                continue
            batch = [job]
            job = self._next_tick_or(batch)
            self._execute(batch)
            if job is _QUEUE_EMPTY:
                job = self._queue.get()

    def _next_tick_or(self, batch: list[_TickJob]) -> _TickJob | _CallJob | None:
        """Add the ticks already queued to the batch; return the first job that does not belong to it."""
        while len(batch) < self._batch_ticks:
            try:
                job = self._queue.get_nowait()
            except queue.Empty:
                return _QUEUE_EMPTY
            if not isinstance(job, _TickJob):
                return job
            batch.append(job)
        return _QUEUE_EMPTY

    def _execute(self, work: list[_TickJob] | _CallJob) -> None:
        with self._turn:
            if isinstance(work, _CallJob):
                _run_into(work.future, work.work)
                return
            batch = [job for job in work if job.future.set_running_or_notify_cancel()]
            try:
                outcomes: Sequence[Outcome | Exception] = self.appender.write([job.tick for job in batch])
            except Exception as error:  # reported to the senders; the writer must continue
                outcomes = [error] * len(batch)
        for job, outcome in zip(batch, outcomes, strict=True):
            if isinstance(outcome, Appended):
                job.future.set_result(outcome)
            else:
                job.future.set_exception(outcome)

    def _refuse_queued(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                job = self._queue.get_nowait()
                if job is not None and job.future.set_running_or_notify_cancel():
                    job.future.set_exception(StoreClosedError("the store is closed"))


def _run_into(future: Future[Any], work: Callable[[], Any]) -> None:
    if future.set_running_or_notify_cancel():
        try:
            future.set_result(work())
        except Exception as error:
            future.set_exception(error)


# Publishes blocks: writes the bundles in small transactions, then adds the block row in a short last one.
#
# A bundle belongs to the store only while its block's row exists. So a merge can write new bundles and delete
# old ones in small transactions, with ticks committed in between. A crash leaves at most bundles without a
# block row, which the next start deletes.

_BATCH_BUNDLES = 64
Change = Callable[[sqlite3.Connection], int | None]


def _nothing(db: sqlite3.Connection) -> None:
    return None


class BlockWriter:
    """Adds and removes blocks on the writer's thread; callable from any thread."""

    def __init__(self, db: sqlite3.Connection, writer: Writer, contents: Contents) -> None:
        self._db = db
        self._writer = writer
        self._contents = contents

    def use_database(self, db: sqlite3.Connection) -> None:
        """Use another file from now on."""
        self._db = db

    def stage(self, built: BuiltBlock) -> None:
        """Write a block's bundles; readers do not see them before `publish`."""
        for at in range(0, len(built.bundles), _BATCH_BUNDLES):
            rows = built.bundles[at : at + _BATCH_BUNDLES]

            def insert(db: sqlite3.Connection, rows: list[BundleRow] = rows) -> None:
                db.executemany(INSERT_BUNDLE, rows)

            self.transaction(insert)

    def publish(
        self,
        built: Sequence[BuiltBlock],
        dropped: Sequence[Block] = (),
        change: Change = _nothing,
        swap: Callable[[], None] = lambda: None,
    ) -> None:
        """Add staged blocks, drop others and apply `change` in one transaction; `swap` follows under the
        lock."""

        def apply(db: sqlite3.Connection) -> None:
            db.executemany(INSERT_BLOCK, [new_block.row() for new_block in built])
            db.executemany("DELETE FROM block WHERE id = ?", [(block.id,) for block in dropped])
            change(db)

        def swap_all() -> None:
            self._contents.drop_blocks(dropped)
            self._contents.add_blocks(new_block.block for new_block in built)
            swap()

        self.transaction(apply, swap_all)
        self.sweep(block.id for block in dropped)

    def discard(self, blocks: Iterable[int]) -> None:
        """Delete the bundles of a failed attempt. If that fails too, the next start deletes them."""
        with suppress(StoreError):
            self.sweep(blocks)

    def sweep(self, blocks: Iterable[int]) -> None:
        """Delete the bundles of blocks that have no row."""
        for block in blocks:

            def delete(db: sqlite3.Connection, block: int = block) -> int:
                return _delete_some(db, block << BLOCK_BITS, (block + 1) << BLOCK_BITS)

            while self.transaction(delete) == _BATCH_BUNDLES:
                pass

    def transaction(self, change: Change, swap: Callable[[], None] | None = None) -> int:
        """Run a change and commit it on the writer's thread; `swap` follows under the contents' lock."""

        def work() -> int:
            db = self._db
            try:
                db.execute("BEGIN IMMEDIATE")
                result = change(db)
                if swap is None:
                    db.execute("COMMIT")
                else:
                    with self._contents.lock:
                        db.execute("COMMIT")
                        swap()
            except sqlite3.Error as error:
                _roll_back(db)
                raise from_sqlite(error) from error
            except BaseException:
                _roll_back(db)
                raise
            return result or 0

        return self._writer.call(work)


def _roll_back(db: sqlite3.Connection) -> None:
    with suppress(sqlite3.Error):
        if db.in_transaction:
            db.execute("ROLLBACK")


def _delete_some(db: sqlite3.Connection, low: int, high: int) -> int:
    ids = db.execute(
        "SELECT id FROM bundle WHERE id >= ? AND id < ? LIMIT ?", (low, high, _BATCH_BUNDLES)
    ).fetchall()
    if ids:
        db.execute("DELETE FROM bundle WHERE id BETWEEN ? AND ?", (ids[0][0], ids[-1][0]))
    return len(ids)


def orphans(db: sqlite3.Connection, blocks: set[int]) -> list[int]:
    """Return ids of blocks that have bundles but no row; needs one lookup per block."""
    without_row: list[int] = []
    at = 0
    while True:
        row = db.execute("SELECT id FROM bundle WHERE id >= ? ORDER BY id LIMIT 1", (at,)).fetchone()
        if row is None:
            return without_row
        block = row[0] >> BLOCK_BITS
        if block not in blocks:
            without_row.append(block)
        at = (block + 1) << BLOCK_BITS
