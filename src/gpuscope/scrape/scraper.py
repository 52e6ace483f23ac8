"""All targets of a configuration: starts and stops their loops as files and configuration change.

Lives in one event loop; `reload` and the API's questions may come from other threads. A target that stays
the same over a reload keeps its ids and its series; one that goes away ends all its series at once.
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

from gpuscope.errors import UsageError
from gpuscope.limits import LIMITS_REACHED, Limits
from gpuscope.metrics.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.rfc3339 import to_rfc3339
from gpuscope.scrape.config import Job, ScrapeConfig
from gpuscope.scrape.discovery import Discovery
from gpuscope.scrape.fetch import BodyBudget, new_client
from gpuscope.scrape.ingest import ScrapedTarget
from gpuscope.scrape.loop import Counts, ScrapeLoop
from gpuscope.scrape.sink import Sink
from gpuscope.scrape.target import Dropped, Target, build_targets, duration_text
from gpuscope.scrape.target_appender import TargetAppender
from gpuscope.scrape.target_state import TargetState
from gpuscope.store import Store, StoreError

NEVER = "0001-01-01T00:00:00Z"  # Go's zero time

log = logging.getLogger("gpuscope.scrape")

LOOK_AT_FILES_EVERY = 5.0
MAX_DROPPED = 1000
"""Dropped targets that the API shows; all are counted."""
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
        read_again: Callable[[], ScrapeConfig] | None = None,
        limits: Limits | None = None,
    ) -> None:
        """`read_again` is asked for the configuration when one of its password or certificate files changed."""
        self._store = store
        self._workers = workers
        self._salt = salt
        self._sink = sink
        self._read_again = read_again
        self._config = config
        self._stamps = _stamps(config.files)
        self._discoveries = [Discovery(job) for job in config.jobs]
        self._loops: dict[Key, ScrapeLoop] = {}
        self._dropped: list[Dropped] = []
        self._dropped_counts: Counter[str] = Counter()
        self._max_targets = (limits or Limits()).scrape_max_targets
        self._bodies = BodyBudget((limits or Limits()).scrape_max_pending_bytes)
        self._too_many_targets = False
        self._changed: asyncio.Event | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        self.counts = Counts()

    async def run(self, stop: asyncio.Event) -> None:
        """Scrapes until `stop` is set."""
        self._changed, self._event_loop = asyncio.Event(), asyncio.get_running_loop()
        stopping = asyncio.create_task(stop.wait())
        looking_fails = False
        try:
            while not stop.is_set():
                self._changed.clear()
                try:
                    await self._look()
                    looking_fails = False
                except Exception:
                    if not looking_fails:
                        log.exception("looking for targets failed; those there are stay")
                    looking_fails = True
                reloaded = asyncio.create_task(self._changed.wait())
                await asyncio.wait(
                    (stopping, reloaded), timeout=self._look_every(), return_when=asyncio.FIRST_COMPLETED
                )
                reloaded.cancel()
        finally:
            stopping.cancel()
            await self._stop_all()

    def reload(self, config: ScrapeConfig) -> None:
        """From any thread."""
        self._config = config
        self._stamps = _stamps(config.files)
        self._discoveries = [Discovery(job) for job in config.jobs]
        if self._event_loop is not None and self._changed is not None:
            self._event_loop.call_soon_threadsafe(self._changed.set)

    def _look_every(self) -> float | None:
        refreshes = [one.job.files_refresh for one in self._discoveries if one.job.files]
        if self._config.files:
            refreshes.append(LOOK_AT_FILES_EVERY)
        return max(0.1, min(LOOK_AT_FILES_EVERY, *refreshes)) if refreshes else None

    def _mind_secrets(self) -> None:
        """A rotated token or certificate is used without anybody's doing."""
        stamps = _stamps(self._config.files)
        if self._read_again is None or stamps == self._stamps:
            return
        self._stamps = stamps
        try:
            self.reload(self._read_again())
        except UsageError as error:
            log.error("the configuration was not read again: %s; the old one stays", error)

    async def _look(self) -> None:
        """Finds the targets as they are now and brings the loops in line."""
        running = asyncio.get_running_loop()
        await running.run_in_executor(self._workers, self._mind_secrets)
        wanted: dict[Key, tuple[Target, str]] = {}
        dropped: list[Dropped] = []
        counts: Counter[str] = Counter()
        for one in self._discoveries:
            room = self._max_targets - len(wanted)
            found = await running.run_in_executor(self._workers, find_targets, one, room)
            dropped += found.dropped[: MAX_DROPPED - len(dropped)]
            counts[one.job.name] += found.dropped_count
            refused = _too_many(one.job, len(found.targets))
            wanted |= {_key(target): (target, refused) for target in found.targets}
        self._dropped, self._dropped_counts = dropped, counts
        self._tell_of_too_many(len(wanted) > self._max_targets)
        await self._bring_in_line(dict(islice(wanted.items(), self._max_targets)))

    def _tell_of_too_many(self, now: bool) -> None:
        """One line when it begins and one when it is over; each look that finds too many is counted."""
        if now:
            LIMITS_REACHED.count("scrape_max_targets")
        if now and not self._too_many_targets:
            log.error("more than %d targets: the rest is not scraped (scrape_max_targets)", self._max_targets)
        if self._too_many_targets and not now:
            log.info("all targets are scraped again")
        self._too_many_targets = now

    async def _bring_in_line(self, wanted: dict[Key, tuple[Target, str]]) -> None:
        gone = [loop for key, loop in self._loops.items() if key not in wanted]
        self._loops = {key: loop for key, loop in self._loops.items() if key in wanted}
        if gone:
            await asyncio.gather(*(self._end(loop) for loop in gone))
        for key, (target, refused) in wanted.items():
            known = self._loops.get(key)
            if known is None:
                name = target.name
                appender = TargetAppender(self._store, name, dict(target.labels), self._sink)
                self._start(key, target, appender, refused)
            elif known.target != target:
                await _cancel(known)
                self._start(key, target, known.scraped.appender, refused)
            else:
                known.refused = refused

    def _start(self, key: Key, target: Target, appender: TargetAppender, refused: str) -> None:
        scraped = ScrapedTarget(target, appender)
        # A client each: a pool of all targets' connections is walked through, and asked, on every request.
        client = new_client(target.job.http)
        loop = ScrapeLoop(scraped, client, self._workers, self.counts, self._bodies, refused)
        self._loops[key] = loop
        loop.task = asyncio.create_task(loop.run(self._salt), name=f"scrape {target.url}")

    async def _end(self, loop: ScrapeLoop) -> None:
        """The target is gone: its series end now."""
        await _cancel(loop)
        at_ms = time.time_ns() // 1_000_000
        appender = loop.scraped.appender
        try:
            await asyncio.get_running_loop().run_in_executor(self._workers, appender.close, at_ms)
        except StoreError as error:
            log.error("the end of %s could not be stored: %s", loop.target.url, error)

    async def _stop_all(self) -> None:
        # A stop is not an end: after a restart the same series go on, so no marker is written.
        await asyncio.gather(*(_cancel(loop) for loop in self._loops.values()))

    # What the API and the live view ask

    def states(self) -> list[TargetState]:
        return [loop.state() for loop in list(self._loops.values())]

    def targets_json(self, state: str) -> dict[str, Any]:
        active = [] if state == "dropped" else [_active(loop) for loop in list(self._loops.values())]
        counts = {job.name: self._dropped_counts[job.name] for job in self._config.jobs}
        dropped = (
            []
            if state == "active"
            else [{"discoveredLabels": one.discovered, "scrapePool": one.job} for one in self._dropped]
        )
        return {"activeTargets": active, "droppedTargets": dropped, "droppedTargetCounts": counts}

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        merged: dict[str, list[dict[str, str]]] = {}
        for loop in list(self._loops.values()):
            for name, one in loop.scraped.metadata.items():
                entry = {"type": one.type, "help": one.help, "unit": one.unit}
                known = merged.setdefault(name, [])
                if entry not in known:
                    known.append(entry)
        return merged

    def target_metadata(self) -> Iterator[tuple[dict[str, str], dict[str, dict[str, str]]]]:
        """Each target's labels, and its metadata by metric."""
        for loop in sorted((*self._loops.values(),), key=lambda loop: loop.target.job.name):
            known = {
                name: {"type": one.type, "help": one.help, "unit": one.unit}
                for name, one in loop.scraped.metadata.items()
            }
            yield dict(loop.target.labels), known

    def config_text(self) -> str:
        return self._config.text

    def families(self) -> Iterator[MetricFamily]:
        """The scraper's own metrics."""
        health = [loop.health for loop in list(self._loops.values())]
        states = [Sample(LabelSet((("health", one),)), health.count(one)) for one in ("up", "down", "unknown")]
        yield MetricFamily("gpuscope_scrape_targets", "gauge", "Targets by how their last scrape went.", states)
        for name, value, help_text in (
            ("scrapes", self.counts.scrapes, "Scrapes begun."),
            ("failures", self.counts.failures, "Scrapes that failed or were refused."),
            ("not_stored", self.counts.not_stored, "Scrapes that the store could not keep."),
            ("skipped", self.counts.skipped, "Scrapes left out because the one before was not finished."),
        ):
            full = f"gpuscope_scrape_{name}_total"
            yield MetricFamily(full, "counter", help_text, [Sample(NO_LABELS, value)])


@dataclass(slots=True)
class Found:
    """One job's targets; of those that relabelling dropped some, and how many there are."""

    targets: list[Target] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    dropped_count: int = 0


def find_targets(discovery: Discovery, room: int) -> Found:
    """At most one more than there is `room` for: a file may name a million."""
    found = Found()
    for one in build_targets(discovery.job, discovery.groups()):
        if isinstance(one, Target):
            found.targets.append(one)
            if len(found.targets) > room:
                break
        else:
            found.dropped_count += 1
            if len(found.dropped) < MAX_DROPPED:
                found.dropped.append(one)
    return found


def _stamps(files: Iterable[Path]) -> list[tuple[int, int]]:
    found = []
    for path in files:
        try:
            state = path.stat()
        except OSError:
            found.append((0, 0))
        else:
            found.append((state.st_mtime_ns, state.st_ino))
    return found


def _key(target: Target) -> Key:
    return target.job.name, target.url, target.labels


def _too_many(job: Job, targets: int) -> str:
    limit = job.limits.targets
    return f"{targets} targets, {limit} are allowed (target_limit)" if limit and targets > limit else ""


async def _cancel(loop: ScrapeLoop) -> None:
    if loop.task is not None:
        loop.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await loop.task
    await loop.client.aclose()


def _active(loop: ScrapeLoop) -> dict[str, Any]:
    target = loop.target
    return {
        "discoveredLabels": target.discovered,
        "labels": dict(target.labels),
        "scrapePool": target.job.name,
        "scrapeUrl": target.url,
        "globalUrl": target.url,
        "lastError": loop.last_error,
        "lastScrape": to_rfc3339(loop.last_scrape) if loop.last_scrape else NEVER,
        "lastScrapeDuration": loop.last_duration,
        "health": loop.health,
        "scrapeInterval": duration_text(target.interval),
        "scrapeTimeout": duration_text(target.timeout),
    }
