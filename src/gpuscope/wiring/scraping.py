"""Builds and runs `server`: scrape a fleet into a store and answer, or answer over another engine.

Scraping has a thread and an event loop of its own, so that neither a slow query nor a busy page delays a
scrape. SIGHUP reads the configuration again; a wrong one is refused and the old one stays.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType

from gpuscope.errors import UsageError
from gpuscope.exposition.text import encode_text
from gpuscope.promql import Engine
from gpuscope.promql.result import Vector
from gpuscope.scrape.config import ScrapeConfig, load_config, simple_config
from gpuscope.scrape.discovery import targets_from_argument
from gpuscope.scrape.scraper import Scraper
from gpuscope.server.api.embedded import EmbeddedApi
from gpuscope.server.app import build_app
from gpuscope.server.live import LIVE_QUERY, Sample
from gpuscope.server.own_metrics import store_families
from gpuscope.server.page_routes import LiveFleet, page_routes
from gpuscope.settings import Settings
from gpuscope.wiring.server import DEFAULT_LISTEN, _web, open_store, serve

log = logging.getLogger("gpuscope")

SCRAPE_WORKERS = 4


def read_scrape_config(settings: Settings) -> ScrapeConfig:
    """From --config, --targets, or neither: a server may live from remote write alone."""
    if settings.config and settings.targets:
        raise UsageError(
            "--config and --targets: give one of them; targets can stand in the configuration file"
        )
    if settings.config:
        return load_config(Path(settings.config).expanduser())
    if settings.targets:
        return simple_config(*targets_from_argument(settings.targets), settings.scrape_interval)
    return ScrapeConfig()


class ScraperThread:
    """A scraper with the thread, the event loop and the workers it runs on."""

    def __init__(self, build: Callable[[ThreadPoolExecutor], Scraper]) -> None:
        self._workers = ThreadPoolExecutor(SCRAPE_WORKERS, thread_name_prefix="gpuscope-scrape")
        self.scraper = build(self._workers)
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._thread = threading.Thread(target=self._run, name="gpuscope-scraper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self.scraper.run(self._stop))
        except Exception:
            log.exception("the scraper stopped")
        finally:
            self._loop.close()

    def stop(self) -> None:
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()
        self._workers.shutdown()


def run_server(settings: Settings) -> None:
    """Serves until SIGINT or SIGTERM."""
    _run_embedded(settings)


def _run_embedded(settings: Settings) -> None:
    web = _web(settings)
    config = read_scrape_config(settings)
    for warning in config.warnings:
        log.warning("%s", warning)
    store = open_store(settings)
    try:
        store.start()
        scraping = ScraperThread(lambda workers: Scraper(store, config, workers))
        scraper = scraping.scraper
        _reload_on_hangup(settings, scraper)
        engine = Engine(store)
        api = EmbeddedApi(store, engine, scraper, external_labels=tuple(sorted(config.external_labels.items())))
        app = build_app(
            [*api.routes(), *page_routes(LiveFleet(lambda: _live_samples(engine), "store"))],
            own_metrics=lambda: encode_text([*store_families(store.stats()), *scraper.families()]),
            ready=lambda: "",
            guard=web.guard,
        )
        scraping.start()
        try:
            serve(app, settings.listen or DEFAULT_LISTEN, web.tls)
        finally:
            scraping.stop()
    finally:
        store.close()


def _reload_on_hangup(settings: Settings, scraper: Scraper) -> None:
    def reload(number: int, frame: FrameType | None) -> None:
        try:
            config = read_scrape_config(settings)
        except UsageError as error:
            log.error("the configuration was not read again: %s; the old one stays", error)
            return
        for warning in config.warnings:
            log.warning("%s", warning)
        scraper.reload(config)
        log.info("the configuration was read again")

    signal.signal(signal.SIGHUP, reload)


async def _live_samples(engine: Engine) -> list[Sample]:
    def ask() -> list[Sample]:
        import time

        result = engine.instant(LIVE_QUERY, time.time_ns() // 1_000_000)
        assert isinstance(result, Vector)  # noqa: S101 - a selector's answer is one
        rows = zip(result.labels, result.values.tolist(), strict=True)
        return [(dict(labels)["__name__"], dict(labels), value) for labels, value in rows]

    return await asyncio.to_thread(ask)
