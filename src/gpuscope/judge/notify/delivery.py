"""One message on its way through one channel, and the queue of such messages of a channel.

A failed message is tried again after 0.5 s, then 1.5 times as long each time, until its deadline; meanwhile
other messages of the channel go out. Times are of a monotonic clock.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable
from dataclasses import dataclass

from gpuscope.judge.notify.channel import Channel, SendError
from gpuscope.judge.notify.groups import AggregationGroup
from gpuscope.judge.notify.notification import Notification

FIRST_PAUSE_SECONDS = 0.5
PAUSE_FACTOR = 1.5
MAX_PAUSE_SECONDS = 60.0
JITTER = 0.5
"""A pause is this part shorter or longer, so that many groups do not retry at the same moment."""


@dataclass(frozen=True, slots=True, eq=False)
class Delivery:
    channel: Channel
    notification: Notification
    group: AggregationGroup
    firing: frozenset[str]
    resolved: frozenset[str]
    timeout_seconds: float
    """All attempts together: the time until the next flush of the group."""
    flush_number: int
    record_id: int
    """Of the history."""


@dataclass(slots=True, eq=False)
class Attempt:
    """A message and how often it was tried."""

    delivery: Delivery
    give_up_at: float
    pause_seconds: float = FIRST_PAUSE_SECONDS
    count: int = 0
    last_error: SendError | None = None


class DeliveryQueue:
    """The messages of one channel. Not for several threads at once."""

    def __init__(self, jitter: Callable[[], float] = random.random) -> None:
        self._waiting: list[tuple[float, int, Attempt]] = []
        self._order = itertools.count()
        self._jitter = jitter

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, delivery: Delivery, now: float) -> None:
        self._push(now, Attempt(delivery, now + delivery.timeout_seconds))

    def take(self, now: float) -> Attempt | None:
        """The message to try now."""
        if not self._waiting or self._waiting[0][0] > now:
            return None
        attempt = heapq.heappop(self._waiting)[2]
        attempt.count += 1
        return attempt

    def seconds_to_next(self, now: float) -> float | None:
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None

    def failed(self, attempt: Attempt, error: SendError, now: float) -> bool:
        """Whether the message will be tried again."""
        attempt.last_error = error
        pause = attempt.pause_seconds * (1 - JITTER + 2 * JITTER * self._jitter())
        if not error.may_retry or now + pause >= attempt.give_up_at:
            return False
        attempt.pause_seconds = min(attempt.pause_seconds * PAUSE_FACTOR, MAX_PAUSE_SECONDS)
        self._push(now + pause, attempt)
        return True

    def _push(self, at: float, attempt: Attempt) -> None:
        heapq.heappush(self._waiting, (at, next(self._order), attempt))
