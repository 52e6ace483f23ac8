"""Which samples of a tick are kept: the rules of Prometheus' head, on arrays.

Too old or too far in the future is refused; the same sample again is ignored; another value at a time the
series already has is refused. Anything else inside the head is taken, in whatever order it comes.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpuscope.store.head import Head
from gpuscope.store.headview import ABSENT_BITS
from gpuscope.store.tick import DUPLICATE, IN_FUTURE, TOO_OLD, Bools, Float64s, Int64s, Tick

_ORDINARY_NAN_BITS = 0x7FF8_0000_0000_0001


@dataclass(frozen=True, slots=True)
class Admitted:
    """The samples to keep and what became of the others."""

    series: Int64s
    times: Int64s
    values: Float64s
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


def admit(head: Head, tick: Tick, values: Float64s, floor: int, ceiling: int) -> Admitted:
    """Judge each sample of a tick by itself; the quick way for ordinary ticks is the caller's."""
    times = tick.timestamps
    if times is None:
        times = np.full(len(tick.series), tick.timestamp, np.int64)
    bits = values.view(np.int64)
    old, future = times <= floor, times > ceiling
    keep = ~(old | future)
    again = _repeats(tick.series, times)
    stored = head.stored_bits(tick.series, times)
    clash = keep & (stored != ABSENT_BITS)
    same = clash & (stored == bits)
    first_bits = bits[again]
    inside = keep & ~clash & (again != np.arange(len(again)))
    same |= inside & (first_bits == bits)
    different = (clash | inside) & ~same
    keep &= ~(clash | inside)
    refused = {TOO_OLD: _count(old), IN_FUTURE: _count(future & ~old), DUPLICATE: _count(different)}
    return Admitted(
        tick.series[keep],
        times[keep],
        values[keep],
        _count(same),
        {reason: count for reason, count in refused.items() if count},
    )


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
