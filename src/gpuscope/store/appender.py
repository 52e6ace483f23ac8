"""The append path: ticks in, one transaction for a batch of them, then the heads.

A head changes only after the commit returned, so what a query shows is what a crash keeps. Series, label
pairs and targets seen for the first time go into the same transaction. Runs in the writer's turn only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.store.arrays import distinct
from gpuscope.store.contents import Catalog, TargetState
from gpuscope.store.head import Layout
from gpuscope.store.index import Index
from gpuscope.store.late import INSERT_LATE, LateRow, add_late
from gpuscope.store.options import Clock, StoreOptions
from gpuscope.store.own_stats import Health
from gpuscope.store.restart import FolderWatch
from gpuscope.store.sample_checks import Admitted, Bounds, Samples, admit, storable
from gpuscope.store.schema import TICK_BITS
from gpuscope.store.store_errors import (
    StoreDamagedError,
    StoreError,
    StoreFullError,
    UnknownSeriesError,
    from_sqlite,
)
from gpuscope.store.tick import Appended, Float64s, Tick
from gpuscope.store.tick_rows import INSERT_LAYOUT, INSERT_TICK, TickRow, pack_mixed, pack_series

Outcome = Appended | StoreError


@dataclass(frozen=True, slots=True)
class _Planned:
    """A tick judged but not yet committed: a whole row with a layout, or admitted samples."""

    state: TargetState
    row: TickRow | None
    result: Appended
    layout: Layout | None = None
    time: int = 0
    """Of the newest sample."""
    values: Float64s | None = None
    admitted: Admitted | None = None
    late_row: LateRow | None = None

    def apply(self, now_ms: int) -> None:
        self.state.appended_ms = now_ms
        if self.layout is not None and self.values is not None:
            self.state.head.append_row(self.time, self.layout, self.values)
        elif self.admitted is not None:
            fresh, late = self.admitted.fresh, self.admitted.late
            if len(fresh):
                self.state.head.place(fresh.series, fresh.times, fresh.values)
            if len(late):
                add_late(self.state, late.series, late.times, late.values, now_ms)


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
        watch: FolderWatch,
    ) -> None:
        self._db = db
        self._watch = watch
        self._index = index
        self._catalog = catalog
        self._clock = clock
        self._options = options
        self._health = health
        self._layouts: list[tuple[int, int, bytes]] = []
        self._fresh: list[Layout] = []
        self.next_sequence = 1
        self.next_layout = 1
        self.out_of_order_ms = options.out_of_order_ms
        self._newest = newest_time(catalog)

    def use_database(self, db: sqlite3.Connection) -> None:
        """Another file from now on."""
        self._db = db

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
        late = [plan.late_row for plan in good if plan.late_row is not None]
        failure = self._commit([plan.row for plan in good if plan.row is not None], now, late)
        if failure is not None:
            return [failure if isinstance(plan, _Planned) else plan for plan in plans]
        for plan in good:
            plan.apply(now)
            self._newest = max(self._newest, plan.time)
            self._count(plan.result)
        return [plan.result if isinstance(plan, _Planned) else plan for plan in plans]

    def _plan(self, tick: Tick, now: int, newest: dict[int, int]) -> _Planned | StoreError | None:
        """None when the tick must wait for this run's commit: it is not newer than one already in it."""
        state = self._catalog.get(tick.target)
        if state is None:
            return UnknownSeriesError(f"target {tick.target} does not exist; ask for it by name again")
        tick = _plain(tick)
        bounds = self._bounds(state, now)
        waiting = newest.get(tick.target)
        last = state.head.last if waiting is None else waiting
        simple = tick.timestamps is None and bounds.floor < tick.timestamp <= bounds.ceiling
        simple = simple and len(tick.series) > 0
        if simple and (last is None or tick.timestamp > last):
            layout = self._layout(state, tick)
            if isinstance(layout, StoreError):
                return layout
            if layout is not None:
                newest[tick.target] = tick.timestamp
                return self._plan_row(state, tick, layout)
        if waiting is not None:
            return None
        return self._plan_mixed(state, tick, bounds, newest)

    def _bounds(self, state: TargetState, now: int) -> Bounds:
        ceiling = now + self._options.max_ahead_ms
        if state.floor > ceiling:
            # The clock was ahead when that was sealed and has come back: without this the target would be
            # refused until time catches up. Blocks may then overlap; readers and merges cope.
            state.floor = now - self._options.window_ms
        newest = self._newest if self._newest <= ceiling else now
        late = newest - max(self.out_of_order_ms, self._options.min_late_ms) - 1
        expired = now - self._options.retention_ms
        return Bounds(max(state.floor, expired), max(late, expired), ceiling)

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
        self, state: TargetState, tick: Tick, bounds: Bounds, newest: dict[int, int]
    ) -> _Planned | StoreError:
        unknown = self._index.unknown(tick.series)
        if len(unknown):
            return UnknownSeriesError(f"series {int(unknown[0])} does not exist; resolve its labels again")
        self._index.claim(tick.target, tick.series)
        values = storable(tick.values)
        kept = admit(state, tick, values, bounds, tell_conflicts=self.out_of_order_ms == 0)
        result = Appended(len(kept.fresh) + len(kept.late), kept.repeated, kept.refused)
        last = -1
        row: TickRow | None = None
        late_row: LateRow | None = None
        if len(kept.fresh):
            last = int(kept.fresh.times.max())
            row = (self._row_id(state.id), int(kept.fresh.times.min()), last, None, _packed(kept.fresh))
        if len(kept.late):
            late_row = (self._row_id(state.id), _packed(kept.late))
            last = max(last, int(kept.late.times.max()))
        if row or late_row:
            newest[tick.target] = max(last, last if state.head.last is None else state.head.last)
        return _Planned(state, row, result, time=last, admitted=kept, late_row=late_row)

    def _row_id(self, target: int) -> int:
        sequence = self.next_sequence
        self.next_sequence += 1
        return target << TICK_BITS | sequence

    def _commit(self, rows: list[TickRow], now: int, late: Sequence[LateRow] = ()) -> StoreError | None:
        """One transaction for the rows and whatever is new; None when it is on disk."""
        targets, new = self._catalog.take_new(), self._index.take_new()
        if not (rows or late or targets or new):
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
            if late:
                db.executemany(INSERT_LATE, late)
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
        self._health.full_since_ms = self._health.full_reason = None
        self._watch.is_lost()
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
        if isinstance(error, StoreFullError):
            self._health.full_reason = str(error)
            if self._health.full_since_ms is None:
                self._health.full_since_ms = now
        return error

    def _count(self, result: Appended) -> None:
        self._health.ticks += 1
        self._health.samples += result.accepted
        self._health.repeated += result.repeated
        self._health.refused.update(result.refused)


def _packed(samples: Samples) -> bytes:
    return pack_mixed(samples.series, samples.times, samples.values)


def newest_time(catalog: Catalog) -> int:
    """Of all samples of a store; -1 if there are none."""
    heads = (state.head.last for state in catalog.states())
    lasts = [last for last in heads if last is not None]
    return max([*lasts, *(block.last for block in catalog.blocks())], default=-1)


def _plain(tick: Tick) -> Tick:
    """A tick whose own timestamps are all the same is an ordinary one (remote write, one scrape at a time)."""
    times = tick.timestamps
    if times is None or not len(times) or (times != times[0]).any():
        return tick
    return Tick(tick.target, int(times[0]), tick.series, tick.values)
