"""How often one may try: free at first, then a wait that doubles with each failure.

An attempt counts as failed from its start, so that a hundred at once are a hundred and not one; success takes
the count back. Memory is bounded by forgetting whoever tried least recently: to push a name out, a
stranger needs as many attempts as there are places, and each of them costs bcrypt's time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass


@dataclass(slots=True)
class _Tries:
    count: int = 0
    allowed_at: float = 0.0
    last_at: float = 0.0


class RateLimit:
    def __init__(
        self,
        *,
        free: int,
        longest_wait: float,
        first_wait: float = 1.0,
        places: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free = free
        self._first_wait = first_wait
        self._longest_wait = longest_wait
        self._places = places
        self._clock = clock
        self._tries: OrderedDict[Hashable, _Tries] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tries)

    def wait(self, key: Hashable) -> float:
        """Seconds until this one may try again; 0 is now."""
        tries = self._tries.get(key)
        return 0.0 if tries is None else max(0.0, tries.allowed_at - self._clock())

    def count(self, key: Hashable) -> None:
        """Counts an attempt, which `forget` takes back when it succeeds."""
        now = self._clock()
        tries = self._tries.pop(key, None)
        # Twice the longest wait in peace wipes the slate.
        if tries is None or now - tries.last_at > 2 * self._longest_wait:
            tries = _Tries()
        tries.count += 1
        tries.last_at = now
        if tries.count >= self._free:
            doublings = min(tries.count - self._free, 30)
            tries.allowed_at = now + min(self._first_wait * 2**doublings, self._longest_wait)
        self._tries[key] = tries
        while len(self._tries) > self._places:
            self._tries.popitem(last=False)

    def forget(self, key: Hashable) -> None:
        self._tries.pop(key, None)
