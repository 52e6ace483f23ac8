"""The time by which retention deletes: the wall clock, without steps forward that nothing has confirmed yet.

A clock that is set forward, or that was wrong when the machine started, would make the whole history expire at
once. Besides the steps that `ConfirmedTime` sees, the time between the newest sample and the start is doubted
for a day, and gaps in the newest day of samples, which an earlier process may have stored by a wrong clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuscope.base.clock import CONFIRM_SECONDS, ConfirmedTime
from gpuscope.history.store.contents import Contents
from gpuscope.history.store.options import HOUR_MS, MillisecondClock

MIN_GAP_MS: Final = HOUR_MS
"""Shorter ones are restarts and updates; they delete at most an hour too early."""

Interval = tuple[int, int]


class RetentionClock:
    def __init__(self, clock: MillisecondClock, contents: Contents) -> None:
        self._clock = clock
        self._contents = contents
        self._confirmed = ConfirmedTime()
        self._is_started = False

    def now_ms(self) -> int:
        now, doubted = self._clock.now_ms(), 0
        if not self._is_started:
            self._is_started = True
            doubted = unconfirmed_ms(self._intervals(), now)
        monotonic = self._clock.monotonic_ms()
        return int(1000 * self._confirmed.advance(now / 1000, monotonic / 1000, doubted / 1000))

    def _intervals(self) -> Iterable[Interval]:
        for state in self._contents.states():
            yield from ((block.first, block.last) for block in state.blocks)
            for head in (state.head, *(late.head for late in state.late)):
                if head.first is not None and head.last is not None:
                    yield head.first, head.last


def unconfirmed_ms(intervals: Iterable[Interval], now: int) -> int:
    """The gaps between samples, and between the newest one and `now`, with less than a day of samples after
    them. 0 if there are no samples, which could be lost."""
    doubted = covered = 0
    newer = now
    for first, last in sorted(intervals, key=lambda one: one[1], reverse=True):
        if last > now:
            continue  # stored by a clock that was ahead
        if newer - last >= MIN_GAP_MS:
            doubted += newer - last
        covered += max(0, min(newer, last) - first)
        newer = min(newer, first)
        if covered >= 1000 * CONFIRM_SECONDS:
            break
    return doubted
