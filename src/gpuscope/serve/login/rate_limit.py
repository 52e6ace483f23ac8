"""A rate limit per key: some free attempts, then a wait that doubles with each failure.

An attempt counts as failed from its start, so that concurrent attempts all count; success resets the key.
Memory is bounded: the least recently used key is dropped. To displace a key, an attacker needs `max_keys`
attempts with other keys, each of which costs bcrypt's time.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass


@dataclass(slots=True)
class _Attempts:
    count: int = 0
    allowed_at: float = 0.0
    last_at: float = 0.0


class RateLimit:
    def __init__(
        self,
        *,
        free_attempts: int,
        max_wait_seconds: float,
        first_wait: float = 1.0,
        max_keys: int = 10_000,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._free_attempts = free_attempts
        self._first_wait = first_wait
        self._max_wait_seconds = max_wait_seconds
        self._max_keys = max_keys
        self._clock = clock
        self._attempts: OrderedDict[Hashable, _Attempts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._attempts)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(tuple(self._attempts))

    def wait(self, key: Hashable) -> float:
        """Seconds until the next attempt is allowed; 0 if it is allowed now."""
        attempts = self._attempts.get(key)
        return 0.0 if attempts is None else max(0.0, attempts.allowed_at - self._clock())

    def count(self, key: Hashable) -> None:
        """Counts an attempt; call `forget` if it succeeds."""
        now = self._clock()
        attempts = self._attempts.pop(key, None)
        # A key without attempts for twice the maximum wait starts anew.
        if attempts is None or now - attempts.last_at > 2 * self._max_wait_seconds:
            attempts = _Attempts()
        attempts.count += 1
        attempts.last_at = now
        if attempts.count >= self._free_attempts:
            doublings = min(attempts.count - self._free_attempts, 30)
            attempts.allowed_at = now + min(self._first_wait * 2**doublings, self._max_wait_seconds)
        self._attempts[key] = attempts
        while len(self._attempts) > self._max_keys:
            self._attempts.popitem(last=False)

    def forget(self, key: Hashable) -> None:
        self._attempts.pop(key, None)
