"""Reads series by id and time range from blocks and heads, while the writer writes.

A reader starts its SQLite transaction and takes its view of the contents together, under the contents' lock.
Series with equal timestamps share one timestamps array, because the evaluator computes on matrices. A chunk
that cannot be read is skipped, counted, and logged once; the other chunks are returned.
"""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Protocol

import numpy as np

from gpuscope.history.store.blocks import BlockReader, CachedBlocks, ChunkCache, NotCached
from gpuscope.history.store.contents import Block, Contents, TargetView
from gpuscope.history.store.head_view import Samples, merge_samples
from gpuscope.history.store.options import OwnStats
from gpuscope.history.store.schema import BLOCK_BITS, connect
from gpuscope.history.store.store_errors import StoreClosedError, from_sqlite
from gpuscope.history.store.tick import Int64s
from gpuscope.model.series import Admit

log = logging.getLogger(__name__)
_IDLE_CONNECTIONS = 4
_MAX_COUNTED_SERIES = 256
"""Selections of more series are not counted by `count_in_memory`."""


class _Blocks(Protocol):
    def read(self, block: Block, series: Int64s) -> dict[int, Samples]:
        """Return all samples in the block of each given series that is in it."""
        ...


_Work = Callable[[_Blocks, dict[int, TargetView], dict[int, Int64s], int, int], dict[int, Samples]]


@dataclass(frozen=True, slots=True)
class ReadSnapshot:
    """A consistent view of some targets for one reader."""

    db: sqlite3.Connection
    blocks: BlockReader
    targets: dict[int, TargetView]


class Reader:
    """A small pool of read-only connections with a common cache."""

    def __init__(self, path: Path, contents: Contents, cache_bytes: int, own_stats: OwnStats) -> None:
        self._path = path
        self._contents = contents
        self.own_stats = own_stats
        self._idle: list[sqlite3.Connection] = []
        self._generation = 0
        """Incremented when the file is replaced: connections to an earlier file are not reused."""
        self._pool = threading.Lock()
        self._closed = False
        self._cache_bytes = cache_bytes
        self.cache = ChunkCache(cache_bytes)

    @contextmanager
    def snapshot(self, targets: list[int], start: int, end: int) -> Iterator[ReadSnapshot]:
        """Open a view of the targets at this moment; without targets, of the file only."""
        generation = self._generation
        db = self.take_connection()
        try:
            with self._contents.lock:
                # The first SELECT determines what this connection sees until the transaction ends.
                _begin(db)
                views = self._views(targets, start, end)
            yield ReadSnapshot(db, BlockReader(db, self.cache, self.own_stats), views)
        finally:
            self._give_back(db, generation)

    def take_connection(self) -> sqlite3.Connection:
        with self._pool:
            if self._closed:
                raise StoreClosedError("the store is closed")
            if self._idle:
                return self._idle.pop()
        try:
            return connect(self._path, read_only=True)
        except sqlite3.Error as error:
            raise from_sqlite(error) from error

    def _give_back(self, db: sqlite3.Connection, generation: int) -> None:
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")
        with self._pool:
            usable = not self._closed and generation == self._generation
            if usable and len(self._idle) < _IDLE_CONNECTIONS:
                self._idle.append(db)
                return
        db.close()

    def close(self) -> None:
        with self._pool:
            self._closed = True
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()

    def use_new_file(self) -> None:
        """Use the new file at the path; reads in progress still use the old one."""
        with self._pool:
            self._generation += 1
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()
        self.cache = ChunkCache(self._cache_bytes)

    def read(
        self, groups: dict[int, Int64s], start: int, end: int, admit: Admit | None = None
    ) -> dict[int, Samples]:
        """Return each series' samples in [start, end]; skip series without any. `groups` is series by
        target."""
        work = _read if admit is None else partial(_read, loading=LoadAdmission(admit))
        return self._answer(work, groups, start, end)

    def latest(self, groups: dict[int, Int64s], start: int, end: int) -> dict[int, Samples]:
        """Return each series' newest sample in [start, end], from the head's last rows if it is there."""
        return self._answer(_latest, groups, start, end)

    def _answer(self, work: _Work, groups: dict[int, Int64s], start: int, end: int) -> dict[int, Samples]:
        """Read from memory if possible: heads and cached chunks need no connection and no transaction."""
        with self._contents.lock:
            views = self._views(groups, start, end)
        try:
            return work(CachedBlocks(self.cache), views, groups, start, end)
        except NotCached:
            with self.snapshot(list(groups), start, end) as snapshot:
                return work(snapshot.blocks, snapshot.targets, groups, start, end)

    def series_with_data(
        self, groups: dict[int, Int64s], targets: list[int], start: int, end: int
    ) -> Iterator[Int64s]:
        """Yield those series of the targets that are in a head or block that overlaps [start, end]."""
        with self.snapshot(targets, start, end) as snapshot:
            for target, view in snapshot.targets.items():
                wanted = groups[target]
                for head in (view.head, *view.late):
                    if head.overlaps(start, end):
                        yield head.has(wanted)
                for block in view.blocks:
                    yield wanted[np.isin(wanted, snapshot.blocks.members(block))]

    def count_in_memory(self, groups: dict[int, Int64s], start: int, end: int) -> int | None:
        """Return about how many samples a read returns; None if they are not all in memory, if there are many
        series, or if the lock is taken: this call must not wait."""
        if sum(map(len, groups.values())) > _MAX_COUNTED_SERIES or self._contents.lock.locked():
            return None
        total = 0
        for target, series in groups.items():
            state = self._contents.get(target)
            if state is None:
                continue
            total += len(series) * state.head.rows + state.head.side_samples
            total += sum(len(series) * late.head.rows + late.head.side_samples for late in state.late)
            for block in state.blocks:
                if block.first > end or block.last < start:
                    continue
                count = self.cache.count(((block.id << BLOCK_BITS) | series).tolist())
                if count is None:
                    return None
                inside = min(end, block.last) - max(start, block.first) + 1
                total += count * inside // (block.last - block.first + 1)
        return total

    def _views(self, targets: Iterable[int], start: int, end: int) -> dict[int, TargetView]:
        """Return the targets' views; the caller holds the contents' lock."""
        views: dict[int, TargetView] = {}
        for target in targets:
            view = self._contents.view(target, start, end)
            if view is not None:
                views[target] = view
        return views


class PinnedReader(Reader):
    """Reads everything through one connection in one transaction, begun before the contents were loaded: the
    file as it was then, even if another process changes it. One reader at a time."""

    def __init__(
        self, db: sqlite3.Connection, path: Path, contents: Contents, cache_bytes: int, own_stats: OwnStats
    ) -> None:
        super().__init__(path, contents, cache_bytes, own_stats)
        self._db = db
        self._turn = threading.RLock()

    @contextmanager
    def snapshot(self, targets: list[int], start: int, end: int) -> Iterator[ReadSnapshot]:
        with self._turn:
            with self._contents.lock:
                views = self._views(targets, start, end)
            yield ReadSnapshot(self._db, BlockReader(self._db, self.cache, self.own_stats), views)

    def close(self) -> None:
        with self._turn:
            super().close()
            self._db.close()


def _begin(db: sqlite3.Connection) -> None:
    try:
        db.execute("BEGIN")
        db.execute("SELECT 1 FROM block LIMIT 1").fetchone()
    except sqlite3.Error as error:
        raise from_sqlite(error) from error


def _read(
    blocks: _Blocks,
    views: dict[int, TargetView],
    groups: dict[int, Int64s],
    start: int,
    end: int,
    loading: LoadAdmission | None = None,
) -> dict[int, Samples]:
    by_series: dict[int, Samples] = {}
    if loading is not None:
        loading.restart()
    for target, view in views.items():
        fresh = _read_target(blocks, view, groups[target], start, end, loading)
        # Two targets may write one series: the samples of its first target take precedence.
        for sid in by_series.keys() & fresh.keys():
            fresh[sid] = merge_samples([by_series[sid], fresh[sid]])
        by_series.update(fresh)
    return by_series


def _latest(
    blocks: _Blocks, views: dict[int, TargetView], groups: dict[int, Int64s], start: int, end: int
) -> dict[int, Samples]:
    newest: dict[int, Samples] = {}
    moments: dict[int, Int64s] = {}
    for target, view in views.items():
        series = groups[target]
        known, times, values = view.head.latest(series, start, end)
        if len(times) and view.newest_sealed() > times.min():
            known = known[:0]  # after a clock change, a block may hold newer samples than the head
        fresh: dict[int, Samples] = {}
        for i, (sid, time) in enumerate(zip(known.tolist(), times.tolist(), strict=False)):
            if time not in moments:
                moments[time] = np.array([time], np.int64)
            fresh[sid] = moments[time], values[i : i + 1]
        if len(known) < len(series) and (view.blocks or view.late):
            rest = series[~np.isin(series, known)]
            for sid, (own, some) in _read_target(blocks, view, rest, start, end).items():
                fresh[sid] = own[-1:], some[-1:]
        for sid, samples in fresh.items():
            if sid not in newest or samples[0][0] > newest[sid][0][0]:
                newest[sid] = samples
    return newest


def _read_target(
    blocks: _Blocks,
    view: TargetView,
    series: Int64s,
    start: int,
    end: int,
    loading: LoadAdmission | None = None,
) -> dict[int, Samples]:
    if loading is not None:
        loading.request(sum(head.count(series, start, end) for head in (view.head, *view.late)))
    if not (view.blocks or view.late):
        return view.head.read(series, start, end)
    parts: dict[int, list[Samples]] = {}
    for block in view.blocks:
        cut = RangeCutter(start, end, inside=block.first >= start and block.last <= end)
        by_series = blocks.read(block, series)
        if loading is not None:  # after the read: only the chunks contain their number of samples
            loading.request(sum(len(times) for times, _ in by_series.values()))
        for sid, samples in by_series.items():
            kept = cut(samples)
            if len(kept[0]):
                parts.setdefault(sid, []).append(kept)
    for head in (view.head, *view.late):
        for sid, samples in head.read(series, start, end).items():
            parts.setdefault(sid, []).append(samples)
    join = PartJoiner()
    return {sid: some[0] if len(some) == 1 else join(some) for sid, some in parts.items()}


class LoadAdmission:
    """Calls `admit` for samples to load; a second attempt calls it only for samples not admitted before."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._granted = self._wanted = 0

    def restart(self) -> None:
        self._wanted = 0

    def request(self, samples: int) -> None:
        self._wanted += samples
        if self._wanted > self._granted:
            self._admit(0, self._wanted - self._granted)
            self._granted = self._wanted


class RangeCutter:
    """Cuts samples to a time range; equal times arrays are cut to one shared array."""

    def __init__(self, start: int, end: int, *, inside: bool) -> None:
        self._start, self._end, self._inside = start, end, inside
        self._known: dict[int, tuple[Int64s, slice, Int64s]] = {}

    def __call__(self, samples: Samples) -> Samples:
        if self._inside:
            return samples
        times, values = samples
        known = self._known.get(id(times))
        if known is None:
            low = int(np.searchsorted(times, self._start))
            high = int(np.searchsorted(times, self._end, side="right"))
            known = self._known[id(times)] = times, slice(low, high), times[low:high]
        return known[2], values[known[1]]


class PartJoiner:
    """Concatenates the parts of a series; equal lists of times arrays give one shared array."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[list[Samples], Int64s]] = {}

    def __call__(self, parts: list[Samples]) -> Samples:
        key = tuple(id(times) for times, _ in parts)
        known = self._known.get(key)
        if known is None:
            if any(a[0][-1] >= b[0][0] for a, b in pairwise(parts)):
                return merge_samples(parts)  # blocks overlap: late samples, or a clock change
            known = self._known[key] = parts, np.concatenate([times for times, _ in parts])
        return known[1], np.concatenate([values for _, values in parts])
