"""Which samples of a tick are kept: the rules of Prometheus' head, on arrays.

Too old or too far in the future is refused; the same sample again is ignored; another value at a time the
series already has is refused. Anything else is taken, in whatever order it comes: Prometheus would refuse some
of that, but whatever it takes is taken here too (docs/decisions/0012-late-samples.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuscope.store.contents import TargetState
from gpuscope.store.head import Head
from gpuscope.store.head_view import ABSENT_BITS
from gpuscope.store.tick import DUPLICATE, IN_FUTURE, TOO_OLD, Bools, Float64s, Int64s, Tick

_ORDINARY_NAN_BITS = 0x7FF8_0000_0000_0001


class Bounds(NamedTuple):
    """Which times are taken now: above `floor` into the head, down to `late_floor` into the late head."""

    floor: int
    late_floor: int
    ceiling: int


@dataclass(frozen=True, slots=True)
class Samples:
    series: Int64s
    times: Int64s
    values: Float64s

    def __len__(self) -> int:
        return len(self.series)


@dataclass(frozen=True, slots=True)
class Admitted:
    """The samples to keep and what became of the others."""

    fresh: Samples
    late: Samples
    repeated: int
    refused: dict[str, int]


def storable(values: Float64s) -> Float64s:
    """Values as they can be kept: float64, and without the bit pattern that means "no sample here"."""
    values = np.ascontiguousarray(values, np.float64)
    marked = values.view(np.int64) == ABSENT_BITS
    if marked.any():
        values = values.copy()
        values.view(np.int64)[marked] = _ORDINARY_NAN_BITS
    return values


def admit(
    state: TargetState, tick: Tick, values: Float64s, bounds: Bounds, *, tell_conflicts: bool
) -> Admitted:
    """Judge each sample of a tick by itself; the quick way for ordinary ticks is the caller's.

    Without `tell_conflicts` another value for a time that is not the series' newest counts as a repetition:
    Prometheus with an out_of_order_time_window drops one of the two and does not say so.
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
    if not tell_conflicts and different.any():
        untold = different & (late | (times < _newest_times(state.head, tick.series)))
        same, different = same | untold, different & ~untold
    refused = {TOO_OLD: _count(old), IN_FUTURE: _count(future & ~old), DUPLICATE: _count(different)}
    fresh, late = keep & ~late, keep & late
    return Admitted(
        Samples(tick.series[fresh], times[fresh], values[fresh]),
        Samples(tick.series[late], times[late], values[late]),
        _count(same),
        {reason: count for reason, count in refused.items() if count},
    )


def _stored(state: TargetState, series: Int64s, times: Int64s, late: Bools) -> Int64s:
    """The bits that the heads hold for each sample; what is sealed is not looked at."""
    stored = state.head.stored_bits(series, times)
    for one in state.late if late.any() else ():
        found = one.head.stored_bits(series[late], times[late])
        stored[late] = np.where(found == ABSENT_BITS, stored[late], found)
    return stored


def _newest_times(head: Head, series: Int64s) -> Int64s:
    """The time of each series' newest sample in the head; of one that has none there, long ago."""
    wanted, inverse = np.unique(series, return_inverse=True)
    newest = np.full(len(wanted), -(1 << 62), np.int64)
    known, times, _ = head.view().latest(wanted, -(1 << 62), 1 << 62)
    newest[np.searchsorted(wanted, known)] = times
    found: Int64s = newest[inverse]
    return found


def _repeats(series: Int64s, times: Int64s) -> Int64s:
    """For each sample the position of the first one with the same series and time."""
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
