"""The append path: checks a batch of ticks, commits them in one transaction, then adds them to the heads.

A head changes only after the commit returns, so a query never shows a sample that a crash could lose. New
series, label pairs and targets go into the same transaction. Runs on the writer's thread only.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuscope.history.store.contents import Contents, StoredTargetState
from gpuscope.history.store.folder import FolderWatch
from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT_BITS, Layout
from gpuscope.history.store.index import Index
from gpuscope.history.store.options import MillisecondClock, OwnStats, StoreOptions
from gpuscope.history.store.schema import (
    INSERT_LAYOUT,
    INSERT_TICK,
    TICK_BITS,
    TickRow,
    pack_mixed,
    pack_series,
)
from gpuscope.history.store.seal import INSERT_LATE, LateRow, add_late
from gpuscope.history.store.store_errors import (
    StoreDamagedError,
    StoreError,
    StoreFullError,
    UnknownSeriesError,
    from_sqlite,
)
from gpuscope.history.store.tick import (
    DUPLICATE,
    IN_FUTURE,
    TOO_OLD,
    Appended,
    Bools,
    Float64s,
    Int64s,
    Tick,
    distinct,
)

# Decides which samples of a tick are kept, by the rules of Prometheus' head.
#
# Samples that are too old or too far in the future are refused. An identical sample is ignored; another value
# for the same series and time is refused. All others are accepted in any order: every sample that Prometheus
# accepts is accepted here, and some that it refuses (docs/decisions/0012-late-samples.md).

_ORDINARY_NAN_BITS = 0x7FF8_0000_0000_0001


class Bounds(NamedTuple):
    """Accepted times: above `floor` they go into the head, above `late_floor` into the late head."""

    floor: int
    late_floor: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class SampleArrays:
    series: Int64s
    times: Int64s
    values: Float64s

    def __len__(self) -> int:
        return len(self.series)


@dataclass(frozen=True, slots=True)
class CheckedSamples:
    """The samples to keep, and counts of the others."""

    fresh: SampleArrays
    late: SampleArrays
    repeated: int
    refused: dict[str, int]


def storable(values: Float64s) -> Float64s:
    """Return the values as float64, without the bit pattern that marks an absent sample."""
    values = np.ascontiguousarray(values, np.float64)
    marked = values.view(np.int64) == ABSENT_BITS
    if marked.any():
        values = values.copy()
        values.view(np.int64)[marked] = _ORDINARY_NAN_BITS
    return values


def check_samples(
    state: StoredTargetState, tick: Tick, values: Float64s, bounds: Bounds, *, report_conflicts: bool
) -> CheckedSamples:
    """Check each sample of a tick; the caller has a fast path for ordinary ticks.

    Without `report_conflicts`, another value for a time before the series' newest counts as repeated:
    Prometheus with an out_of_order_time_window silently drops one of the two.
    """
    times = tick.timestamps
    if times is None:
        times = np.full(len(tick.series), tick.timestamp, np.int64)
    bits = values.view(np.int64)
    old, future = times <= min(bounds.floor, bounds.late_floor), times > bounds.ceiling
    keep = ~(old | future)
    late = keep & (times <= bounds.floor)
    again = _repeats(tick.series, times)
    stored = _stored(state, tick.series, times, late)
    clash = keep & (stored != ABSENT_BITS)
    same = clash & (stored == bits)
    first_bits = bits[again]
    inside = keep & ~clash & (again != np.arange(len(again)))
    same |= inside & (first_bits == bits)
    different = (clash | inside) & ~same
    keep &= ~(clash | inside)
    if not report_conflicts and different.any():
        unreported = different & (late | (times < _newest_times(state.head, tick.series)))
        same, different = same | unreported, different & ~unreported
    refused = {TOO_OLD: _count(old), IN_FUTURE: _count(future & ~old), DUPLICATE: _count(different)}
    fresh, late = keep & ~late, keep & late
    return CheckedSamples(
        SampleArrays(tick.series[fresh], times[fresh], values[fresh]),
        SampleArrays(tick.series[late], times[late], values[late]),
        _count(same),
        {reason: count for reason, count in refused.items() if count},
    )


def _stored(state: StoredTargetState, series: Int64s, times: Int64s, late: Bools) -> Int64s:
    """Return the bits that the heads hold for each sample; blocks are not read."""
    stored = state.head.stored_bits(series, times)
    for late_head in state.late if late.any() else ():
        bits = late_head.head.stored_bits(series[late], times[late])
        stored[late] = np.where(bits == ABSENT_BITS, stored[late], bits)
    return stored


def _newest_times(head: Head, series: Int64s) -> Int64s:
    """Return the time of each series' newest sample in the head; a very old time if it has none."""
    wanted, inverse = np.unique(series, return_inverse=True)
    newest = np.full(len(wanted), -(1 << 62), np.int64)
    known, times, _ = head.view().latest(wanted, -(1 << 62), 1 << 62)
    newest[np.searchsorted(wanted, known)] = times
    found: Int64s = newest[inverse]
    return found


def _repeats(series: Int64s, times: Int64s) -> Int64s:
    """Return for each sample the position of the first one with the same series and time."""
    order = np.lexsort((np.arange(len(series)), times, series))
    leads = np.ones(len(series), np.bool_)
    ordered_series, ordered_times = series[order], times[order]
    leads[1:] = (ordered_series[1:] != ordered_series[:-1]) | (ordered_times[1:] != ordered_times[:-1])
    firsts = order[np.flatnonzero(leads)]
    result = np.empty(len(series), np.int64)
    result[order] = firsts[np.cumsum(leads) - 1] if len(series) else firsts
    return result


def _count(mask: Bools) -> int:
    return int(np.count_nonzero(mask))


Outcome = Appended | StoreError


@dataclass(frozen=True, slots=True)
class _Planned:
    """A tick that was checked but not yet committed: a whole row with a layout, or checked samples."""

    state: StoredTargetState
    row: TickRow | None
    result: Appended
    layout: Layout | None = None
    time: int = 0
    """Time of the newest sample."""
    values: Float64s | None = None
    checked: CheckedSamples | None = None
    late_row: LateRow | None = None

    def apply(self, now_ms: int) -> None:
        self.state.appended_ms = now_ms
        if self.layout is not None and self.values is not None:
            self.state.head.append_row(self.time, self.layout, self.values)
        elif self.checked is not None:
            fresh, late = self.checked.fresh, self.checked.late
            if len(fresh):
                self.state.head.insert(fresh.series, fresh.times, fresh.values)
            if len(late):
                add_late(self.state, late.series, late.times, late.values, now_ms)


class Appender:
    """Commits batches of ticks."""

    def __init__(
        self,
        db: sqlite3.Connection,
        index: Index,
        contents: Contents,
        clock: MillisecondClock,
        options: StoreOptions,
        own_stats: OwnStats,
        watch: FolderWatch,
    ) -> None:
        self._db = db
        self._watch = watch
        self._index = index
        self._contents = contents
        self._clock = clock
        self._options = options
        self._own_stats = own_stats
        self._layouts: list[tuple[int, int, bytes]] = []
        self._fresh: list[Layout] = []
        self.next_sequence = 1
        self.next_layout = 1
        self.out_of_order_ms = options.out_of_order_ms
        self._newest = newest_time(contents)

    def use_database(self, db: sqlite3.Connection) -> None:
        """Write to another file from now on."""
        self._db = db

    def write(self, ticks: Sequence[Tick]) -> list[Outcome]:
        """Return the outcome of each tick, in order. A tick that depends on an earlier one starts a new
        commit."""
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
            self._contents.newest.publish(plan.state.id, plan.state.head)
            self._newest = max(self._newest, plan.time)
            self._count(plan.result)
        return [plan.result if isinstance(plan, _Planned) else plan for plan in plans]

    def _plan(self, tick: Tick, now: int, newest: dict[int, int]) -> _Planned | StoreError | None:
        """Return None if the tick must wait for this run's commit because it is not newer than a tick in it."""
        state = self._contents.get(tick.target)
        if state is None:
            return UnknownSeriesError(f"target {tick.target} does not exist; resolve its name again")
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

    def _bounds(self, state: StoredTargetState, now: int) -> Bounds:
        ceiling = now + self._options.max_ahead_ms
        if state.floor > ceiling:
            # The clock was ahead when the window was sealed and was set back since. Without this, the target's
            # samples would be refused until the clock catches up. Blocks may then overlap, which readers allow.
            state.floor = now - self._options.window_ms
        newest = self._newest if self._newest <= ceiling else now
        late = newest - max(self.out_of_order_ms, self._options.min_late_ms) - 1
        expired = now - self._options.retention_ms
        return Bounds(max(state.floor, expired), max(late, expired), ceiling)

    def _layout(self, state: StoredTargetState, tick: Tick) -> Layout | StoreError | None:
        """Return the tick's layout; None if the tick contains a series twice."""
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

    def _plan_row(self, state: StoredTargetState, tick: Tick, layout: Layout) -> _Planned:
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
        self, state: StoredTargetState, tick: Tick, bounds: Bounds, newest: dict[int, int]
    ) -> _Planned | StoreError:
        unknown = self._index.unknown(tick.series)
        if len(unknown):
            return UnknownSeriesError(f"series {int(unknown[0])} does not exist; resolve its labels again")
        self._index.claim(tick.target, tick.series)
        values = storable(tick.values)
        kept = check_samples(state, tick, values, bounds, report_conflicts=self.out_of_order_ms == 0)
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
        return _Planned(state, row, result, time=last, checked=kept, late_row=late_row)

    def _row_id(self, target: int) -> int:
        sequence = self.next_sequence
        self.next_sequence += 1
        return target << TICK_BITS | sequence

    def _commit(self, rows: list[TickRow], now: int, late: Sequence[LateRow] = ()) -> StoreError | None:
        """Commit the rows and all new series in one transaction; return None on success."""
        targets, new = self._contents.take_new(), self._index.take_new()
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
            self._contents.put_back(targets)
            self._index.put_back(new)
            for layout in self._fresh:
                layout.row_id = None
            return self._failed(from_sqlite(error), now)
        finally:
            self._layouts, self._fresh = [], []
        self._own_stats.commits += 1
        self._own_stats.full_since_ms = self._own_stats.full_reason = None
        self._watch.is_lost()
        return None

    def _failed(self, error: StoreError, now: int) -> StoreError:
        self._own_stats.failed_commits += 1
        self._own_stats.last_error = str(error)
        if isinstance(error, StoreDamagedError):
            self._own_stats.unwritable = str(error)
        if isinstance(error, StoreFullError):
            self._own_stats.full_reason = str(error)
            if self._own_stats.full_since_ms is None:
                self._own_stats.full_since_ms = now
        return error

    def _count(self, result: Appended) -> None:
        self._own_stats.ticks += 1
        self._own_stats.samples += result.accepted
        self._own_stats.repeated += result.repeated
        self._own_stats.refused.update(result.refused)


def _packed(samples: SampleArrays) -> bytes:
    return pack_mixed(samples.series, samples.times, samples.values)


def newest_time(contents: Contents) -> int:
    """Return the time of the store's newest sample; -1 if it has none."""
    heads = (state.head.last for state in contents.states())
    lasts = [last for last in heads if last is not None]
    return max([*lasts, *(block.last for block in contents.blocks())], default=-1)


def _plain(tick: Tick) -> Tick:
    """Replace equal per-sample timestamps by one: remote write sends a scrape this way."""
    times = tick.timestamps
    if times is None or not len(times) or (times != times[0]).any():
        return tick
    return Tick(tick.target, int(times[0]), tick.series, tick.values)
