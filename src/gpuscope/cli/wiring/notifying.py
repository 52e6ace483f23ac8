"""Builds the notifier of `up` and `server`, and runs its threads: one for the timers, one per channel.

A channel's thread starts with its first message. A channel that hangs keeps its own thread busy and nothing
else. SIGHUP reads the file again; an invalid one is logged and the previous one stays.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_file, home_path
from gpuscope.cli.wiring.rule_evaluation import external_url
from gpuscope.judge.notify.alerting_config import AlertingConfig, build_channels, load_alerting
from gpuscope.judge.notify.channel import NOBODY_TOLD, ChannelKey, SendError, Told
from gpuscope.judge.notify.channels import check_channels
from gpuscope.judge.notify.default_alerting import default_alerting
from gpuscope.judge.notify.delivery import Attempt, Delivery, DeliveryQueue
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.judge.notify.notify_state import FILE_NAME, NotifyState
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.serve.api.alertmanager import AlertmanagerApi
from gpuscope.serve.api.notification_routes import NotificationRoutes
from gpuscope.serve.http.routing import Route

log = logging.getLogger("gpuscope.notify")
MAX_TIMER_SECONDS = 60.0
"""The clock may be set: timers are checked at least this often."""
STOP_SECONDS = 3.0
"""How long a channel may finish its message when the server stops; the log keeps it from being lost."""


def read_alerting(settings: Settings) -> AlertingConfig:
    """From --alerting, or from --notify and --heartbeat, or neither: then nothing is sent."""
    if not settings.alerting:
        config = default_alerting(settings.notify, settings.heartbeat)
        for receiver in config.receivers.values():
            check_channels(receiver.channels, "--notify")
        return config
    if settings.notify:
        raise UsageError("--alerting and --notify: give only one of them; the file can have every receiver")
    if settings.heartbeat:
        raise UsageError(
            "--alerting and --heartbeat: give only one of them; the file can send Watchdog to a receiver"
        )
    return load_alerting(home_file(settings.alerting, "alerting"), settings)


class ChannelThread:
    """The thread of one channel and the messages that wait for it."""

    def __init__(self, key: ChannelKey, notifier: Notifier) -> None:
        self._queue = DeliveryQueue()
        self._notifier = notifier
        self._changed = threading.Condition()
        self._is_stopping = False
        self._episode = EpisodeLog(log, f"channel {key}")
        self._thread = threading.Thread(target=self._run, name=f"gpuscope-notify-{key.kind}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def add(self, delivery: Delivery) -> None:
        with self._changed:
            self._queue.add(delivery, time.monotonic())
            self._changed.notify()

    def stop(self) -> None:
        with self._changed:
            self._is_stopping = True
            self._changed.notify()

    def join(self, seconds: float) -> None:
        self._thread.join(seconds)

    def _run(self) -> None:
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
                log.exception("channel %s", attempt.delivery.channel.key)

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
            log.exception("channel %s", delivery.channel.key)
            return SendError(f"{type(error).__name__}: {error}", may_retry=False)


class Notifying:
    """A notifier with its file, threads and API."""

    def __init__(self, settings: Settings, listen: tuple[str, int], clock: Clock | None = None) -> None:
        self._settings = settings
        clock = clock or SystemClock()
        config = read_alerting(settings)
        channels = build_channels(config)
        self._state = NotifyState(Path(home_path(settings.data, "data")) / FILE_NAME)
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._was_reloaded = threading.Event()
        self.notifier = Notifier(
            config,
            channels,
            clock,
            self._state,
            settings,
            kept_silences=self._state.silences(),
            kept_log=self._state.entries(),
            kept_history=self._state.history(),
            external_url=external_url(settings, listen),
            on_take=self._wake.set,
        )
        self._clock = clock
        self._api = AlertmanagerApi(self.notifier, clock, settings)
        self._channels: dict[ChannelKey, ChannelThread] = {}
        self._timer = threading.Thread(target=self._run, name="gpuscope-notify", daemon=True)

    def routes(self) -> list[Route]:
        return [*self._api.routes(), *NotificationRoutes(self.notifier, self._clock).routes()]

    def families(self) -> Iterator[MetricFamily]:
        return self.notifier.families()

    def start(self) -> None:
        self._timer.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wake.set()
        if self._timer.is_alive():
            self._timer.join()
        for channel in self._channels.values():
            channel.stop()
        give_up_at = time.monotonic() + STOP_SECONDS
        for channel in self._channels.values():
            channel.join(max(0.0, give_up_at - time.monotonic()))
        self.notifier.store_history()
        with self.notifier.lock:
            self._state.close()

    def __enter__(self) -> Notifying:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def reload(self) -> None:
        """Read the file again. A wrong one is logged, shown in status and metrics, and the old one stays."""
        try:
            config = read_alerting(self._settings)
        except UsageError as error:
            self.notifier.reload_failed(str(error))
            log.error("the alerting configuration was not reloaded: %s; the previous one stays", error)
            return
        self.notifier.use(config, build_channels(config))
        self._was_reloaded.set()
        log.info("the alerting configuration was reloaded")

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._wake.clear()
            if self._was_reloaded.is_set():
                self._was_reloaded.clear()
                self._stop_removed_channels()
            try:
                for delivery in self.notifier.flush_due():
                    self._channel(delivery.channel.key).add(delivery)
            except Exception:
                log.exception("notifications")  # the next round may work; without this thread none would
            due = self.notifier.next_flush_at()
            seconds = MAX_TIMER_SECONDS if due is None else due - self._clock.now()
            self._wake.wait(min(max(seconds, 0.0), MAX_TIMER_SECONDS))

    def _stop_removed_channels(self) -> None:
        for key in self._channels.keys() - self.notifier.channel_statuses().keys():
            self._channels.pop(key).stop()

    def _channel(self, key: ChannelKey) -> ChannelThread:
        channel = self._channels.get(key)
        if channel is None:
            channel = self._channels[key] = ChannelThread(key, self.notifier)
            channel.start()
        return channel
