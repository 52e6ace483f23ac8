"""Builds the notifier of `up` and `server` with its file, its threads and its API.

SIGHUP reads the file again; an invalid one is logged and the previous one stays.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_file, home_path
from gpuscope.cli.wiring.rule_evaluation import external_url
from gpuscope.judge.notify.alerting_config import AlertingConfig, build_channels, load_alerting
from gpuscope.judge.notify.channels import check_channels
from gpuscope.judge.notify.default_alerting import default_alerting
from gpuscope.judge.notify.notifier import Notifier
from gpuscope.judge.notify.notify_state import FILE_NAME, NotifyState
from gpuscope.judge.notify.send_loop import SendLoop
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.serve.api.alertmanager import AlertmanagerApi
from gpuscope.serve.api.notification_routes import NotificationRoutes
from gpuscope.serve.http.messages import Route

log = logging.getLogger("gpuscope.notify")


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


def _start_thread(run: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=run, name=name, daemon=True)
    thread.start()
    return thread


class Notifying:
    """A notifier with its file, threads and API."""

    def __init__(self, settings: Settings, listen: tuple[str, int], clock: Clock | None = None) -> None:
        self._settings = settings
        clock = clock or SystemClock()
        config = read_alerting(settings)
        channels = build_channels(config)
        self._state = NotifyState(Path(home_path(settings.data, "data")) / FILE_NAME)
        wake = threading.Event()
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
            on_take=wake.set,
        )
        self._clock = clock
        self._api = AlertmanagerApi(self.notifier, clock, settings)
        self._loop = SendLoop(self.notifier, clock, wake, _start_thread)

    def routes(self) -> list[Route]:
        return [*self._api.routes(), *NotificationRoutes(self.notifier, self._clock).routes()]

    def families(self) -> Iterator[MetricFamily]:
        return self.notifier.families()

    def start(self) -> None:
        self._loop.start()

    def stop(self) -> None:
        self._loop.stop()
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
        log.info("the alerting configuration was reloaded")
