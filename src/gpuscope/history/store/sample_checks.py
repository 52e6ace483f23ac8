"""Decides which samples of a tick are kept, by the rules of Prometheus' head.

Samples that are too old or too far in the future are refused. An identical sample is ignored; another value for
the same series and time is refused. All others are accepted in any order: every sample that Prometheus accepts
is accepted here, and some that it refuses (docs/decisions/0012-late-samples.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpuscope.history.store.contents import StoredTargetState
from gpuscope.history.store.head import Head
from gpuscope.history.store.head_view import ABSENT_BITS
from gpuscope.history.store.tick import DUPLICATE, IN_FUTURE, TOO_OLD, Bools, Float64s, Int64s, Tick

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
        found = late_head.head.stored_bits(series[late], times[late])
        stored[late] = np.where(found == ABSENT_BITS, stored[late], found)
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
