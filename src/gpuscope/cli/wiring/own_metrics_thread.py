"""The thread that stores the server's own metrics, and the rule by which `gpuscope server` stores them."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpuscope.base.clock import SystemClock
from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_file
from gpuscope.history.scrape.config import ScrapeConfig, load_config, simple_config
from gpuscope.history.scrape.discovery import targets_from_argument
from gpuscope.history.scrape.local_feeds import OwnMetricsFeed, scrapes_itself
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.store import Store
from gpuscope.judge.rules.rule_group import RuleGroup
from gpuscope.model.exposition.sample import MetricFamily

log = logging.getLogger("gpuscope")
RETRY_SECONDS = 1.0
"""While nothing is stored: whether that has changed."""


class OwnMetricsThread:
    def __init__(self, feed: OwnMetricsFeed) -> None:
        self._feed = feed
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-own-metrics", daemon=True)

    def __enter__(self) -> OwnMetricsThread:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._feed.store_now()
            except Exception:  # a defect of one family must not end the history of the others
                log.exception("storing own metrics")
            self._stopping.wait(self._feed.interval_seconds if self._feed.stored_at else RETRY_SECONDS)


def server_metrics_feed(
    store: Store,
    settings: Settings,
    listen: tuple[str, int],
    families: Callable[[], list[MetricFamily]],
    groups: Callable[[], Sequence[RuleGroup]],
    scraper: Scraper,
) -> OwnMetricsFeed:
    """Own metrics are stored for alerts about this server, unless it is among its own scrape targets."""
    name = socket.gethostname()

    def is_wanted() -> bool:
        if not scraper.has_looked_for_targets:
            return False
        has_alerts = any(rule.spec.is_alert for group in groups() for rule in group.rules)
        return has_alerts and not scrapes_itself(scraper.states(), (name, listen[0]), listen[1])

    return OwnMetricsFeed(store, name, settings.store_interval, families, SystemClock(), is_wanted)


# A thread for scraping, so that neither a slow query nor a busy page delays a scrape.

SCRAPE_WORKERS = 4


class ScraperThread:
    """A scraper with its thread, event loop and workers."""

    def __init__(self, build: Callable[[ThreadPoolExecutor], Scraper]) -> None:
        self._workers = ThreadPoolExecutor(SCRAPE_WORKERS, thread_name_prefix="gpuscope-scrape")
        self.scraper = build(self._workers)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-scraper", daemon=True)

    def __enter__(self) -> ScraperThread:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self.scraper.run(self._stop))
        except Exception:
            log.exception("the scraper stopped")

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._loop.close()
        self._workers.shutdown()


# The scrape configuration that the settings name: a file, a list of targets, or nothing.


def read_scrape_config(settings: Settings) -> ScrapeConfig:
    """From --config, --targets, or neither: a server may receive remote write only."""
    if settings.config and settings.targets:
        raise UsageError(
            "--config and --targets: give only one of them; the configuration file can list targets too"
        )
    if settings.config:
        return load_config(home_file(settings.config, "config"), settings)
    if settings.targets:
        return simple_config(*targets_from_argument(settings.targets), settings.scrape_interval, settings)
    return ScrapeConfig()
