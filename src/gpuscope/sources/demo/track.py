"""What one GPU (or MIG instance) does, second by second: spells of a curve, repeated or cut by a scenario.

A `Track` is a list of spells that repeats with a period, or ends in one endless spell. A `Timeline` is a track
with others spliced in from given moments on. Both answer for any time, past or future, and their totals only
grow: a splice goes on from the totals and the heat of what it replaces.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf

from gpuscope.sources.demo.curve import ZERO, Curve, Phase, Rates, added, scaled_and_added
from gpuscope.sources.demo.jobs import Tenant
from gpuscope.sources.demo.workload import Workload


@dataclass(frozen=True, slots=True)
class Spell:
    """From `start` (seconds of the track, a multiple of the grain of `curve`) until the next one."""

    start: float
    curve: Curve
    workload: Workload
    tenants: tuple[Tenant, ...] = ()
    xid: int = 0  # that the driver reports as the spell begins: how the one before ended


@dataclass(frozen=True, slots=True)
class Moment:
    spell: Spell
    phase: Phase
    heat: float
    totals: Rates
    round_start: float  # when, since the epoch, second 0 of the track's present round was
    round_number: int


class Track:
    def __init__(self, spells: Sequence[Spell], origin: float, period: float = inf, heat: float = 0.0) -> None:
        self.origin = origin
        self.period = period
        self._spells = tuple(spells)
        self._starts = [spell.start for spell in self._spells]
        self._before: list[Rates] = []
        self._heat: list[float] = []
        self._round = ZERO
        if period != inf:  # a round begins as warm as the one before it ended
            heat = self._accumulate(0.0)
        self._accumulate(heat)

    def _accumulate(self, heat: float) -> float:
        """Fills in what each spell begins with; the heat at the end of a round."""
        total = ZERO
        ends = [*self._starts[1:], self.period]
        self._before.clear()
        self._heat.clear()
        for spell, end in zip(self._spells, ends, strict=True):
            self._before.append(total)
            self._heat.append(heat)
            if end == inf:
                break
            lasts = end - spell.start
            total = added(total, spell.curve.totals(lasts))
            heat = spell.curve.heat(lasts, heat)
        self._round = total
        return heat

    def _locate(self, at: float) -> tuple[int, float, int, float]:
        """The round, its start, the row of the spell and the seconds into it."""
        number, start = 0, self.origin
        if self.period != inf:
            number = int((at - self.origin) // self.period)
            start = self.origin + number * self.period
        row = max(0, bisect_right(self._starts, at - start) - 1)
        return number, start, row, at - start - self._starts[row]

    def totals(self, at: float) -> Rates:
        number, _, row, into = self._locate(at)
        here = added(self._before[row], self._spells[row].curve.totals(into))
        return scaled_and_added(self._round, number, here) if number else here

    def total(self, channel: int, at: float) -> float:
        number, _, row, into = self._locate(at)
        here = self._before[row][channel] + self._spells[row].curve.total(channel, into)
        return number * self._round[channel] + here

    def moment(self, at: float) -> Moment:
        number, start, row, into = self._locate(at)
        spell = self._spells[row]
        curve = spell.curve
        here = added(self._before[row], curve.totals(into))
        if number:
            here = scaled_and_added(self._round, number, here)
        return Moment(spell, curve.phase(into), curve.heat(into, self._heat[row]), here, start, number)

    def xids(self, since: float, until: float) -> Iterator[tuple[float, int]]:
        """What the driver reported in [since, until), with its time."""
        number, start, row, _ = self._locate(since)
        while (begins := start + self._starts[row]) < until:
            if begins >= since and self._spells[row].xid:
                yield begins, self._spells[row].xid
            row += 1
            if row == len(self._starts):
                if self.period == inf:
                    return
                number, row = number + 1, 0
                start = self.origin + number * self.period


class Timeline:
    def __init__(self, base: Track) -> None:
        self._cuts = [-inf]
        self._tracks = [base]
        self._carried = [ZERO]  # what is to be added to a track's own totals

    def splice(self, at: float, spells: Sequence[Spell]) -> None:
        """From `at` on, `spells` instead of whatever was planned; second 0 of the new track is `at`."""
        now = self.moment(at)
        track = Track(spells, origin=at, heat=now.heat)
        row = bisect_right(self._cuts, at)
        self._cuts[row:] = [at]
        self._tracks[row:] = [track]
        self._carried[row:] = [now.totals]

    def totals(self, at: float) -> Rates:
        row = bisect_right(self._cuts, at) - 1
        return added(self._tracks[row].totals(at), self._carried[row])

    def total(self, channel: int, at: float) -> float:
        row = bisect_right(self._cuts, at) - 1
        return self._tracks[row].total(channel, at) + self._carried[row][channel]

    def moment(self, at: float) -> Moment:
        row = bisect_right(self._cuts, at) - 1
        moment = self._tracks[row].moment(at)
        if row == 0:
            return moment
        return Moment(
            moment.spell,
            moment.phase,
            moment.heat,
            added(moment.totals, self._carried[row]),
            moment.round_start,
            moment.round_number,
        )

    def xids(self, since: float, until: float) -> Iterator[tuple[float, int]]:
        for row, cut in enumerate(self._cuts):
            end = self._cuts[row + 1] if row + 1 < len(self._cuts) else inf
            if cut < until and end > since:
                yield from self._tracks[row].xids(max(since, cut), min(until, end))
