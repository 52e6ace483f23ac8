"""Runs the scrape loops of all targets, and starts and stops them as the configuration changes.

Runs in one event loop; `reload` and the API's methods may be called from other threads. A target that is
unchanged by a reload keeps its series; the series of a removed target end at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.errors import UsageError
from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.time_text import to_rfc3339
from gpuscope.history.scrape import Sink
from gpuscope.history.scrape.config import ScrapeConfig, ScrapeJob
from gpuscope.history.scrape.discovery import MIN_UPDATE_SECONDS, Discovery, ProviderRunner, build_discoveries
from gpuscope.history.scrape.fetch import ScrapeBodyBudget, TargetClient
from gpuscope.history.scrape.ingest import TargetIngester
from gpuscope.history.scrape.loop import ScrapeCounts, ScrapeLoop
from gpuscope.history.scrape.target import DroppedTarget, ScrapeTarget, TargetHealth, build_targets
from gpuscope.history.scrape.target_appender import TargetAppender
from gpuscope.history.store import Store, StoreError
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, single_metric

NEVER = "0001-01-01T00:00:00Z"  # Go's zero time

log = logging.getLogger("gpuscope.scrape")

FILE_CHECK_SECONDS = 5.0
MAX_DROPPED = 1000
"""Dropped targets that the API lists; `droppedTargetCounts` counts all."""
Key = tuple[str, str, tuple[tuple[str, str], ...]]


class Scraper:
    """Implements the API's `Targets`."""

    def __init__(
        self,
        store: Store,
        config: ScrapeConfig,
        workers: Executor,
        *,
        salt: str = "",
        sink: Sink | None = None,
        reload_config: Callable[[], ScrapeConfig] | None = None,
        limits: Limits | None = None,
        min_update_seconds: float = MIN_UPDATE_SECONDS,
    ) -> None:
        """`reload_config` is called when a password or certificate file of the configuration changed."""
        self._store = store
        self._workers = workers
        self._salt = salt
        self._sink = sink
        self._reload_config = reload_config
        self._config = config
        self._file_stamps = _file_stamps(config.files)
        self._limits = limits or Limits()
        self._discoveries = build_discoveries(config.jobs, [], workers, self._limits)
        self._providers = ProviderRunner(self._check_targets_now, min_update_seconds)
        self._loops: dict[Key, ScrapeLoop] = {}
        self._dropped: list[DroppedTarget] = []
        self._dropped_counts: Counter[str] = Counter()
        self._max_targets = self._limits.scrape_max_targets
        self._bodies = ScrapeBodyBudget(self._limits.scrape_max_pending_bytes)
        self._target_limit_log = EpisodeLog(
            log, "target limit", level=logging.ERROR, recovered="all targets are scraped again"
        )
        self._changed: asyncio.Event | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self.counts = ScrapeCounts()
        self.has_looked_for_targets = False
        """False until the first discovery has ended, with or without targets."""

    async def run(self, stop: asyncio.Event) -> None:
        """Scrapes until `stop` is set."""
        self._changed, self._event_loop = asyncio.Event(), asyncio.get_running_loop()
        stopping = asyncio.create_task(stop.wait())
        is_failing = False
        try:
            while not stop.is_set():
                self._changed.clear()
                try:
                    await self._update_targets()
                    is_failing = False
                except Exception:
                    if not is_failing:
                        log.exception("target discovery failed; the current targets stay")
                    is_failing = True
                self.has_looked_for_targets = True
                reloaded = asyncio.create_task(self._changed.wait())
                await asyncio.wait(
                    (stopping, reloaded), timeout=self._check_interval(), return_when=asyncio.FIRST_COMPLETED
                )
                reloaded.cancel()
        finally:
            stopping.cancel()
            await self._providers.stop()
            await self._stop_all()

    def reload(self, config: ScrapeConfig) -> None:
        """Thread-safe."""
        self._config = config
        self._file_stamps = _file_stamps(config.files)
        self._discoveries = build_discoveries(config.jobs, self._discoveries, self._workers, self._limits)
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(self._check_targets_now)

    def _check_targets_now(self) -> None:
        if self._changed is not None:
            self._changed.set()

    def _check_interval(self) -> float | None:
        refreshes = [discovery.job.files_refresh for discovery in self._discoveries if discovery.job.files]
        if self._config.files:
            refreshes.append(FILE_CHECK_SECONDS)
        return max(0.1, min(FILE_CHECK_SECONDS, *refreshes)) if refreshes else None

    def _reload_changed_secrets(self) -> None:
        """Reloads the configuration when a token or certificate was rotated."""
        stamps = _file_stamps(self._config.files)
        if self._reload_config is None or stamps == self._file_stamps:
            return
        self._file_stamps = stamps
        try:
            self.reload(self._reload_config())
        except UsageError as error:
            log.error("cannot reload the configuration: %s; the current one stays", error)

    async def _update_targets(self) -> None:
        """Discovers the current targets and updates the loops."""
        running = asyncio.get_running_loop()
        await running.run_in_executor(self._workers, self._reload_changed_secrets)
        discoveries = self._discoveries
        await self._providers.run_only(
            provider for discovery in discoveries for provider in discovery.providers
        )
        targets: dict[Key, tuple[ScrapeTarget, str]] = {}
        dropped: list[DroppedTarget] = []
        counts: Counter[str] = Counter()
        for discovery in discoveries:
            room = self._max_targets - len(targets)
            discovered = await running.run_in_executor(self._workers, discover_targets, discovery, room)
            dropped += discovered.dropped[: MAX_DROPPED - len(dropped)]
            counts[discovery.job.name] += discovered.dropped_count
            refusal = _too_many(discovery.job, len(discovered.targets))
            targets |= {key: (target, refusal) for key, target in discovered.targets.items()}
        self._dropped, self._dropped_counts = dropped, counts
        self._report_target_limit(len(targets) > self._max_targets)
        await self._update_loops(dict(islice(targets.items(), self._max_targets)))

    def _report_target_limit(self, is_exceeded: bool) -> None:
        if is_exceeded:
            LIMITS_REACHED.count("scrape_max_targets")
            self._target_limit_log.failed(
                f"more than {self._max_targets} targets: the rest is not scraped (scrape_max_targets)"
            )
        else:
            self._target_limit_log.succeeded()

    async def _update_loops(self, targets: dict[Key, tuple[ScrapeTarget, str]]) -> None:
        gone = [loop for key, loop in self._loops.items() if key not in targets]
        self._loops = {key: loop for key, loop in self._loops.items() if key in targets}
        if gone:
            await asyncio.gather(*(self._end(loop) for loop in gone))
        for key, (target, refusal) in targets.items():
            known = self._loops.get(key)
            if known is None:
                name = target.name
                appender = TargetAppender(self._store, name, dict(target.labels), self._sink)
                self._start(key, target, appender, refusal)
            elif known.target != target:
                await _cancel(known)
                self._start(key, target, known.ingester.appender, refusal)
            else:
                known.refusal, known.discovered = refusal, target.discovered

    def _start(self, key: Key, target: ScrapeTarget, appender: TargetAppender, refusal: str) -> None:
        ingester = TargetIngester(target, appender)
        # One client per target: with a shared pool every request scans the connections of all targets.
        http = target.job.http
        client = TargetClient(target.url, http, timeout_seconds=target.timeout, server_name=http.server_name)
        loop = ScrapeLoop(
            ingester, client, self._workers, self.counts, self._bodies, target.discovered, refusal
        )
        self._loops[key] = loop
        loop.task = asyncio.create_task(loop.run(self._salt), name=f"scrape {target.url}")

    async def _end(self, loop: ScrapeLoop) -> None:
        """Stops the loop of a removed target and ends its series."""
        await _cancel(loop)
        at_ms = time.time_ns() // 1_000_000
        appender = loop.ingester.appender
        try:
            await asyncio.get_running_loop().run_in_executor(self._workers, appender.close, at_ms)
        except StoreError as error:
            log.error("cannot store the staleness markers of %s: %s", loop.target.url, error)

    async def _stop_all(self) -> None:
        # No staleness markers: the same series continue after a restart.
        await asyncio.gather(*(_cancel(loop) for loop in self._loops.values()))

    # Called by the API and the live view

    def states(self) -> list[TargetHealth]:
        return [loop.state() for loop in list(self._loops.values())]

    def targets_json(self, state: str) -> dict[str, Any]:
        active = [] if state == "dropped" else [_active(loop) for loop in list(self._loops.values())]
        counts = {job.name: self._dropped_counts[job.name] for job in self._config.jobs}
        dropped = (
            []
            if state == "active"
            else [{"discoveredLabels": target.discovered, "scrapePool": target.job} for target in self._dropped]
        )
        return {"activeTargets": active, "droppedTargets": dropped, "droppedTargetCounts": counts}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        merged: dict[str, list[dict[str, str]]] = {}
        for loop in list(self._loops.values()):
            for name, metadata in loop.ingester.metadata.items():
                entry = {"type": metadata.type, "help": metadata.help, "unit": metadata.unit}
                known = merged.setdefault(name, [])
                if entry not in known:
                    known.append(entry)
        return merged

    def target_metadata(self) -> Iterator[tuple[dict[str, str], dict[str, dict[str, str]]]]:
        """Each target's labels, and its metadata by metric."""
        for loop in sorted((*self._loops.values(),), key=lambda loop: loop.target.job.name):
            known = {
                name: {"type": metadata.type, "help": metadata.help, "unit": metadata.unit}
                for name, metadata in loop.ingester.metadata.items()
            }
            yield dict(loop.target.labels), known

    def config_text(self) -> str:
        return self._config.text

    def families(self) -> Iterator[MetricFamily]:
        """The scraper's own metrics."""
        health = [loop.health for loop in list(self._loops.values())]
        states = [
            Sample(LabelSet((("health", name),)), health.count(name)) for name in ("up", "down", "unknown")
        ]
        yield MetricFamily(
            "gpuscope_scrape_targets", "gauge", "Targets by the health of their last scrape.", states
        )
        for name, value, help_text in (
            ("scrapes", self.counts.scrapes, "Scrapes started."),
            ("failures", self.counts.failures, "Scrapes that failed or were refused."),
            ("not_stored", self.counts.not_stored, "Scrapes that could not be stored."),
            ("skipped", self.counts.skipped, "Scrapes skipped because the previous one was not finished."),
        ):
            full = f"gpuscope_scrape_{name}_total"
            yield single_metric(full, "counter", help_text, value)
        yield from self.counts.late.families()
        yield from self._providers.families()


@dataclass(slots=True)
class DiscoveredTargets:
    """One job's targets, some of its dropped targets, and the number of all dropped ones."""

    targets: dict[Key, ScrapeTarget] = field(default_factory=dict)
    dropped: list[DroppedTarget] = field(default_factory=list)
    dropped_count: int = 0


def discover_targets(discovery: Discovery[ScrapeJob], room: int) -> DiscoveredTargets:
    """Returns at most `room` + 1 targets: a file may list a million."""
    result = DiscoveredTargets()
    for target in build_targets(discovery.job, discovery.groups()):
        if isinstance(target, ScrapeTarget):
            result.targets[_key(target)] = target  # of equal ones the last is shown, as in Prometheus
            if len(result.targets) > room:
                break
        else:
            result.dropped_count += 1
            if len(result.dropped) < MAX_DROPPED:
                result.dropped.append(target)
    return result


def _file_stamps(files: Iterable[Path]) -> list[tuple[int, int]]:
    stamps = []
    for path in files:
        try:
            state = path.stat()
        except OSError:
            stamps.append((0, 0))
        else:
            stamps.append((state.st_mtime_ns, state.st_ino))
    return stamps


def _key(target: ScrapeTarget) -> Key:
    return target.job.name, target.url, target.labels


def _too_many(job: ScrapeJob, targets: int) -> str:
    limit = job.limits.targets
    return (
        f"target limit exceeded: {targets} targets, {limit} are allowed (target_limit)"
        if limit and targets > limit
        else ""
    )


async def _cancel(loop: ScrapeLoop) -> None:
    if loop.task is not None:
        loop.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop.task
    await loop.client.aclose()


def _active(loop: ScrapeLoop) -> dict[str, Any]:
    target = loop.target
    return {
        "discoveredLabels": loop.discovered,
        "labels": dict(target.labels),
        "scrapePool": target.job.name,
        "scrapeUrl": target.url,
        "globalUrl": target.url,
        "lastError": loop.last_error,
        "lastScrape": to_rfc3339(loop.last_scrape) if loop.last_scrape else NEVER,
        "lastScrapeDuration": loop.last_duration,
        "health": loop.health,
        "scrapeInterval": target.interval_text,
        "scrapeTimeout": target.timeout_text,
    }
