"""Follows where the Alertmanagers of the configuration are: target providers and file_sd files.

`use` takes effect at once with what is known; `run` belongs to a thread of its own, which is only needed for
entries that are not static. While a provider fails, the Alertmanagers that it found last stay.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor
from contextlib import suppress

from gpuscope.base.limits import Limits
from gpuscope.history.scrape.discovery import Discovery, build_discoveries
from gpuscope.history.scrape.providers.provider_runner import MIN_UPDATE_SECONDS, ProviderRunner
from gpuscope.judge.notify.alertmanagers.alertmanager_config import AlertingSection, AlertmanagerGroup
from gpuscope.judge.notify.alertmanagers.alertmanager_sender import AlertmanagerSender

log = logging.getLogger("gpuscope.notify")

FILE_CHECK_SECONDS = 5.0


class AlertmanagerDiscovery:
    def __init__(
        self,
        sender: AlertmanagerSender,
        workers: Executor,
        limits: Limits,
        min_update_seconds: float = MIN_UPDATE_SECONDS,
    ) -> None:
        self._sender = sender
        self._workers = workers
        self._limits = limits
        self._min_update_seconds = min_update_seconds
        self._discoveries: list[Discovery[AlertmanagerGroup]] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._is_stopping = False

    def use(self, section: AlertingSection, external_labels: Mapping[str, str]) -> None:
        """Thread-safe. Alertmanagers of providers that were there before stay until the first answer."""
        self._discoveries = build_discoveries(
            section.alertmanagers, self._discoveries, self._workers, self._limits
        )
        self._sender.use(section, external_labels, self._discoveries)
        self._wake()

    @property
    def is_needed(self) -> bool:
        """Whether a thread must run `run`."""
        return any(not discovery.job.is_static for discovery in self._discoveries)

    def run(self) -> None:
        asyncio.run(self._run())

    def stop(self) -> None:
        """Thread-safe."""
        self._is_stopping = True
        self._wake()

    def _wake(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._changed.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        providers = ProviderRunner(self._changed.set, self._min_update_seconds)
        try:
            while not self._is_stopping:
                self._changed.clear()
                discoveries = self._discoveries
                await providers.run_only(one for discovery in discoveries for one in discovery.providers)
                try:
                    self._sender.refresh()  # reads files; nothing else runs in this thread
                except Exception:
                    log.exception("the discovery of Alertmanagers failed; the current ones stay")
                has_files = any(discovery.job.files for discovery in discoveries)
                if not self._is_stopping:
                    with suppress(TimeoutError):
                        await asyncio.wait_for(self._changed.wait(), FILE_CHECK_SECONDS if has_files else None)
        finally:
            await providers.stop()
            self._loop = None
