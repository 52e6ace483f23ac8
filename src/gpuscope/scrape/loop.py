"""One target's beat: wait for its turn, fetch, hand over, remember how it went.

Nothing a target does may stop its loop or touch another one's: whatever goes wrong becomes its `last_error`
and `up 0`, and the next scrape is on time. A store that cannot write is told in the log once per episode.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

import httpx2

from gpuscope.limits import LIMITS_REACHED
from gpuscope.scrape.fetch import BodyBudget, BodyShare, ScrapeError, fetch
from gpuscope.scrape.ingest import ScrapedTarget
from gpuscope.scrape.target import Target
from gpuscope.scrape.target_state import TargetState
from gpuscope.store import StoreError, UnknownSeriesError

log = logging.getLogger("gpuscope.scrape")
T = TypeVar("T")
UNFORESEEN = "unforeseen"
MAX_ERROR_CHARACTERS = 500
"""Of `lastError`: a target chooses some of its words."""


@dataclass(slots=True)
class Counts:
    """What the scraper as a whole has done since it was started."""

    scrapes: int = 0
    failures: int = 0
    not_stored: int = 0
    skipped: int = 0  # beats that came while the scrape before was still running
    store_trouble: str = ""


@dataclass(slots=True)
class ScrapeLoop:
    scraped: ScrapedTarget
    client: httpx2.AsyncClient
    workers: Executor
    counts: Counts
    bodies: BodyBudget
    refused: str = ""  # why this target is not even asked: its job has too many
    health: str = "unknown"
    last_error: str = ""
    last_scrape: float = 0.0
    last_duration: float = 0.0
    first_try: float | None = None
    last_success: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def target(self) -> Target:
        return self.scraped.target

    def state(self) -> TargetState:
        return TargetState(
            labels=dict(self.target.labels),
            url=self.target.url,
            up=self.health == "up",
            scraped=self.health != "unknown",
            error=self.last_error,
            first_try=self.first_try,
            last_success=self.last_success,
        )

    async def run(self, salt: str) -> None:
        """Until cancelled, on a fixed beat; a late scrape does not shift the following ones."""
        await asyncio.sleep(self.target.wait_seconds(time.time(), salt))
        due = time.monotonic()
        while True:
            await self.scrape_once()
            due += self.target.interval
            missed = int((time.monotonic() - due) / self.target.interval) + 1 if time.monotonic() > due else 0
            due += missed * self.target.interval
            self.counts.skipped += missed
            await asyncio.sleep(due - time.monotonic())

    async def scrape_once(self) -> None:
        at_ms, started = time.time_ns() // 1_000_000, time.monotonic()
        note, error = "", ""
        self.counts.scrapes += 1
        try:
            with self.bodies.share() as share:
                note = await self._scrape(at_ms, started, share)
        except ScrapeError as why:
            error = str(why)
            if why.limit:
                LIMITS_REACHED.count(why.limit)
        except StoreError as why:
            note = f"not stored: {why}"
            self._store_failed(why)
        except Exception as why:
            error = f"{UNFORESEEN}: {type(why).__name__}: {why}"
            if not self.last_error.startswith(UNFORESEEN):  # what a target sends must not fill the log
                log.exception("scraping %s failed in an unforeseen way", self.target.url)
        if error:
            self.counts.failures += 1
            await self._fail(at_ms, time.monotonic() - started)
        self.last_error, self.health = (error or note)[:MAX_ERROR_CHARACTERS], "down" if error else "up"
        self.last_scrape, self.last_duration = at_ms / 1000, time.monotonic() - started
        if not error:
            self.last_success = self.last_scrape
        if self.first_try is None:
            self.first_try = self.last_scrape

    async def _scrape(self, at_ms: int, started: float, share: BodyShare) -> str:
        if self.refused:
            raise ScrapeError(self.refused)
        target, limits = self.target, self.target.job.limits
        try:
            async with asyncio.timeout(target.timeout):
                fetched = await fetch(
                    self.client,
                    target.url,
                    timeout_seconds=target.timeout,
                    max_bytes=limits.body_bytes,
                    share=share,
                    server_name=target.job.http.server_name,
                    fallback_protocol=target.job.fallback_protocol,
                )
        except TimeoutError:
            raise ScrapeError(f"no whole answer within {target.timeout:g}s (scrape_timeout)") from None
        for attempt in (1, 2):
            taken = await self._in_worker(lambda: self.scraped.take(fetched, at_ms, started))
            try:
                await asyncio.wrap_future(taken.stored)
                break
            except UnknownSeriesError:  # series were removed while we parsed: once more, with new ids
                self.scraped.forget()
                if attempt == 2:
                    raise
        self._store_works()
        return taken.note

    async def _fail(self, at_ms: int, duration: float) -> None:
        try:
            stored = await self._in_worker(lambda: self.scraped.fail(at_ms, duration))
            await asyncio.wrap_future(stored)
        except StoreError as why:
            self._store_failed(why)
        except Exception as why:
            self._store_failed(StoreError(f"{type(why).__name__}: {why}"))

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.workers, work)

    def _store_failed(self, error: StoreError) -> None:
        self.scraped.appender.not_stored()
        self.counts.not_stored += 1
        if not self.counts.store_trouble:
            log.error("scrapes are not stored: %s", error)
        self.counts.store_trouble = str(error)

    def _store_works(self) -> None:
        if self.counts.store_trouble:
            log.info("scrapes are stored again")
        self.counts.store_trouble = ""
