"""Builds and runs `server`: scrapes a fleet into a store and answers queries, or answers over another engine.

SIGHUP reloads the configuration; an invalid one is logged and the previous one stays.
"""

from __future__ import annotations

import logging
from contextlib import ExitStack
from dataclasses import dataclass

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.embedded_server import EmbeddedServer, build_embedded_server
from gpuscope.cli.wiring.heap import keep_one_heap
from gpuscope.cli.wiring.listeners import fit_limits
from gpuscope.cli.wiring.live_view import live_from_store
from gpuscope.cli.wiring.login import build_web
from gpuscope.cli.wiring.own_metrics_thread import (
    OwnMetricsThread,
    ScraperThread,
    read_scrape_config,
    server_metrics_feed,
)
from gpuscope.cli.wiring.remote_write import sending
from gpuscope.cli.wiring.rule_evaluation import load_rules
from gpuscope.cli.wiring.run_over_engine import run_over_engine
from gpuscope.cli.wiring.serving import DEFAULT_LISTEN, open_store, serve
from gpuscope.history.remote_write.sender import RemoteWriteQueues, build_queues
from gpuscope.history.scrape.config import ScrapeConfig
from gpuscope.history.scrape.local_feeds import ScrapedAndOwnTargets
from gpuscope.history.scrape.scraper import Scraper
from gpuscope.history.store import Store
from gpuscope.serve.api.query_threads import QueryLog

log = logging.getLogger("gpuscope")


def run_server(settings: Settings) -> None:
    """Serves until SIGINT or SIGTERM."""
    keep_one_heap()
    settings = fit_limits(settings)
    if settings.store:
        run_over_engine(settings)
    else:
        _run_embedded(settings)


def _run_embedded(settings: Settings) -> None:
    listen = settings.listen or DEFAULT_LISTEN
    web = build_web(settings, listen)
    config = read_scrape_config(settings)
    _warn(config)
    loaded = load_rules(settings, config)
    remote_write = [(endpoint.url, endpoint.http) for endpoint in config.remote_write]
    queues = build_queues(settings, config.external_labels, remote_write)
    query_log = QueryLog(settings.query_log_max_bytes)
    query_log.open(config.query_log_file)
    with ExitStack() as stack:  # stops in reverse order
        store = open_store(settings)
        stack.callback(store.close)
        store.set_out_of_order(int(config.out_of_order_seconds * 1000))
        store.start()
        scraping = _build_scraper(settings, config, store, queues)
        scraper = scraping.scraper
        server = build_embedded_server(
            settings,
            listen,
            store,
            web,
            loaded,
            lambda engine, judging: live_from_store(store, engine, judging, scraper, settings),
            lambda: (*scraper.families(), *(queues.families() if queues else ())),
            remote_write=queues,
        )
        own = server_metrics_feed(
            store, settings, listen, server.own_families, server.rules.view.groups, scraper
        )
        external_labels = tuple(sorted(config.external_labels.items()))
        targets = ScrapedAndOwnTargets(scraper, own)
        api = server.build_api(targets, external_labels, query_log, scraper.counts.late)
        reload = _ConfigReload(server, scraper, query_log, config)
        # Senders stop last, so that the last samples and alerts are sent.
        stack.enter_context(sending(queues))
        for part in (server.notifying, scraping, server.rules, server.scheduled, OwnMetricsThread(own)):
            stack.enter_context(part)

        async def ready() -> str:
            return store.write_problem()

        app = server.build_app(api, web, ready, reload.run)
        serve(app, listen, web, settings, reload.run, [server.judging.run, server.past.watch])


def _build_scraper(
    settings: Settings, config: ScrapeConfig, store: Store, queues: RemoteWriteQueues | None
) -> ScraperThread:
    return ScraperThread(
        lambda workers: Scraper(
            store,
            config,
            workers,
            sink=queues,
            reload_config=lambda: read_scrape_config(settings),
            limits=settings,
        )
    )


@dataclass(frozen=True, slots=True)
class _ConfigReload:
    server: EmbeddedServer
    scraper: Scraper
    query_log: QueryLog
    started_with: ScrapeConfig

    def run(self) -> None:
        self._reload_config()
        self.server.notifying.reload()
        self.server.scheduled.reload(self.server.reloads)

    def _reload_config(self) -> None:
        """Read configuration and rule files again; one mistake in any of them leaves everything as it is."""
        status = self.server.reloads
        try:
            config = read_scrape_config(self.server.settings)
            loaded = load_rules(self.server.settings, config)
            self.query_log.open(config.query_log_file)
        except UsageError as error:
            status.failed(str(error))
            log.error("the configuration was not reloaded, the previous one stays: %s", error)
            return
        _warn(config)
        fixed = [
            (file.external_labels, [to.url for to in file.remote_write]) for file in (config, self.started_with)
        ]
        if fixed[0] != fixed[1]:
            log.warning("remote_write has changed, or its external_labels; this takes effect after a restart")
        self.server.store.set_out_of_order(int(config.out_of_order_seconds * 1000))
        self.scraper.reload(config)
        self.server.rules.reload(loaded)
        status.succeeded()
        log.info("the configuration was reloaded")


def _warn(config: ScrapeConfig) -> None:
    for warning in config.warnings:
        log.warning("%s", warning)
