"""The clock interface that the program uses, so that a test can control the time, and a time to delete by."""

from __future__ import annotations

import logging
import time
from typing import Final, Protocol

log = logging.getLogger("gpuscope")
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

    def __init__(self, what: str) -> None:
        """`what` is kept meanwhile, for the log."""
        self._what = what
        self._doubted = 0.0
        """How far the wall clock is ahead of what is confirmed, in seconds."""
        self._doubted_since = 0.0
        self._last: tuple[float, float] | None = None

    def advance(self, now: float, monotonic: float, doubted_at_start: float = 0.0) -> float:
        """Call it often: only the difference of both clocks between two calls shows a step. With the first
        call, `doubted_at_start` says how far the clock is ahead of what is known from before."""
        last, self._last = self._last, (now, monotonic)
        if last is None:
            self._doubt(doubted_at_start, monotonic)
        elif abs(step := (now - last[0]) - (monotonic - last[1])) >= MIN_STEP_SECONDS:
            self._doubt(max(0.0, self._doubted + step), monotonic)
        if self._doubted and monotonic - self._doubted_since >= CONFIRM_SECONDS:
            self._doubted = 0.0
            log.info("the clock has gone on for a day: %s are deleted by it again", self._what)
        return now - self._doubted

    def _doubt(self, seconds: float, monotonic: float) -> None:
        if seconds > self._doubted:
            log.warning(
                "the clock is %.1f hours ahead of what is known: for a day, %s are deleted as if these hours "
                "had not passed",
                seconds / 3600,
                self._what,
            )
        self._doubted, self._doubted_since = seconds, monotonic
