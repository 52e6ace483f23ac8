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
        self._steps: list[tuple[float, float]] = []
        """When each of them happened, monotonic, and its seconds."""
        self._last: tuple[float, float] | None = None

    def advance(self, now: float, monotonic: float, doubted_at_start: float = 0.0) -> float:
        """Call it often: only the difference of both clocks between two calls shows a step. With the first
        call, `doubted_at_start` says how far the clock is ahead of what is known from before."""
        last, self._last = self._last, (now, monotonic)
        if last is None:
            self._steps.append((monotonic, doubted_at_start))
        elif abs(step := (now - last[0]) - (monotonic - last[1])) >= MIN_STEP_SECONDS:
            self._step(monotonic, step)
        # Each for itself: a machine that sleeps every night makes a step every morning.
        self._steps = [(at, step) for at, step in self._steps if monotonic - at < CONFIRM_SECONDS]
        return now - sum(step for _, step in self._steps)

    def _step(self, monotonic: float, step: float) -> None:
        """A step back takes back the newest steps forward."""
        while step < 0 and self._steps:
            at, forward = self._steps.pop()
            monotonic, step = at, step + forward
        if step > 0:
            self._steps.append((monotonic, step))
