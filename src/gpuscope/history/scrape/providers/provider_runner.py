"""Runs target providers as tasks of the scraper's event loop, and combines their changes into few updates.

A watch of a busy cluster changes many times a second, and each update relabels every target. So updates are at
least `min_update_seconds` apart, as in Prometheus; the first one is immediate.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor

from gpuscope.base.limits import Limits
from gpuscope.history.scrape.provider_configs import (
    SUPPORTED_KINDS,
    DnsProviderConfig,
    HttpProviderConfig,
    ProviderConfig,
)
from gpuscope.history.scrape.providers import TargetProvider
from gpuscope.history.scrape.providers.dns_provider import DnsProvider
from gpuscope.history.scrape.providers.http_provider import HttpProvider
from gpuscope.history.scrape.providers.kubernetes_provider import KubernetesProvider
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample

log = logging.getLogger("gpuscope.scrape")

MIN_UPDATE_SECONDS = 5.0
PAUSE_AFTER_DEFECT_SECONDS = 30.0


def build_provider(config: ProviderConfig, workers: Executor, limits: Limits) -> TargetProvider:
    if isinstance(config, DnsProviderConfig):
        return DnsProvider(config)
    max_bytes = limits.discovery_max_body_bytes
    if isinstance(config, HttpProviderConfig):
        return HttpProvider(config, workers, max_bytes)
    return KubernetesProvider(config, workers, max_bytes, limits.discovery_max_objects)


class ProviderRunner:
    def __init__(
        self, update_targets: Callable[[], None], min_update_seconds: float = MIN_UPDATE_SECONDS
    ) -> None:
        """`update_targets` is called in the event loop when targets changed."""
        self._update_targets = update_targets
        self._min_update_seconds = min_update_seconds
        self._tasks: dict[TargetProvider, asyncio.Task[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._updated_at = float("-inf")
        self._past_failures: Counter[str] = Counter()

    async def run_only(self, wanted: Iterable[TargetProvider]) -> None:
        """Starts those that do not run, stops all others."""
        wanted = tuple(wanted)
        gone = [provider for provider in self._tasks if provider not in wanted]
        await self._stop(gone)
        for provider in wanted:
            if provider not in self._tasks:
                name = f"{provider.config.mechanism} discovery"
                self._tasks[provider] = asyncio.create_task(self._run(provider), name=name)

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._stop(list(self._tasks))

    async def _stop(self, providers: list[TargetProvider]) -> None:
        tasks = [self._tasks.pop(provider) for provider in providers]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for provider in providers:
            self._past_failures[provider.config.mechanism] += provider.failures

    async def _run(self, provider: TargetProvider) -> None:
        while True:
            try:
                await provider.run(self._changed)
            except Exception:
                log.exception("%s discovery failed; its targets stay", provider.config.mechanism)
            await asyncio.sleep(PAUSE_AFTER_DEFECT_SECONDS)

    def _changed(self) -> None:
        if self._timer is None:
            loop = asyncio.get_running_loop()
            due_at = max(loop.time(), self._updated_at + self._min_update_seconds)
            self._timer = loop.call_at(due_at, self._update)

    def _update(self) -> None:
        self._timer = None
        self._updated_at = asyncio.get_running_loop().time()
        self._update_targets()

    def families(self) -> Iterator[MetricFamily]:
        failures = self._past_failures.copy()
        for provider in list(self._tasks):
            failures[provider.config.mechanism] += provider.failures
        yield MetricFamily(
            "gpuscope_discovery_failures_total",
            "counter",
            "Failed refreshes of dns_sd_configs, http_sd_configs and kubernetes_sd_configs.",
            [Sample(LabelSet((("mechanism", kind),)), failures[kind]) for kind in SUPPORTED_KINDS],
        )
