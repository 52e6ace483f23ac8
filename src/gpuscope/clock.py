"""The clock interface that the program uses, so that a test can control the time."""

from __future__ import annotations

import time
from typing import Protocol


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
