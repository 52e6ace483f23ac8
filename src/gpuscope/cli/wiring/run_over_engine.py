"""Builds and runs `server --store`: the page, the API and alerting rules over the samples of another engine.

That engine scrapes and keeps the samples. It may be unreachable at any time: the page then says so.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field

from gpuscope.base.errors import UsageError
from gpuscope.base.http_config import HttpConfig, load_http_config, split_credentials
from gpuscope.base.settings import Settings, home_file
from gpuscope.cli.wiring.live_view import findings_over_time, live_from_engine
from gpuscope.cli.wiring.login import Web, build_web
from gpuscope.cli.wiring.notifying import Notifying
from gpuscope.cli.wiring.own_metrics_thread import read_scrape_config
from gpuscope.cli.wiring.rule_evaluation import RuleEvaluation, engine_rules, load_engine_rules, reload_rules
from gpuscope.cli.wiring.scheduled_threads import ScheduledThreads
from gpuscope.cli.wiring.serving import DEFAULT_LISTEN, serve
from gpuscope.history.engines.answer_text import AnswerMemory
from gpuscope.history.engines.http_connection import EngineConnection
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.scrape.config import ScrapeConfig
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.exposition.text import encode_text
from gpuscope.serve.api.proxy import EngineStats, ProxyApi
from gpuscope.serve.api.rule_routes import rule_routes
from gpuscope.serve.api.status import ReloadStatus, engine_status, reload_routes, server_route
from gpuscope.serve.app import build_app
from gpuscope.serve.exporter import limit_families
from gpuscope.serve.http.messages import Handler
from gpuscope.serve.live.judging import Judging
from gpuscope.serve.live.live_fleet import LiveFleet
from gpuscope.serve.own_metrics import build_families, engine_families
from gpuscope.serve.page_routes import page_routes
from gpuscope.serve.reports.findings_over_time import FindingsOverTime
from gpuscope.serve.reports.report_routes import ReportThreads, report_routes

log = logging.getLogger("gpuscope")

TENANT_HEADERS = ("X-Scope-OrgID", "THANOS-TENANT")
"""The header of Mimir and Cortex, and that of Thanos; each ignores the other one."""


def run_over_engine(settings: Settings) -> None:
    for name in ("targets", "remote_write"):
        if getattr(settings, name):
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} with --store: that engine scrapes and keeps the data; give only one")
    config = read_scrape_config(settings)
    _warn_of_unused(settings, config)
    listen = settings.listen or DEFAULT_LISTEN
    web = build_web(settings, listen)
    engines = _Engines(settings)
    engine = engines.new()
    notifying = Notifying(settings, listen)
    rules = _rules_over_engine(engines, config, listen, notifying)
    ledger = FindingLedger(engine, offload=asyncio.to_thread)
    judging = Judging(engine, ledger, settings)
    live = live_from_engine(engine, judging, settings)
    parts = _Parts(engines, engine, notifying, rules, live, findings_over_time(ledger, live, settings))
    # An engine that is unreachable or refuses us is logged at the start, not at the first request.
    threading.Thread(target=_check_once, args=(engines,), daemon=True).start()
    scheduled = ScheduledThreads(settings, engines.new_for_report, notifying.notifier, web, judging)

    def reload() -> None:
        if rules is not None:
            reload_rules(
                lambda: load_engine_rules(settings, read_scrape_config(settings)), rules, parts.reloads
            )
        notifying.reload()
        scheduled.reload(parts.reloads)

    with notifying, rules or nullcontext(), scheduled:
        serve(_build_app(parts, web, reload), listen, web, settings, reload, [judging.run, parts.past.watch])


class _Engines:
    """Makes one `HttpEngine` for each thread: a connection belongs to one event loop."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.stats = EngineStats()
        self._memory = AnswerMemory(settings.engine_max_answers_bytes)

    def new(self, *, holds_memory: bool = False) -> HttpEngine:
        connection = build_engine_connection(self.settings, self.stats, self._memory)
        return HttpEngine(connection, self.settings.query_max_samples, holds_memory=holds_memory)

    def new_for_report(self) -> HttpEngine:
        """A report works on each result for seconds, and is closed at its end."""
        return self.new(holds_memory=True)


@dataclass(frozen=True, slots=True)
class _Parts:
    """What runs here, and the metrics about it."""

    engines: _Engines
    engine: HttpEngine
    notifying: Notifying
    rules: RuleEvaluation | None
    live: LiveFleet
    past: FindingsOverTime
    reloads: ReloadStatus = field(default_factory=ReloadStatus)
    started_at: float = field(default_factory=time.time)

    def own_families(self) -> list[MetricFamily]:
        return [
            *build_families(),
            *engine_families(self.engines.stats),
            *limit_families(self.engines.settings),
            *(self.rules.families() if self.rules is not None else ()),
            *self.reloads.families(self.started_at),
            *self.notifying.families(),
            *self.past.families(),
        ]


def _build_app(parts: _Parts, web: Web, reload: Callable[[], None]) -> Handler:
    settings = parts.engines.settings
    has_login = web.access.authenticator is not None
    return build_app(
        [
            *(rule_routes(parts.rules.view, settings) if parts.rules is not None else ()),
            *ProxyApi(parts.engine.connection).routes(),
            *parts.notifying.routes(),
            *reload_routes(parts.reloads, parts.notifying.notifier, parts.started_at, reload),
            *report_routes(
                ReportThreads(parts.engines.new_for_report, settings),
                settings,
                past_windows=parts.past.windows,
            ),
            *page_routes(parts.live, settings, parts.past.answer, grafana_url=settings.grafana_url),
            server_route(engine_status(parts.engine.name, has_login=has_login)),
        ],
        own_metrics=lambda: encode_text(parts.own_families()),
        access=web.access,
        limits=settings,
    )


def _warn_of_unused(settings: Settings, config: ScrapeConfig) -> None:
    unused = [
        name
        for name, value in (("scrape_configs", config.jobs), ("remote_write", config.remote_write))
        if value
    ]
    if unused:
        log.warning(
            "%s: %s not used: the engine at %s scrapes; rule files and Alertmanagers are",
            settings.config,
            " and ".join(unused),
            settings.store,
        )


def _rules_over_engine(
    engines: _Engines,
    config: ScrapeConfig,
    listen: tuple[str, int],
    notifying: Notifying,
) -> RuleEvaluation | None:
    """None without rule files: the engine's own rules are shown then."""
    settings = engines.settings
    if not settings.rules and not config.rule_files:
        return None
    return engine_rules(settings, listen, engines.new, config, [notifying.notifier])


def _check_once(engines: _Engines) -> None:
    async def check() -> None:
        engine = engines.new()
        await engine.find_problem()  # `stats` logs and counts it
        await engine.close()

    asyncio.run(check())


def build_engine_connection(
    settings: Settings, stats: EngineStats, memory: AnswerMemory | None = None
) -> EngineConnection:
    """To the engine of `--store`."""
    http = HttpConfig()
    if settings.store_http_config:
        http = load_http_config(home_file(settings.store_http_config, "store_http_config"))
    if settings.store_tenant:
        if not settings.store_tenant.isprintable() or not settings.store_tenant.isascii():
            raise UsageError(f"--store-tenant {settings.store_tenant!r}: cannot be sent in a header")
        http = http.with_headers(*((name, settings.store_tenant) for name in TENANT_HEADERS))
    url, http = split_credentials(settings.store, http, f"--store {settings.store}")
    return EngineConnection(
        url.partition("?")[0].rstrip("/"),
        http,
        stats,
        max_response_bytes=settings.engine_max_response_bytes,
        memory=memory or AnswerMemory(settings.engine_max_answers_bytes),
    )
