"""The clock interface that the program uses, so that a test can control the time, and a time to delete by."""

from __future__ import annotations

import time
from typing import Final, Protocol

CONFIRM_SECONDS: Final = 86_400.0
"""How long a clock must go on after it was set before it is believed."""
MIN_STEP_SECONDS: Final = 60.0


class Clock(Protocol):
    def now(self) -> float:
        """Seconds since the epoch; may jump in both directions."""
        ...

    def monotonic(self) -> float:
        """Seconds that never decrease; for intervals only."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.monotonic()


class ConfirmedTime:
    """The wall clock without the steps forward of the last day. What is deleted because its time has come does
    not come back when a wrong clock is set right."""

    def __init__(self) -> None:
        self._doubted = 0.0
        """How far the wall clock is ahead of what is confirmed, in seconds."""
        self._doubted_since = 0.0
        self._last: tuple[float, float] | None = None

    def advance(self, now: float, monotonic: float, doubted_at_start: float = 0.0) -> float:
        """Call it often: only the difference of both clocks between two calls shows a step. With the first
        call, `doubted_at_start` says how far the clock is ahead of what is known from before."""
        last, self._last = self._last, (now, monotonic)
        if last is None:
            self._doubted, self._doubted_since = doubted_at_start, monotonic
        elif abs(step := (now - last[0]) - (monotonic - last[1])) >= MIN_STEP_SECONDS:
            self._doubted, self._doubted_since = max(0.0, self._doubted + step), monotonic
        if monotonic - self._doubted_since >= CONFIRM_SECONDS:
            self._doubted = 0.0
        return now - self._doubted
