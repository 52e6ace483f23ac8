"""Sends what is due: one thread for the notifier's timers, and one per channel, started with its first message.

A channel that hangs keeps its own thread busy and nothing else. A failed message is tried again after 0.5 s,
then 1.5 times as long each time, until its deadline; meanwhile other messages of the channel go out. Nothing
here starts a thread by itself: the wiring passes the function that does.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from gpuscope.base.clock import Clock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.judge.notify.channel import NOBODY_TOLD, ChannelKey, SendError, Told
from gpuscope.judge.notify.notifier import Delivery, Notifier

log = logging.getLogger("gpuscope.notify")
FIRST_PAUSE_SECONDS = 0.5
PAUSE_FACTOR = 1.5
MAX_PAUSE_SECONDS = 60.0
JITTER = 0.5
"""A pause is this part shorter or longer, so that many groups do not retry at the same moment."""
MAX_TIMER_SECONDS = 60.0
"""The clock may be set: timers are checked at least this often."""
STOP_SECONDS = 3.0
"""How long a channel may finish its message when the server stops; the log keeps it from being lost."""


class RunningThread(Protocol):
    def join(self, timeout: float | None = None) -> None: ...


StartThread = Callable[[Callable[[], None], str], RunningThread]
"""Runs a function in a thread of this name."""


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


class ChannelLoop:
    """The messages that wait for one channel. `run` is for a thread of its own."""

    def __init__(self, key: ChannelKey, notifier: Notifier) -> None:
        self._queue = DeliveryQueue()
        self._notifier = notifier
        self._changed = threading.Condition()
        self._is_stopping = False
        self._episode = EpisodeLog(log, f"channel {key}")

    def add(self, delivery: Delivery) -> None:
        with self._changed:
            self._queue.add(delivery, time.monotonic())
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def run(self) -> None:
        while True:
            with self._changed:
                attempt = self._queue.take(time.monotonic())
                if attempt is None:
                    if self._is_stopping:
                        return
                    self._changed.wait(self._queue.seconds_to_next(time.monotonic()))
                    continue
            try:
                self._try(attempt)
            except Exception:  # a defect of ours; without this thread the channel would be silent
                log.exception("unexpected error while sending through %s", attempt.delivery.channel.key)

    def _try(self, attempt: Attempt) -> None:
        started = time.monotonic()
        outcome = self._send(attempt.delivery, attempt.give_up_at - started)
        error, told = (outcome, NOBODY_TOLD) if isinstance(outcome, SendError) else (None, outcome)
        self._notifier.attempted(attempt.delivery, time.monotonic() - started, error)
        if error is not None:
            self._episode.failed(str(error))
            with self._changed:
                if not self._is_stopping and self._queue.failed(attempt, error, time.monotonic()):
                    return
        else:
            self._episode.succeeded()
        self._notifier.finished(attempt.delivery, error, told)

    def _send(self, delivery: Delivery, seconds: float) -> Told | SendError:
        try:
            if seconds <= 0:
                return SendError("not sent in time", may_retry=False, reason="contextDeadlineExceeded")
            return delivery.channel.sender.send(delivery.notification, seconds)
        except SendError as error:
            return error
        except Exception as error:
            log.exception("unexpected error in the sender of channel %s", delivery.channel.key)
            return SendError(f"{type(error).__name__}: {error}", may_retry=False)


class SendLoop:
    """Flushes the groups that are due, and gives each message to the loop of its channel. `wake` is set when
    there may be more to do: alerts came, a message is done, or the channels changed."""

    def __init__(self, notifier: Notifier, clock: Clock, wake: threading.Event, start: StartThread) -> None:
        self._notifier = notifier
        self._clock = clock
        self._wake = wake
        self._start_thread = start
        self._is_stopping = False
        self._timer: RunningThread | None = None
        self._channels: dict[ChannelKey, tuple[ChannelLoop, RunningThread]] = {}

    def start(self) -> None:
        self._timer = self._start_thread(self._run, "gpuscope-notify")

    def stop(self) -> None:
        """Channels may finish the messages that they are sending."""
        self._is_stopping = True
        self._wake.set()
        if self._timer is not None:
            self._timer.join()
        for channel, _ in self._channels.values():
            channel.stop()
        give_up_at = time.monotonic() + STOP_SECONDS
        for _, thread in self._channels.values():
            thread.join(max(0.0, give_up_at - time.monotonic()))

    def _run(self) -> None:
        while not self._is_stopping:
            self._wake.clear()
            self._stop_removed_channels()
            try:
                for delivery in self._notifier.flush_due():
                    self._channel(delivery.channel.key).add(delivery)
            except Exception:  # the next round may work; without this thread none would
                log.exception("unexpected error while flushing alerts")
            due = self._notifier.next_flush_at()
            seconds = MAX_TIMER_SECONDS if due is None else due - self._clock.now()
            self._wake.wait(min(max(seconds, 0.0), MAX_TIMER_SECONDS))

    def _stop_removed_channels(self) -> None:
        for key in self._channels.keys() - self._notifier.channel_statuses().keys():
            self._channels.pop(key)[0].stop()

    def _channel(self, key: ChannelKey) -> ChannelLoop:
        if key not in self._channels:
            channel = ChannelLoop(key, self._notifier)
            self._channels[key] = channel, self._start_thread(channel.run, f"gpuscope-notify-{key.kind}")
        return self._channels[key][0]
