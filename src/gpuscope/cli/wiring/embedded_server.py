"""What `up` and `server` have in common over their own store: rules, notifications, the API, the page and the
metrics about them. Where the samples come from, and what else runs, is up to the command."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpuscope.base.settings import Settings
from gpuscope.base.time_text import duration_text
from gpuscope.cli.wiring.live_view import findings_over_time
from gpuscope.cli.wiring.login import Web, address_text
from gpuscope.cli.wiring.notifying import Notifying
from gpuscope.cli.wiring.rule_evaluation import LoadedRules, RuleEvaluation, embedded_rules
from gpuscope.cli.wiring.scheduled_threads import ScheduledThreads
from gpuscope.cli.wiring.serving import embedded_status
from gpuscope.history.engines.embedded_engine import EmbeddedEngine
from gpuscope.history.promql import Engine
from gpuscope.history.promql.budget import SamplePool
from gpuscope.history.remote_write.receiver import Receiver
from gpuscope.history.remote_write.sender import RemoteWriteQueues
from gpuscope.history.scrape.loop import LateScrapes
from gpuscope.history.store import Store
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.exposition.text import encode_text
from gpuscope.serve.api.embedded import EmbeddedApi
from gpuscope.serve.api.query_threads import QueryLog
from gpuscope.serve.api.status import ReloadStatus, Targets, reload_routes, server_route
from gpuscope.serve.api.write_route import write_route
from gpuscope.serve.app import build_app
from gpuscope.serve.exporter import limit_families
from gpuscope.serve.http.messages import Handler, Route
from gpuscope.serve.live.judging import Judging
from gpuscope.serve.live.live_fleet import LiveFleet, PushedTargets
from gpuscope.serve.own_metrics import build_families, store_families
from gpuscope.serve.page_routes import page_routes
from gpuscope.serve.reports.findings_over_time import FindingsOverTime
from gpuscope.serve.reports.report_routes import ReportThreads, report_routes

# Builds the PromQL engine with the limits of the settings, and the answer of `status/flags`.
#
# Settings that may contain a secret are not shown: a --remote-write URL can carry a password.


def build_engine(settings: Settings, store: Store) -> Engine:
    return Engine(
        store,
        lookback_ms=int(settings.query_lookback * 1000),
        max_samples=settings.query_max_samples,
        timeout_seconds=settings.query_timeout,
        max_label_bytes=settings.query_max_label_bytes,
        pool=SamplePool(settings.query_max_total_samples),
    )


def shown_flags(settings: Settings, listen: tuple[str, int]) -> dict[str, str]:
    """Settings by Prometheus' flag names, where it has one, and by ours."""
    size = settings.retention_bytes
    queries = {
        "max-samples": str(settings.query_max_samples),
        "timeout": _duration(settings.query_timeout),
        "lookback-delta": _duration(settings.query_lookback),
        "max-concurrency": str(settings.query_max_concurrency),
    }
    ours = {
        "data": settings.data,
        "listen": address_text(listen),
        "log-level": settings.log_level,
        "admin-api": str(settings.admin_api).lower(),
        "retention": _duration(settings.retention),
        "retention-bytes": "" if size is None else str(size),
        **{f"query-{name.removesuffix('-delta')}": value for name, value in queries.items()},
    }
    prometheus = {
        "config.file": settings.config,
        "log.level": {"warning": "warn"}.get(settings.log_level, settings.log_level),
        "storage.tsdb.path": settings.data,
        "storage.tsdb.retention.size": f"{size or 0}B",
        "storage.tsdb.retention.time": _duration(settings.retention),
        "web.config.file": settings.web_config_file,
        "web.enable-admin-api": str(settings.admin_api).lower(),
        "web.enable-lifecycle": "false",
        "web.enable-remote-write-receiver": "true",
        "web.listen-address": address_text(listen),
        **{f"query.{name}": value for name, value in queries.items()},
    }
    return {**prometheus, **ours}


def _duration(seconds: float) -> str:
    return duration_text(round(seconds * 1000))


@dataclass(frozen=True, slots=True)
class EmbeddedServer:
    settings: Settings
    listen: tuple[str, int]
    store: Store
    evaluator: Engine
    """For queries of clients, reports and the idle policy: they share one limit of samples."""
    rules: RuleEvaluation
    notifying: Notifying
    receiver: Receiver
    scheduled: ScheduledThreads
    live: LiveFleet
    judging: Judging
    past: FindingsOverTime
    more_families: Callable[[], Iterable[MetricFamily]]
    """Metrics of what else the command runs."""
    reloads: ReloadStatus = field(default_factory=ReloadStatus)
    started_at: float = field(default_factory=time.time)

    def own_families(self) -> list[MetricFamily]:
        stats = self.store.stats()
        return [
            *build_families(),
            *store_families(stats),
            *limit_families(self.settings, max_series=stats.max_series),
            *self.more_families(),
            *self.receiver.families(),
            *self.rules.families(),
            *self.reloads.families(self.started_at),
            *self.notifying.families(),
            *self.past.families(),
        ]

    def build_api(
        self,
        targets: Targets,
        external_labels: tuple[tuple[str, str], ...],
        query_log: QueryLog,
        scrapes: LateScrapes | None = None,
    ) -> EmbeddedApi:
        return EmbeddedApi(
            self.store,
            self.evaluator,
            targets,
            PushedTargets(self.live.newest).targets_json,
            external_labels=external_labels,
            flags=shown_flags(self.settings, self.listen),
            limits=self.settings,
            with_admin=self.settings.admin_api,
            query_log=query_log,
            rules=self.rules.view,
            reloads=self.reloads,
            started_at=self.started_at,
            scrapes=scrapes or LateScrapes(),
        )

    def build_app(
        self,
        api: EmbeddedApi,
        web: Web,
        ready: Callable[[], Awaitable[str]],
        reload: Callable[[], None],
        more_routes: Sequence[Route] = (),
    ) -> Handler:
        settings, store, evaluator = self.settings, self.store, self.evaluator
        return build_app(
            [
                *api.routes(),
                *self.notifying.routes(),
                *reload_routes(self.reloads, self.notifying.notifier, self.started_at, reload),
                write_route(self.receiver),
                *more_routes,
                *page_routes(self.live, settings, self.past.answer, grafana_url=settings.grafana_url),
                *report_routes(
                    ReportThreads(lambda: EmbeddedEngine(store, evaluator), settings),
                    settings,
                    past_windows=self.past.windows,
                ),
                *api.last_routes(),
                server_route(embedded_status(settings, store, web)),
            ],
            own_metrics=lambda: encode_text(self.own_families()),
            ready=ready,
            access=web.access,
            limits=settings,
        )


def build_embedded_server(
    settings: Settings,
    listen: tuple[str, int],
    store: Store,
    web: Web,
    loaded: LoadedRules,
    new_live: Callable[[EmbeddedEngine, Judging], LiveFleet],
    more_families: Callable[[], Iterable[MetricFamily]],
    remote_write: RemoteWriteQueues | None = None,
) -> EmbeddedServer:
    """`remote_write` gets the samples that rules record."""
    notifying = Notifying(settings, listen)
    # The page has its own engine: strict limits for clients' queries must not disable it.
    engine = EmbeddedEngine(store, Engine(store, skips_unneeded=True))
    ledger = FindingLedger(engine, offload=asyncio.to_thread, filled_until_ms=lambda: store.filled_until_ms)
    judging = Judging(engine, ledger, settings)
    live = new_live(engine, judging)
    evaluator = build_engine(settings, store)
    sinks = [notifying.notifier]
    return EmbeddedServer(
        settings,
        listen,
        store,
        evaluator,
        rules=embedded_rules(settings, listen, loaded, store, remote_write=remote_write, sinks=sinks),
        notifying=notifying,
        receiver=Receiver(store, server_limits=settings),
        scheduled=ScheduledThreads(
            settings, lambda: EmbeddedEngine(store, evaluator), notifying.notifier, web, judging, store
        ),
        live=live,
        judging=judging,
        past=findings_over_time(ledger, live, settings),
        more_families=more_families,
    )
