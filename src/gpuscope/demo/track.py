"""What one GPU (or instance) does over time: activities, each with a curve, that repeat or are replaced.

A `Track` is a list of activities that repeats with a period or ends in one endless activity. A `Timeline` is a
track into which others are spliced at given times. Both answer for any time, past or future, and their totals
never decrease: a splice continues the totals and the heat of what it replaces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from gpuscope.demo.curve import ZERO, Curve, Phase, Rates, added, scaled_and_added
from gpuscope.demo.jobs import Tenant
from gpuscope.demo.workload import Workload

# Faults of a simulated GPU, each with its start time; infinity means never. Scenarios set them.

_ORPHANED_SHARE = 0.5


@dataclass(slots=True)
class Faults:
    lost_at: float = inf
    hot_at: float = inf  # no airflow: it heats up until the driver lowers its clocks
    narrow_at: float = inf  # its PCIe link has eight lanes, and packets are replayed
    ecc_at: float = inf  # memory errors, more every second
    orphaned_at: float = inf  # a program died, and a part of its memory is still taken
    xids: list[tuple[float, int]] = field(default_factory=list)

    def orphaned_share(self, at: float) -> float:
        """Of the GPU's memory."""
        return _ORPHANED_SHARE if at >= self.orphaned_at else 0.0

    def replays(self, at: float) -> int:
        return int(max(0.0, at - self.narrow_at) * 0.8)

    def corrected(self, at: float) -> int:
        return int(max(0.0, at - self.ecc_at) * 12)

    def uncorrected(self, at: float) -> int:
        """One per minute, the first one at `ecc_at`."""
        return int((at - self.ecc_at) // 60) + 1 if at >= self.ecc_at else 0


@dataclass(frozen=True, slots=True)
class Activity:
    """From `start` (seconds of the track, a multiple of the grain of `curve`) until the next one."""

    start: float
    curve: Curve
    workload: Workload
    tenants: tuple[Tenant, ...] = ()
    xid: int = 0  # reported when the activity begins: the previous one crashed


@dataclass(frozen=True, slots=True)
class Moment:
    activity: Activity
    phase: Phase
    heat: float
    totals: Rates
    round_start: float  # start of the track's current round, in seconds since the epoch
    round_number: int


@dataclass(frozen=True, slots=True)
class Piece:
    """An activity in one round of its track, and when it begins there."""

    begins_at: float
    activity: Activity
    round_start: float
    round_number: int


class Track:
    def __init__(
        self, activities: Sequence[Activity], origin: float, period: float = inf, heat: float = 0.0
    ) -> None:
        self.origin = origin
        self.period = period
        self._activities = tuple(activities)
        self._starts = [activity.start for activity in self._activities]
        self._before: list[Rates] = []
        self._heat: list[float] = []
        self._round = ZERO
        if period != inf:  # a round starts with the heat at the end of the previous one
            heat = self._accumulate(0.0)
        self._accumulate(heat)

    def _accumulate(self, heat: float) -> float:
        """Computes totals and heat at the start of each activity; returns the heat at the end of a round."""
        total = ZERO
        ends = [*self._starts[1:], self.period]
        self._before.clear()
        self._heat.clear()
        for activity, end in zip(self._activities, ends, strict=True):
            self._before.append(total)
            self._heat.append(heat)
            if end == inf:
                break
            lasts = end - activity.start
            total = added(total, activity.curve.totals(lasts))
            heat = activity.curve.heat(lasts, heat)
        self._round = total
        return heat

    def _locate(self, at: float) -> tuple[int, float, int, float]:
        """The round, its start, the row of the activity and the seconds into it."""
        number, start = 0, self.origin
        if self.period != inf:
            number = int((at - self.origin) // self.period)
            start = self.origin + number * self.period
        row = max(0, bisect_right(self._starts, at - start) - 1)
        return number, start, row, at - start - self._starts[row]

    def totals(self, at: float) -> Rates:
        number, _, row, into = self._locate(at)
        here = added(self._before[row], self._activities[row].curve.totals(into))
        return scaled_and_added(self._round, number, here) if number else here

    def total(self, rate: int, at: float) -> float:
        number, _, row, into = self._locate(at)
        here = self._before[row][rate] + self._activities[row].curve.total(rate, into)
        return number * self._round[rate] + here

    def moment(self, at: float) -> Moment:
        number, start, row, into = self._locate(at)
        activity = self._activities[row]
        curve = activity.curve
        here = added(self._before[row], curve.totals(into))
        if number:
            here = scaled_and_added(self._round, number, here)
        return Moment(activity, curve.phase(into), curve.heat(into, self._heat[row]), here, start, number)

    def pieces(self, since: float, until: float) -> Iterator[Piece]:
        """What it does in [since, until); the first piece may have begun earlier."""
        number, start, row, _ = self._locate(since)
        while (begins := start + self._starts[row]) < until:
            yield Piece(begins, self._activities[row], start, number)
            row += 1
            if row == len(self._starts):
                if self.period == inf:
                    return
                number, row = number + 1, 0
                start = self.origin + number * self.period

    def xids(self, since: float, until: float) -> Iterator[tuple[float, int]]:
        """Time and code of the XIDs in [since, until)."""
        for piece in self.pieces(since, until):
            if piece.begins_at >= since and piece.activity.xid:
                yield piece.begins_at, piece.activity.xid


class Timeline:
    def __init__(self, base: Track) -> None:
        self._cuts = [-inf]
        self._tracks = [base]
        self._carried = [ZERO]  # added to the totals of each track

    def splice(self, at: float, activities: Sequence[Activity]) -> None:
        """Replaces everything from `at` on with `activities`; second 0 of the new track is `at`."""
        now = self.moment(at)
        track = Track(activities, origin=at, heat=now.heat)
        row = bisect_right(self._cuts, at)
        self._cuts[row:] = [at]
        self._tracks[row:] = [track]
        self._carried[row:] = [now.totals]

    def totals(self, at: float) -> Rates:
        row = bisect_right(self._cuts, at) - 1
        return added(self._tracks[row].totals(at), self._carried[row])

    def total(self, rate: int, at: float) -> float:
        row = bisect_right(self._cuts, at) - 1
        return self._tracks[row].total(rate, at) + self._carried[row][rate]

    def moment(self, at: float) -> Moment:
        row = bisect_right(self._cuts, at) - 1
        moment = self._tracks[row].moment(at)
        if row == 0:
            return moment
        return Moment(
            moment.activity,
            moment.phase,
            moment.heat,
            added(moment.totals, self._carried[row]),
            moment.round_start,
            moment.round_number,
        )

    @property
    def splices(self) -> list[float]:
        """When what was planned before is replaced."""
        return self._cuts[1:]

    def pieces(self, since: float, until: float, known_at: float) -> Iterator[Piece]:
        """What it does in [since, until), as it is planned at `known_at`: later splices are not known yet."""
        known = bisect_right(self._cuts, known_at)
        for row, cut in enumerate(self._cuts[:known]):
            end = self._cuts[row + 1] if row + 1 < known else inf
            if cut < until and end > since:
                yield from self._tracks[row].pieces(max(since, cut), min(until, end))

    def xids(self, since: float, until: float) -> Iterator[tuple[float, int]]:
        for row, cut in enumerate(self._cuts):
            end = self._cuts[row + 1] if row + 1 < len(self._cuts) else inf
            if cut < until and end > since:
                yield from self._tracks[row].xids(max(since, cut), min(until, end))
