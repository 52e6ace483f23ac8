"""Builds and runs `server`: scrapes a fleet into a store and answers queries, or answers over another engine.

Scraping has its own thread and event loop, so that neither a slow query nor a busy page delays a scrape. SIGHUP
reloads the configuration; an invalid one is logged and the previous one stays.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass

from gpuscope.engines.embedded_engine import EmbeddedEngine
from gpuscope.engines.http_connection import EngineConnection
from gpuscope.engines.http_engine import HttpEngine
from gpuscope.errors import UsageError
from gpuscope.exposition.text import encode_text
from gpuscope.promql import Engine
from gpuscope.remote_write.queues import build_queues
from gpuscope.remote_write.receiver import Receiver
from gpuscope.scrape.config import ScrapeConfig, load_config, simple_config
from gpuscope.scrape.discovery import targets_from_argument
from gpuscope.scrape.http_config import HttpConfig, load_http_config, split_credentials
from gpuscope.scrape.scraper import Scraper
from gpuscope.server.api.embedded import EmbeddedApi
from gpuscope.server.api.engine_stats import EngineStats
from gpuscope.server.api.proxy import ProxyApi
from gpuscope.server.api.query_log import QueryLog
from gpuscope.server.api.rule_routes import rule_routes
from gpuscope.server.api.write_route import write_route
from gpuscope.server.app import build_app
from gpuscope.server.limit_metrics import limit_families
from gpuscope.server.own_metrics import build_families, engine_families, store_families
from gpuscope.server.page_routes import page_routes
from gpuscope.server.reload_status import ReloadStatus
from gpuscope.settings import Settings, home_path
from gpuscope.store import Store
from gpuscope.wiring.listeners import fit_limits
from gpuscope.wiring.live_view import live_from_engine, live_from_store
from gpuscope.wiring.login import build_web
from gpuscope.wiring.notifying import Notifying
from gpuscope.wiring.querying import build_engine, shown_flags
from gpuscope.wiring.remote_write import sending
from gpuscope.wiring.rule_evaluation import (
    RuleEvaluation,
    embedded_rules,
    engine_rules,
    load_engine_rules,
    load_rules,
)
from gpuscope.wiring.serving import DEFAULT_LISTEN, open_store, serve

log = logging.getLogger("gpuscope")

SCRAPE_WORKERS = 4
TENANT_HEADERS = ("X-Scope-OrgID", "THANOS-TENANT")
"""The header of Mimir and Cortex, and that of Thanos; each ignores the other one."""


def read_scrape_config(settings: Settings) -> ScrapeConfig:
    """From --config, --targets, or neither: a server may receive remote write only."""
    if settings.config and settings.targets:
        raise UsageError(
            "--config and --targets: give only one of them; the configuration file can list targets too"
        )
    if settings.config:
        return load_config(home_path(settings.config, "config"), settings)
    if settings.targets:
        return simple_config(*targets_from_argument(settings.targets), settings.scrape_interval, settings)
    return ScrapeConfig()


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


def run_server(settings: Settings) -> None:
    """Serves until SIGINT or SIGTERM."""
    settings = fit_limits(settings)
    if settings.store:
        _run_over_engine(settings)
    else:
        _run_embedded(settings)


def _run_embedded(settings: Settings) -> None:
    listen = settings.listen or DEFAULT_LISTEN
    web = build_web(settings, listen)
    config = read_scrape_config(settings)
    _warn(config)
    loaded = load_rules(settings, config)
    reloads = ReloadStatus()
    queues = build_queues(
        settings, config.external_labels, [(one.url, one.http) for one in config.remote_write]
    )
    query_log = QueryLog(settings.query_log_max_bytes)
    query_log.open(config.query_log_file)
    store = open_store(settings)
    store.set_out_of_order(int(config.out_of_order_seconds * 1000))
    try:
        store.start()
        scraping = ScraperThread(
            lambda workers: Scraper(
                store,
                config,
                workers,
                sink=queues,
                reload_config=lambda: read_scrape_config(settings),
                limits=settings,
            )
        )
        scraper, receiver = scraping.scraper, Receiver(store, server_limits=settings)
        notifying = Notifying(settings, listen)
        rules = embedded_rules(settings, listen, loaded, store, remote_write=queues, sinks=[notifying.notifier])
        api = EmbeddedApi(
            store,
            build_engine(settings, store),
            scraper,
            external_labels=tuple(sorted(config.external_labels.items())),
            flags=shown_flags(settings, listen),
            limits=settings,
            with_admin=settings.admin_api,
            query_log=query_log,
            rules=rules.view,
            reloads=reloads,
        )
        # The live view has default limits: strict limits for clients must not disable it.
        live = live_from_store(EmbeddedEngine(store, Engine(store)), scraper)
        app = build_app(
            [
                *api.routes(),
                *notifying.routes(),
                write_route(receiver),
                *api.last_routes(),
                *page_routes(live),
            ],
            own_metrics=lambda: encode_text(
                [
                    *build_families(),
                    *store_families(stats := store.stats()),
                    *limit_families(settings, max_series=stats.max_series),
                    *scraper.families(),
                    *receiver.families(),
                    *(queues.families() if queues else ()),
                    *rules.families(),
                    *reloads.families(api.started_at),
                    *notifying.families(),
                ]
            ),
            ready=store.trouble,
            access=web.access,
        )
        reload = _Reload(settings, store, scraper, query_log, rules, config, reloads)

        def reload_everything() -> None:
            reload.run()
            notifying.reload()

        # Senders stop last, so that the last samples and alerts are sent.
        with sending(queues), notifying, scraping, rules:
            serve(app, listen, web, settings, reload_everything)
    finally:
        store.close()


def _warn(config: ScrapeConfig) -> None:
    for warning in config.warnings:
        log.warning("%s", warning)


@dataclass(frozen=True, slots=True)
class _Reload:
    """Reads configuration and rule files again; one mistake in any of them leaves everything as it is."""

    settings: Settings
    store: Store
    scraper: Scraper
    query_log: QueryLog
    rules: RuleEvaluation
    started_with: ScrapeConfig
    status: ReloadStatus

    def run(self) -> None:
        try:
            config = read_scrape_config(self.settings)
            loaded = load_rules(self.settings, config)
            self.query_log.open(config.query_log_file)
        except UsageError as error:
            self.status.failed(str(error))
            log.error("the configuration was not reloaded, the previous one stays: %s", error)
            return
        _warn(config)
        fixed = [
            (one.external_labels, [to.url for to in one.remote_write]) for one in (config, self.started_with)
        ]
        if fixed[0] != fixed[1]:
            log.warning("remote_write has changed, or its external_labels; this takes effect after a restart")
        self.store.set_out_of_order(int(config.out_of_order_seconds * 1000))
        self.scraper.reload(config)
        self.rules.reload(loaded)
        self.status.succeeded()
        log.info("the configuration was reloaded")


def _run_over_engine(settings: Settings) -> None:
    for name in ("config", "targets", "remote_write"):
        if getattr(settings, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} with --store: that engine scrapes and keeps the data; give only one")
    listen = settings.listen or DEFAULT_LISTEN
    web = build_web(settings, listen)
    stats = EngineStats()
    connection = build_engine_connection(settings, stats)
    engine = HttpEngine(connection, settings.query_max_samples)
    notifying = Notifying(settings, listen)
    rules = _rules_over_engine(settings, listen, stats, notifying)
    reloads, started_at = ReloadStatus(), time.time()
    app = build_app(
        [
            *(rule_routes(rules.view, settings) if rules is not None else ()),
            *ProxyApi(connection).routes(),
            *notifying.routes(),
            *page_routes(live_from_engine(engine)),
        ],
        own_metrics=lambda: encode_text(
            [
                *build_families(),
                *engine_families(stats),
                *limit_families(settings),
                *(rules.families() if rules is not None else ()),
                *reloads.families(started_at),
                *notifying.families(),
            ]
        ),
        ready=lambda: "",
        access=web.access,
    )
    # An engine that is unreachable or refuses us is logged at the start, not at the first request.
    threading.Thread(target=_check_once, args=(settings, stats), daemon=True).start()

    def reload() -> None:
        if rules is not None:
            _reload_engine_rules(settings, rules, reloads)
        notifying.reload()

    with notifying, rules or nullcontext():
        serve(app, listen, web, settings, reload)


def _rules_over_engine(
    settings: Settings, listen: tuple[str, int], stats: EngineStats, notifying: Notifying
) -> RuleEvaluation | None:
    """None without --rules: the engine's own rules are shown then."""
    if not settings.rules:
        return None
    # A connection belongs to one event loop, and rules have their own.
    engine = HttpEngine(build_engine_connection(settings, stats), settings.query_max_samples)
    return engine_rules(settings, listen, engine, [notifying.notifier])


def _reload_engine_rules(settings: Settings, rules: RuleEvaluation, status: ReloadStatus) -> None:
    try:
        loaded = load_engine_rules(settings)
    except UsageError as error:
        status.failed(str(error))
        log.error("the rules were not reloaded, the previous ones stay: %s", error)
        return
    rules.reload(loaded)
    status.succeeded()
    log.info("the rules were reloaded")


def _check_once(settings: Settings, stats: EngineStats) -> None:
    async def check() -> None:
        engine = HttpEngine(build_engine_connection(settings, stats))  # a connection belongs to one event loop
        await engine.find_trouble()  # `stats` logs and counts it
        await engine.close()

    asyncio.run(check())


def build_engine_connection(settings: Settings, stats: EngineStats) -> EngineConnection:
    """To the engine of `--store`."""
    http = HttpConfig()
    if settings.store_http_config:
        http = load_http_config(home_path(settings.store_http_config, "store_http_config"))
    if settings.store_tenant:
        if not settings.store_tenant.isprintable() or not settings.store_tenant.isascii():
            raise UsageError(f"--store-tenant {settings.store_tenant!r}: cannot be sent in a header")
        http = http.with_headers(*((name, settings.store_tenant) for name in TENANT_HEADERS))
    url, http = split_credentials(settings.store, http, f"--store {settings.store}")
    return EngineConnection(
        url.partition("?")[0].rstrip("/"), http, stats, max_answer_bytes=settings.engine_max_answer_bytes
    )
