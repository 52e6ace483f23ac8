"""How many series may exist, and how many may come at once: new ones are refused, existing ones go on.

The index holds every series in memory. `max_series` bounds all of them; by default it follows the memory this
process may use. `max_new_series` bounds how many one origin (a scrape target, a remote writer's address) adds
within ten minutes, so that a flood is stopped while the memory is still there, and a thousand nodes that are
scraped for the first time are not taken for one. Long label texts count as further series.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from gpuscope.limits import LIMITS_REACHED
from gpuscope.store.memory import memory_bytes
from gpuscope.store.options import MINUTE_MS, Clock

SERIES_BYTES = 2560
"""Memory of a series with its labels and an hour of samples, as measured with 200,000 of them."""
TEXT_BYTES_PER_SERIES = 2048
"""So much label text counts as one more series."""
NEW_SERIES_MS = 10 * MINUTE_MS
MAX_ORIGINS = 20_000
"""Beyond it, further origins share one allowance."""
_MEMORY_SHARE = 4
_WITHOUT_MEMORY = 1_000_000


def default_max_series() -> int:
    """So many series take a quarter of the memory."""
    memory = memory_bytes()
    return _WITHOUT_MEMORY if memory is None else max(1000, memory // _MEMORY_SHARE // SERIES_BYTES)


@dataclass(slots=True)
class _Allowance:
    """What one origin has spent of its new series; it comes back over ten minutes."""

    spent: float = 0.0
    at_ms: int = 0

    def spend(self, cost: int, most: int, now_ms: int) -> bool:
        # A clock that jumped back has passed no time.
        passed = max(0, now_ms - self.at_ms) if self.at_ms else 0
        self.spent = max(0.0, self.spent - passed * most / NEW_SERIES_MS)
        self.at_ms = now_ms
        if self.spent + cost > most:
            return False
        self.spent += cost
        return True


class SeriesLimit:
    """Not for several threads at once: the index asks it under its lock."""

    def __init__(self, max_series: int | None, max_new_series: int | None, clock: Clock) -> None:
        self.max_series = max_series
        self.max_new_series = max_new_series
        self._clock = clock
        self._allowances: dict[Hashable, _Allowance] = {}
        self.reached = ""
        """The limit that refused the last series."""

    def allows(self, held: int, text_bytes: int, new_text_bytes: int, origin: Hashable) -> bool:
        """Whether one more series may be added; the caller then adds it."""
        cost = 1 + new_text_bytes // TEXT_BYTES_PER_SERIES
        if self.max_series is not None and held + text_bytes // TEXT_BYTES_PER_SERIES + cost > self.max_series:
            self._refuse("max_series")
            return False
        most = self.max_new_series
        if most is not None and not self._allowance(origin).spend(cost, most, self._clock.now_ms()):
            self._refuse("max_new_series")
            return False
        return True

    def _allowance(self, origin: Hashable) -> _Allowance:
        found = self._allowances.get(origin)
        if found is None:
            if len(self._allowances) >= MAX_ORIGINS:
                self._forget_idle()
            # Still too many: whoever has many addresses shares one allowance.
            key = origin if len(self._allowances) < MAX_ORIGINS else None
            found = self._allowances.setdefault(key, _Allowance())
        return found

    def _forget_idle(self) -> None:
        oldest = self._clock.now_ms() - NEW_SERIES_MS
        self._allowances = {key: one for key, one in self._allowances.items() if one.at_ms > oldest}

    def _refuse(self, name: str) -> None:
        self.reached = name
        LIMITS_REACHED.count(name)

    def reason(self) -> str:
        """Why the last series was refused."""
        if self.reached == "max_series":
            return f"the store holds all the series it may: {self.max_series} (max_series)"
        return f"more than {self.max_new_series} new series from one origin within 10 minutes (max_new_series)"
