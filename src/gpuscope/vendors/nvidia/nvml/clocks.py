"""The clocks of the source: wall clock for the driver's sample timestamps, monotonic clock for intervals."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Clocks:
    now: Callable[[], float] = time.time  # seconds since the epoch; may jump
    monotonic: Callable[[], float] = time.monotonic

    def now_us(self) -> int:
        return int(self.now() * 1e6)


SYSTEM = Clocks()
