"""The scrape loop of one target: wait, fetch, ingest, record the result; and how late scrapes start.

No target can stop its own loop or affect another: every failure becomes `last_error` and `up 0`, and the next
scrape is on time. A store that cannot write is logged once per episode.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeVar

from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.limits import LIMITS_REACHED
from gpuscope.history.scrape.fetch import BodyShare, Fetched, ScrapeBodyBudget, ScrapeError, TargetClient, fetch
from gpuscope.history.scrape.ingest import IngestResult, TargetIngester
from gpuscope.history.scrape.target import ScrapeTarget, TargetHealth
from gpuscope.history.store import StoreError, UnknownSeriesError
from gpuscope.model.exposition.sample import MetricFamily, single_metric

log = logging.getLogger("gpuscope.scrape")

# How late scrapes start, and the turns that other work takes meanwhile.
#
# Python runs one thread at a time, and a scrape asks for the interpreter about five times: beside four busy
# threads, 67 scrapes a second do not start in time. So while scrapes are late, queries of clients and the
# live picture run one at a time. None of them waits longer than `MAX_WAIT_SECONDS` for its turn.

MAX_LATE_SECONDS: Final = 0.05
CALM_SECONDS: Final = 1.0
"""Turns end when no scrape was late for so long."""
MAX_WAIT_SECONDS: Final = 1.0
_PERIOD_SECONDS: Final = 15.0


class LateScrapes:
    """`note` belongs to the scraper's thread, `turn` to any."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._late_until = float("-inf")
        self._busy = threading.Lock()
        self._turns = 0
        self._period = 0
        self._worst = self._worst_before = 0.0

    def note(self, seconds: float) -> None:
        """A scrape starts so long after it was due."""
        now = self._clock()
        self._begin_period(now)
        self._worst = max(self._worst, seconds)
        if seconds > MAX_LATE_SECONDS:
            self._late_until = now + CALM_SECONDS

    def _begin_period(self, now: float) -> None:
        period = int(now // _PERIOD_SECONDS)
        if period != self._period:
            self._worst_before = self._worst if period == self._period + 1 else 0.0
            self._worst, self._period = 0.0, period

    @contextmanager
    def turn(self) -> Iterator[None]:
        """For work that keeps the interpreter busy; turns must not be nested."""
        if self._clock() >= self._late_until:
            yield
            return
        self._turns += 1
        is_alone = self._busy.acquire(timeout=MAX_WAIT_SECONDS)
        try:
            yield
        finally:
            if is_alone:
                self._busy.release()

    def families(self) -> Iterator[MetricFamily]:
        self._begin_period(self._clock())
        worst = max(self._worst, self._worst_before)
        help_text = "Longest time by which a scrape started late, in the last 15 to 30 seconds."
        yield single_metric("gpuscope_scrape_late_seconds", "gauge", help_text, worst)
        help_text = "Queries and live pictures that ran one at a time because scrapes were late."
        yield single_metric("gpuscope_scrape_turns_total", "counter", help_text, self._turns)


T = TypeVar("T")
UNEXPECTED = "unexpected error"
MAX_ERROR_CHARACTERS = 500
"""Maximum length of `lastError`, which may contain text from the target."""


@dataclass(slots=True)
class ScrapeCounts:
    """Totals of all scrape loops since the start."""

    scrapes: int = 0
    failures: int = 0
    not_stored: int = 0
    skipped: int = 0  # scrapes that were due while the previous one was running
    late: LateScrapes = field(default_factory=LateScrapes)
    store_episode: EpisodeLog = field(
        default_factory=lambda: EpisodeLog(log, "storing scrapes", level=logging.ERROR)
    )


@dataclass(slots=True)
class ScrapeLoop:
    ingester: TargetIngester
    client: TargetClient
    workers: Executor
    counts: ScrapeCounts
    bodies: ScrapeBodyBudget
    discovered: dict[str, str]  # labels before relabelling; they may change while the target stays the same
    refusal: str = ""  # reason not to scrape this target: its job exceeds target_limit
    health: str = "unknown"
    last_error: str = ""
    last_scrape: float = 0.0
    last_duration: float = 0.0
    first_try: float | None = None
    last_success: float | None = None
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def target(self) -> ScrapeTarget:
        return self.ingester.target

    def state(self) -> TargetHealth:
        return TargetHealth(
            labels=dict(self.target.labels),
            url=self.target.url,
            up=self.health == "up",
            scraped=self.health != "unknown",
            error=self.last_error,
            first_try=self.first_try,
            last_success=self.last_success,
        )

    async def run(self, salt: str) -> None:
        """Scrapes at fixed times until cancelled; a late scrape does not delay the following ones."""
        await asyncio.sleep(self.target.wait_seconds(time.time(), salt))
        due = time.monotonic()
        while True:
            await self.scrape_once()
            due += self.target.interval
            missed = int((time.monotonic() - due) / self.target.interval) + 1 if time.monotonic() > due else 0
            due += missed * self.target.interval
            self.counts.skipped += missed
            await asyncio.sleep(due - time.monotonic())
            self.counts.late.note(time.monotonic() - due)

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
            error = f"{UNEXPECTED}: {type(why).__name__}: {why}"
            if not self.last_error.startswith(UNEXPECTED):  # a target must not be able to fill the log
                log.exception("scraping %s failed unexpectedly", self.target.url)
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
        if self.refusal:
            raise ScrapeError(self.refusal)
        target, limits = self.target, self.target.job.limits
        try:
            async with asyncio.timeout(target.timeout):
                fetched = await fetch(
                    self.client,
                    max_bytes=limits.body_bytes,
                    share=share,
                    fallback_protocol=target.job.fallback_protocol,
                )
        except TimeoutError:
            raise ScrapeError(f"no complete response within {target.timeout:g}s (scrape_timeout)") from None
        for attempt in (1, 2):
            result = await self._ingest(fetched, at_ms, started)
            try:
                await asyncio.wrap_future(result.stored)
                break
            except UnknownSeriesError:  # the store removed series meanwhile: retry with new ids
                self.ingester.forget()
                if attempt == 2:
                    raise
        self._store_works()
        return result.note

    async def _ingest(self, fetched: Fetched, at_ms: int, started: float) -> IngestResult:
        """Only values have changed in most scrapes: passing those to a thread would take longer."""
        result = self.ingester.ingest_values(fetched, at_ms, started)
        if result is None:
            return await self._in_worker(lambda: self.ingester.ingest(fetched, at_ms, started))
        return result

    async def _fail(self, at_ms: int, duration: float) -> None:
        try:
            stored = await self._in_worker(lambda: self.ingester.fail(at_ms, duration))
            await asyncio.wrap_future(stored)
        except StoreError as why:
            self._store_failed(why)
        except Exception as why:
            self._store_failed(StoreError(f"{type(why).__name__}: {why}"))

    async def _in_worker(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.workers, work)

    def _store_failed(self, error: StoreError) -> None:
        self.ingester.appender.restore_alive()
        self.counts.not_stored += 1
        self.counts.store_episode.failed(str(error))

    def _store_works(self) -> None:
        self.counts.store_episode.succeeded()
