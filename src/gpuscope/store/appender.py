"""The append path: ticks in, one transaction for a batch of them, then the heads.

A head changes only after the commit returned, so what a query shows is what a crash keeps. Series, label
pairs and targets seen for the first time go into the same transaction. Runs in the writer's turn only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.store.admission import Admitted, admit, storable
from gpuscope.store.arrays import distinct
from gpuscope.store.catalog import Catalog, TargetState
from gpuscope.store.errors import StoreDamagedError, StoreError, StoreFullError, UnknownSeriesError, from_sqlite
from gpuscope.store.head import Layout
from gpuscope.store.health import Health
from gpuscope.store.index import Index
from gpuscope.store.options import Clock, StoreOptions
from gpuscope.store.schema import TICK_BITS
from gpuscope.store.tick import Appended, Float64s, Tick
from gpuscope.store.tickrows import INSERT_LAYOUT, INSERT_TICK, TickRow, pack_mixed, pack_series

Outcome = Appended | StoreError


@dataclass(frozen=True, slots=True)
class _Planned:
    """A tick judged but not yet committed: a whole row with a layout, or admitted samples."""

    state: TargetState
    row: TickRow | None
    result: Appended
    layout: Layout | None = None
    time: int = 0
    values: Float64s | None = None
    admitted: Admitted | None = None

    def apply(self, now_ms: int) -> None:
        self.state.appended_ms = now_ms
        if self.layout is not None and self.values is not None:
            self.state.head.append_row(self.time, self.layout, self.values)
        elif self.admitted is not None and len(self.admitted.series):
            self.state.head.place(self.admitted.series, self.admitted.times, self.admitted.values)


class Appender:
    """Commits batches of ticks."""

    def __init__(
        self,
        db: sqlite3.Connection,
        index: Index,
        catalog: Catalog,
        clock: Clock,
        options: StoreOptions,
        health: Health,
    ) -> None:
        self._db = db
        self._index = index
        self._catalog = catalog
        self._clock = clock
        self._options = options
        self._health = health
        self._layouts: list[tuple[int, int, bytes]] = []
        self._fresh: list[Layout] = []
        self.next_sequence = 1
        self.next_layout = 1

    def write(self, ticks: Sequence[Tick]) -> list[Outcome]:
        """What became of each tick, in order. A batch is cut where a tick must see an earlier one applied."""
        outcomes: list[Outcome] = []
        while len(outcomes) < len(ticks):
            outcomes += self._write_run(ticks[len(outcomes) :])
        return outcomes

    def _write_run(self, ticks: Sequence[Tick]) -> list[Outcome]:
        now = self._clock.now_ms()
        newest: dict[int, int] = {}
        plans: list[_Planned | StoreError] = []
        for tick in ticks:
            plan = self._plan(tick, now, newest)
            if plan is None:
                break
            plans.append(plan)
        good = [plan for plan in plans if isinstance(plan, _Planned)]
        failure = self._commit([plan.row for plan in good if plan.row is not None], now)
        if failure is not None:
            return [failure if isinstance(plan, _Planned) else plan for plan in plans]
        for plan in good:
            plan.apply(now)
            self._count(plan.result)
        return [plan.result if isinstance(plan, _Planned) else plan for plan in plans]

    def _plan(self, tick: Tick, now: int, newest: dict[int, int]) -> _Planned | StoreError | None:
        """None when the tick must wait for this run's commit: it is not newer than one already in it."""
        state = self._catalog.get(tick.target)
        if state is None:
            return UnknownSeriesError(f"target {tick.target} does not exist; ask for it by name again")
        tick = _plain(tick)
        floor, ceiling = self._bounds(state, now)
        waiting = newest.get(tick.target)
        last = state.head.last if waiting is None else waiting
        simple = tick.timestamps is None and floor < tick.timestamp <= ceiling and len(tick.series) > 0
        if simple and (last is None or tick.timestamp > last):
            layout = self._layout(state, tick)
            if isinstance(layout, StoreError):
                return layout
            if layout is not None:
                newest[tick.target] = tick.timestamp
                return self._plan_row(state, tick, layout)
        if waiting is not None:
            return None
        return self._plan_mixed(state, tick, floor, ceiling, newest)

    def _bounds(self, state: TargetState, now: int) -> tuple[int, int]:
        ceiling = now + self._options.max_ahead_ms
        if state.floor > ceiling:
            # The clock was ahead when that was sealed and has come back: without this the target would be
            # refused until time catches up. Blocks may then overlap; readers and merges cope.
            state.floor = now - self._options.window_ms
        return max(state.floor, now - self._options.retention_ms), ceiling

    def _layout(self, state: TargetState, tick: Tick) -> Layout | StoreError | None:
        """The tick's layout; None if a series comes twice in it."""
        head = state.head
        layout = head.known_layout(tick.series)
        if layout is not None and layout.epoch == self._index.epoch:
            return layout
        epoch = self._index.epoch
        unknown = self._index.unknown(tick.series)
        if len(unknown):
            return UnknownSeriesError(f"series {int(unknown[0])} does not exist; resolve its labels again")
        if layout is not None:
            layout.epoch = epoch
            return layout
        if len(distinct(tick.series)) != len(tick.series):
            return None
        self._index.claim(tick.target, tick.series)
        return head.add_layout(tick.series, epoch)

    def _plan_row(self, state: TargetState, tick: Tick, layout: Layout) -> _Planned:
        if layout.row_id is None:
            layout.row_id = self.next_layout
            self.next_layout += 1
            self._layouts.append((layout.row_id, state.id, pack_series(layout.series)))
            self._fresh.append(layout)
        values = storable(tick.values)
        time = int(tick.timestamp)
        row = (self._row_id(state.id), time, time, layout.row_id, values.astype("<f8", copy=False).tobytes())
        return _Planned(state, row, Appended(len(values)), layout, time, values)

    def _plan_mixed(
        self, state: TargetState, tick: Tick, floor: int, ceiling: int, newest: dict[int, int]
    ) -> _Planned | StoreError:
        unknown = self._index.unknown(tick.series)
        if len(unknown):
            return UnknownSeriesError(f"series {int(unknown[0])} does not exist; resolve its labels again")
        self._index.claim(tick.target, tick.series)
        kept = admit(state.head, tick, storable(tick.values), floor, ceiling)
        result = Appended(len(kept.series), kept.repeated, kept.refused)
        if not len(kept.series):
            return _Planned(state, None, result)
        first, last = int(kept.times.min()), int(kept.times.max())
        newest[tick.target] = max(last, state.head.last or last)
        data = pack_mixed(kept.series, kept.times, kept.values)
        row = (self._row_id(state.id), first, last, None, data)
        return _Planned(state, row, result, admitted=kept)

    def _row_id(self, target: int) -> int:
        sequence = self.next_sequence
        self.next_sequence += 1
        return target << TICK_BITS | sequence

    def _commit(self, rows: list[TickRow], now: int) -> StoreError | None:
        """One transaction for the rows and whatever is new; None when it is on disk."""
        targets, new = self._catalog.take_new(), self._index.take_new()
        if not (rows or targets or new):
            return None
        db = self._db
        try:
            db.execute("BEGIN IMMEDIATE")
            db.executemany("INSERT INTO target (id, name) VALUES (?, ?)", targets)
            db.executemany("INSERT INTO pair (id, name, value) VALUES (?, ?, ?)", new.pairs)
            db.executemany("INSERT INTO series (id, target, pairs) VALUES (?, ?, ?)", new.series)
            db.executemany("INSERT OR IGNORE INTO shared (series, target) VALUES (?, ?)", new.shared)
            db.executemany(INSERT_LAYOUT, self._layouts)
            db.executemany(INSERT_TICK, rows)
            db.execute("COMMIT")
        except sqlite3.Error as error:
            if db.in_transaction:
                db.execute("ROLLBACK")
            self._catalog.put_back(targets)
            self._index.put_back(new)
            for layout in self._fresh:
                layout.row_id = None
            return self._failed(from_sqlite(error), now)
        finally:
            self._layouts, self._fresh = [], []
        self._health.commits += 1
        self._health.full_since_ms = None
        return None

    def flush_new(self) -> None:
        """Commit new series, pairs and targets that no tick has carried yet."""
        failure = self._commit([], self._clock.now_ms())
        if failure is not None:
            raise failure

    def _failed(self, error: StoreError, now: int) -> StoreError:
        self._health.failed_commits += 1
        self._health.last_error = str(error)
        if isinstance(error, StoreDamagedError):
            self._health.unwritable = str(error)
        if isinstance(error, StoreFullError) and self._health.full_since_ms is None:
            self._health.full_since_ms = now
        return error

    def _count(self, result: Appended) -> None:
        self._health.ticks += 1
        self._health.samples += result.accepted
        self._health.repeated += result.repeated
        self._health.refused.update(result.refused)


def _plain(tick: Tick) -> Tick:
    """A tick whose own timestamps are all the same is an ordinary one (remote write, one scrape at a time)."""
    times = tick.timestamps
    if times is None or not len(times) or (times != times[0]).any():
        return tick
    return Tick(tick.target, int(times[0]), tick.series, tick.values)
