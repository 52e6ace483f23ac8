"""Thirty days of a fleet: days of `days.py`, recorded by simulated agents and repeated on many nodes.

Input: which day each cell of the fleet has on which date. A cell is a node, or the nodes of a Slurm cluster.
Output: samples, hour by hour, as scrapes would bring them. A day that is repeated has other users, jobs, pods
and PIDs, and the times in its values are moved with it. Between two days the agent restarts and people change.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from gpuscope.history.promql.frame import Floats
from gpuscope.history.store import Store, Tick
from gpuscope.history.store.tick import Int64s
from gpuscope.model.series import Labels, Series
from tests.judgement.comparison import SLACK_SECONDS, SLACK_SHARE, uuids_of
from tests.judgement.days import (
    CELL,
    DAY_SECONDS,
    FAULTS,
    HOUR,
    INNOCENT_DAYS,
    INNOCENT_SLURM_DAYS,
    INTERVAL,
    SLOT,
    SLURM_FAULTS,
    Day,
    Fault,
    busy_node,
    make_day,
    slurm_node,
)
from tests.judgement.scrapes import scrape
from tests.judgement.situation import START, Situation
from tests.judgement.verdicts import FoundFinding
from tests.promql.memory import STALE

DAYS, CELLS = 30, 8
SLURM_CELL = 0
"""The others are single nodes."""
VARIANTS = 2
"""Recordings of each kind of innocent day; of a fault there is one."""
LATE_SECONDS = 2 * INTERVAL
"""A scrape shows a fault up to an interval after it began, and the history is judged once a minute."""
IS_TIME = re.compile(r"gpuscope_\w+_(?:timestamp|start_time|since)_seconds")
"""Metrics whose value is a time of the node's clock."""
Write = Callable[[Day], None]


@dataclass(frozen=True, slots=True)
class Recording:
    situation: Situation
    faults: Sequence[Fault]
    may: frozenset[str]
    series: Sequence[Series]


class Recordings:
    """Each day is recorded once."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._made: dict[tuple[str, int], Recording] = {}

    def of(self, write: Write, variant: int) -> Recording:
        key = write.__name__, variant
        if key not in self._made:
            situation, day = make_day(write, 100 * self._seed + variant)
            series = scrape(situation).complete
            self._made[key] = Recording(situation, tuple(day.faults), frozenset(day.may), series)
        return self._made[key]


@dataclass(frozen=True, slots=True)
class Slot:
    """One day of one cell."""

    cell: int
    day: int
    start: float
    """Seconds since the epoch."""
    recording: Recording

    @property
    def end(self) -> float:
        return self.start + DAY_SECONDS

    @property
    def cell_mark(self) -> str:
        return f"{1000 + self.cell}"

    @property
    def slot_mark(self) -> str:
        return f"{10 + self.cell}{self.day:02}"

    def samples(self) -> Iterator[Series]:
        shift_ms = round(1000 * (self.start - self.recording.situation.start))
        for one in self.recording.series:
            labels = tuple((name, self._rename(text)) for name, text in one.labels)
            is_time = IS_TIME.fullmatch(dict(one.labels)["__name__"]) is not None
            values = one.values
            if is_time:
                values = np.where(np.isnan(values), values, np.nan_to_num(values) + shift_ms / 1000)
            yield Series(labels, one.timestamps + shift_ms, values)

    def _rename(self, text: str) -> str:
        return text.replace(CELL, self.cell_mark).replace(SLOT, self.slot_mark)

    def has(self, found: FoundFinding) -> bool:
        """Whether it is about a node of this cell."""
        return any(f"n{self.cell_mark}" in text for text in (*found.uuids, found.text))

    def down_instances(self, now: float) -> Iterator[str]:
        situation = self.recording.situation
        for node in situation.nodes.values():
            last = (now - self.start) // INTERVAL * INTERVAL
            if situation.is_during("node_down", node.name, last):
                yield self._rename(node.instance)

    def differences(self, found: Sequence[FoundFinding], now: float | None = None) -> Iterator[str]:
        """Faults that are missed or described wrongly, and false accusations. `now` is the moment of judgement
        of findings of now."""
        where = f"{self.recording.situation.name}, cell {self.cell}, day {self.day}"
        left = [one for one in found if self.has(one)]
        for fault in self.recording.faults:
            begin, end = self.start + fault.begin, self.start + fault.end
            if now is not None and not begin <= now < end + 10 * INTERVAL:
                continue
            matching = [one for one in left if self._is(one, fault)]
            left = [one for one in left if one not in matching]
            is_settled = now is None or begin + fault.seen_after + 4 * INTERVAL < now < end - INTERVAL
            if not matching:
                if is_settled:
                    yield f"{where}: missed: {fault}"
                continue
            if is_settled:
                yield from (f"{where}: {text}" for text in _wrong(matching, fault, begin, now))
        for one in left:
            if one.kind not in self.recording.may:
                yield f"{where}: accused without reason: {one}"

    def _is(self, found: FoundFinding, fault: Fault) -> bool:
        if found.kind not in fault.kinds:
            return False
        if fault.owner is not None and self._rename(fault.owner) not in found.owners:
            return False
        if fault.gpus is None:
            return True
        uuids = {self._rename(uuid) for uuid in uuids_of(self.recording.situation, fault.gpus)}
        return found.uuids == uuids


def _wrong(found: Sequence[FoundFinding], fault: Fault, begin: float, now: float | None) -> Iterator[str]:
    since = min((one.since for one in found if one.since is not None), default=None)
    if fault.is_dated and (since is None or not -SLACK_SECONDS <= since - begin <= LATE_SECONDS):
        late = None if since is None else since - begin
        yield f"{fault.kinds[0]} is dated {late} s after it began at {fault.begin}"
    if fault.lost_gpus is None:
        return
    # Over time, the late beginning and the late end cancel each other out.
    seconds, slack = (fault.end - fault.begin, SLACK_SECONDS) if now is None else (now - begin, LATE_SECONDS)
    hours, cost = fault.lost_gpus * seconds / HOUR, sum(one.gpu_hours or 0.0 for one in found)
    if abs(cost - hours) > max(SLACK_SHARE * hours, fault.lost_gpus * slack / HOUR):
        yield f"{fault.kinds[0]} costs {cost:.3f} GPU-hours, not {hours:.3f}: {fault}"


def plan_fleet(seed: int, fault_count: int) -> list[Slot]:
    """In the order of time. Faults are spread over all cells and days, one a day at most."""
    rng = random.Random(seed)
    recordings = Recordings(seed)
    in_slurm = min(fault_count, DAYS - 1)
    writers = {
        SLURM_CELL: _spread(rng, SLURM_FAULTS, in_slurm, INNOCENT_SLURM_DAYS, DAYS - 1),
    }
    cells = [cell for cell in range(CELLS) if cell != SLURM_CELL]
    others = _spread(rng, FAULTS, fault_count - in_slurm, INNOCENT_DAYS, len(cells) * (DAYS - 1))
    for number, cell in enumerate(cells):
        writers[cell] = others[number * (DAYS - 1) : (number + 1) * (DAYS - 1)]
    slots = []
    for cell, later in writers.items():
        offset = 5400 * cell + 7 * cell  # days do not begin at the same time, and neither do scrapes
        days: list[Write] = [slurm_node if cell == SLURM_CELL else busy_node, *later]
        for day, write in enumerate(days):
            recording = recordings.of(
                write, 0 if write in (*FAULTS, *SLURM_FAULTS) else rng.randrange(VARIANTS)
            )
            slots.append(Slot(cell, day, START + offset + day * DAY_SECONDS, recording))
    return sorted(slots, key=lambda slot: slot.start)


def _spread(
    rng: random.Random, faults: Sequence[Write], count: int, innocent: Sequence[Write], days: int
) -> list[Write]:
    chosen = [faults[number % len(faults)] for number in range(count)]
    chosen += [innocent[number % len(innocent)] for number in range(days - count)]
    rng.shuffle(chosen)
    return chosen


class FleetScrapes:
    """Brings the samples of all slots into a store, in the order of time."""

    def __init__(self, store: Store, slots: Sequence[Slot]) -> None:
        self._store = store
        self._slots = {
            cell: [slot for slot in slots if slot.cell == cell] for cell in {slot.cell for slot in slots}
        }
        self._current: dict[int, _LoadedSlot] = {}

    def append(self, begin: float, end: float) -> None:
        """Everything that is scraped from `begin` on and before `end`."""
        for cell, slots in self._slots.items():
            for slot in slots:
                if slot.start < end and slot.end > begin:
                    self._load(cell, slot).append(self._store, begin, end)

    def _load(self, cell: int, slot: Slot) -> _LoadedSlot:
        before = self._current.get(cell)
        if before is None or before.slot is not slot:
            self._current[cell] = _LoadedSlot.load(slot, () if before is None else before.alive)
        return self._current[cell]


@dataclass(frozen=True, slots=True)
class _LoadedSlot:
    slot: Slot
    labels: Sequence[Labels]
    numbers: Int64s
    """Of each sample: the place of its labels."""
    times_ms: Int64s
    values: Floats
    alive: Sequence[Labels]
    """Series that have not ended."""

    @classmethod
    def load(cls, slot: Slot, before: Sequence[Labels]) -> _LoadedSlot:
        """The first scrape ends the series `before` that it does not have."""
        series = list(slot.samples())
        first_ms = round(1000 * slot.start)
        last_ms = max(int(one.timestamps[-1]) for one in series)
        begun = {one.labels for one in series if one.timestamps[0] == first_ms}
        marker = np.array([first_ms]), np.array([STALE])
        series = [*(Series(labels, *marker) for labels in before if labels not in begun), *series]
        numbers = np.repeat(np.arange(len(series)), [len(one.values) for one in series])
        times_ms = np.concatenate([one.timestamps for one in series])
        order = np.argsort(times_ms, kind="stable")
        return cls(
            slot,
            [one.labels for one in series],
            numbers[order],
            times_ms[order],
            np.concatenate([one.values for one in series])[order],
            [one.labels for one in series if one.timestamps[-1] == last_ms and not np.isnan(one.values[-1])],
        )

    def append(self, store: Store, begin: float, end: float) -> None:
        first, last = np.searchsorted(self.times_ms, [round(1000 * begin), round(1000 * end)])
        if first == last:
            return
        part, target = slice(first, last), store.target(f"cell {self.slot.cell}")
        used, places = np.unique(self.numbers[part], return_inverse=True)
        ids = store.resolve(target, [self.labels[number] for number in used.tolist()])
        newest = int(self.times_ms[last - 1])
        store.append(Tick(target, newest, ids[places], self.values[part], self.times_ms[part]))
