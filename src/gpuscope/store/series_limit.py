"""How many series may exist, and how many may come at once: new ones are refused, existing ones go on.

The index holds every series in memory. `max_series` bounds all of them; by default it follows the memory this
process may use. `max_new_series` bounds how many are added within ten minutes, so that a flood is stopped
while the memory is still there. Long label texts count as further series.
"""

from __future__ import annotations

from gpuscope.limits import LIMITS_REACHED
from gpuscope.store.memory import memory_bytes
from gpuscope.store.options import MINUTE_MS, Clock

SERIES_BYTES = 2560
"""Memory of a series with its labels and an hour of samples, as measured with 200,000 of them."""
TEXT_BYTES_PER_SERIES = 2048
"""So much label text counts as one more series."""
NEW_SERIES_MS = 10 * MINUTE_MS
_MEMORY_SHARE = 4
_WITHOUT_MEMORY = 1_000_000


def default_max_series() -> int:
    """So many series take a quarter of the memory."""
    memory = memory_bytes()
    return _WITHOUT_MEMORY if memory is None else max(1000, memory // _MEMORY_SHARE // SERIES_BYTES)


class SeriesLimit:
    """Not for several threads at once: the index asks it under its lock."""

    def __init__(self, max_series: int | None, max_new_series: int | None, clock: Clock) -> None:
        self.max_series = max_series
        self.max_new_series = max_new_series
        self._clock = clock
        self._recent = 0.0
        self._recent_ms = 0
        self.reached = ""
        """The limit that refused the last series."""

    def allows(self, held: int, text_bytes: int, new_text_bytes: int) -> bool:
        """Whether one more series may be added; the caller then adds it."""
        cost = 1 + new_text_bytes // TEXT_BYTES_PER_SERIES
        if self.max_series is not None and held + text_bytes // TEXT_BYTES_PER_SERIES + cost > self.max_series:
            self._refuse("max_series")
            return False
        if self.max_new_series is not None and not self._spend(cost, self.max_new_series):
            self._refuse("max_new_series")
            return False
        return True

    def _spend(self, cost: int, most: int) -> bool:
        now = self._clock.now_ms()
        # A clock that jumped back has passed no time.
        passed = max(0, now - self._recent_ms) if self._recent_ms else 0
        self._recent = max(0.0, self._recent - passed * most / NEW_SERIES_MS)
        self._recent_ms = now
        if self._recent + cost > most:
            return False
        self._recent += cost
        return True

    def _refuse(self, name: str) -> None:
        self.reached = name
        LIMITS_REACHED.count(name)

    def reason(self) -> str:
        """Why the last series was refused."""
        if self.reached == "max_series":
            return f"the store holds all the series it may: {self.max_series} (max_series)"
        return f"more than {self.max_new_series} new series within 10 minutes (max_new_series)"
