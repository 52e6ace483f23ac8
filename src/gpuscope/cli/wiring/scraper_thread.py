"""A thread for scraping, so that neither a slow query nor a busy page delays a scrape."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings, home_file
from gpuscope.history.scrape.config import ScrapeConfig, load_config, simple_config
from gpuscope.history.scrape.discovery import targets_from_argument
from gpuscope.history.scrape.scraper import Scraper

log = logging.getLogger("gpuscope")

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
