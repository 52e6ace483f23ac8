"""Reading: series by id and time range, from blocks and heads, while the writer writes.

A reader's SQLite snapshot and its view of the catalogue are taken together under the catalogue's lock. Series
with the same timestamps get the same timestamps array: the evaluator works on whole matrices of them. A chunk
that cannot be read is left out, counted, and named once in the log; the rest of the answer stands.
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

from gpuscope.series import Admit
from gpuscope.store.blocks import BlockReader, CachedBlocks, NotCached
from gpuscope.store.cache import ChunkCache
from gpuscope.store.contents import Block, Catalog, TargetView
from gpuscope.store.head_view import Samples, merge_samples
from gpuscope.store.own_stats import Health
from gpuscope.store.schema import BLOCK_BITS, connect
from gpuscope.store.store_errors import StoreClosedError, from_sqlite
from gpuscope.store.tick import Int64s

log = logging.getLogger(__name__)
_IDLE_CONNECTIONS = 4
_MOST_HELD = 256
"""Series that are worth counting the samples of."""


class _Blocks(Protocol):
    def read(self, block: Block, series: Int64s) -> dict[int, Samples]:
        """All samples of the block for each of the series that is in it."""
        ...


_Work = Callable[[_Blocks, dict[int, TargetView], dict[int, Int64s], int, int], dict[int, Samples]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """One reader's consistent view of some targets."""

    db: sqlite3.Connection
    blocks: BlockReader
    targets: dict[int, TargetView]


class Reader:
    """A small pool of read-only connections and the cache they share."""

    def __init__(self, path: Path, catalog: Catalog, cache_bytes: int, health: Health) -> None:
        self._path = path
        self._catalog = catalog
        self.health = health
        self._idle: list[sqlite3.Connection] = []
        self._generation = 0
        """Of the file: connections to an earlier one are not used again."""
        self._pool = threading.Lock()
        self._closed = False
        self._cache_bytes = cache_bytes
        self.cache = ChunkCache(cache_bytes)

    @contextmanager
    def snapshot(self, targets: list[int], start: int, end: int) -> Iterator[Snapshot]:
        """Some targets at this moment; of no target: the file alone."""
        generation = self._generation
        db = self._take()
        try:
            with self._catalog.lock:
                # The first SELECT fixes what this connection sees until the transaction ends.
                _begin(db)
                views = self._views(targets, start, end)
            yield Snapshot(db, BlockReader(db, self.cache, self.health), views)
        finally:
            self._give_back(db, generation)

    def _take(self) -> sqlite3.Connection:
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
        """There is another file at the path; answers under way still come from the old one."""
        with self._pool:
            self._generation += 1
            idle, self._idle = self._idle, []
        for db in idle:
            db.close()
        self.cache = ChunkCache(self._cache_bytes)

    def read(
        self, groups: dict[int, Int64s], start: int, end: int, admit: Admit | None = None
    ) -> dict[int, Samples]:
        """Samples in [start, end] of each series that has any; `groups` is series by target."""
        work = _read if admit is None else partial(_read, loading=Loading(admit))
        return self._answer(work, groups, start, end)

    def latest(self, groups: dict[int, Int64s], start: int, end: int) -> dict[int, Samples]:
        """The newest sample in [start, end] of each series: from the head's last rows where it is there."""
        return self._answer(_latest, groups, start, end)

    def _answer(self, work: _Work, groups: dict[int, Int64s], start: int, end: int) -> dict[int, Samples]:
        """From memory if all of it is there: heads and cached chunks need no connection, no transaction."""
        with self._catalog.lock:
            views = self._views(groups, start, end)
        try:
            return work(CachedBlocks(self.cache), views, groups, start, end)
        except NotCached:
            with self.snapshot(list(groups), start, end) as snapshot:
                return work(snapshot.blocks, snapshot.targets, groups, start, end)

    def held(self, groups: dict[int, Int64s], start: int, end: int) -> int | None:
        """About how many samples that would be; None if they are not all in memory, or too many to tell, or
        if somebody is about to publish a block, for whom one would have to wait."""
        if sum(map(len, groups.values())) > _MOST_HELD or self._catalog.lock.locked():
            return None
        total = 0
        for target, series in groups.items():
            state = self._catalog.get(target)
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
        """The caller holds the catalogue's lock."""
        views: dict[int, TargetView] = {}
        for target in targets:
            view = self._catalog.view(target, start, end)
            if view is not None:
                views[target] = view
        return views


class PinnedReader(Reader):
    """All reads through one connection and one transaction, begun before the catalogue was loaded: the file
    as it was then, whatever another process does to it. Readers take turns."""

    def __init__(
        self, db: sqlite3.Connection, path: Path, catalog: Catalog, cache_bytes: int, health: Health
    ) -> None:
        super().__init__(path, catalog, cache_bytes, health)
        self._db = db
        self._turn = threading.RLock()

    @contextmanager
    def snapshot(self, targets: list[int], start: int, end: int) -> Iterator[Snapshot]:
        with self._turn:
            with self._catalog.lock:
                views = self._views(targets, start, end)
            yield Snapshot(self._db, BlockReader(self._db, self.cache, self.health), views)

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
    loading: Loading | None = None,
) -> dict[int, Samples]:
    found: dict[int, Samples] = {}
    if loading is not None:
        loading.begin()
    for target, view in views.items():
        fresh = _read_target(blocks, view, groups[target], start, end, loading)
        # Two targets may write one series: the home target's samples win.
        for sid in found.keys() & fresh.keys():
            fresh[sid] = merge_samples([found[sid], fresh[sid]])
        found.update(fresh)
    return found


def _latest(
    blocks: _Blocks, views: dict[int, TargetView], groups: dict[int, Int64s], start: int, end: int
) -> dict[int, Samples]:
    found: dict[int, Samples] = {}
    moments: dict[int, Int64s] = {}
    for target, view in views.items():
        series = groups[target]
        known, times, values = view.head.latest(series, start, end)
        if len(times) and view.newest_sealed() > times.min():
            known = known[:0]  # after a clock jump a block may hold newer samples than the head
        fresh: dict[int, Samples] = {}
        for i, (sid, time) in enumerate(zip(known.tolist(), times.tolist(), strict=False)):
            if time not in moments:
                moments[time] = np.array([time], np.int64)
            fresh[sid] = moments[time], values[i : i + 1]
        rest = series[~np.isin(series, known)]
        if len(rest) and (view.blocks or view.late):
            for sid, (own, some) in _read_target(blocks, view, rest, start, end).items():
                fresh[sid] = own[-1:], some[-1:]
        for sid, samples in fresh.items():
            if sid not in found or samples[0][0] > found[sid][0][0]:
                found[sid] = samples
    return found


def _read_target(
    blocks: _Blocks, view: TargetView, series: Int64s, start: int, end: int, loading: Loading | None = None
) -> dict[int, Samples]:
    if loading is not None:
        loading.ask(sum(head.count(series, start, end) for head in (view.head, *view.late)))
    if not (view.blocks or view.late):
        return view.head.read(series, start, end)
    parts: dict[int, list[Samples]] = {}
    for block in view.blocks:
        cut = Cut(start, end, inside=block.first >= start and block.last <= end)
        found = blocks.read(block, series)
        if loading is not None:  # one block late: only its chunks say how many they hold
            loading.ask(sum(len(times) for times, _ in found.values()))
        for sid, samples in found.items():
            kept = cut(samples)
            if len(kept[0]):
                parts.setdefault(sid, []).append(kept)
    for head in (view.head, *view.late):
        for sid, samples in head.read(series, start, end).items():
            parts.setdefault(sid, []).append(samples)
    joined = Joined()
    return {sid: some[0] if len(some) == 1 else joined(some) for sid, some in parts.items()}


class Loading:
    """Asks whether samples may be loaded; a second attempt asks only for what the first did not."""

    def __init__(self, admit: Admit) -> None:
        self._admit = admit
        self._granted = self._wanted = 0

    def begin(self) -> None:
        self._wanted = 0

    def ask(self, samples: int) -> None:
        self._wanted += samples
        if self._wanted > self._granted:
            self._admit(0, self._wanted - self._granted)
            self._granted = self._wanted


class Cut:
    """Samples to a time range; the same times array gives the same cut array."""

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


class Joined:
    """Parts of a series to one; the same times arrays give the same joined array."""

    def __init__(self) -> None:
        self._known: dict[tuple[int, ...], tuple[list[Samples], Int64s]] = {}

    def __call__(self, parts: list[Samples]) -> Samples:
        key = tuple(id(times) for times, _ in parts)
        known = self._known.get(key)
        if known is None:
            if any(a[0][-1] >= b[0][0] for a, b in pairwise(parts)):
                return merge_samples(parts)  # blocks overlap: late samples, or the clock had jumped
            known = self._known[key] = parts, np.concatenate([times for times, _ in parts])
        return known[1], np.concatenate([values for _, values in parts])
