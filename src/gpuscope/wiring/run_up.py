"""Builds and runs `up`: collect on this machine or from a simulated fleet, store, and answer queries.

The port opens before a simulated history exists: a thread fills it in behind the running page.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import ExitStack

from gpuscope.clock import SystemClock
from gpuscope.collect.collector import Collector
from gpuscope.collect.simulated_node import SimulatedNode
from gpuscope.engines.embedded_engine import EmbeddedEngine
from gpuscope.errors import UsageError
from gpuscope.exposition.text import encode_text
from gpuscope.promql import Engine
from gpuscope.remote_write.receiver import Receiver
from gpuscope.scrape.config import ScrapeConfig
from gpuscope.scrape.local_targets import LocalTargets
from gpuscope.scrape.simulated_history import SimulatedHistory
from gpuscope.scrape.snapshot_feed import SnapshotFeed
from gpuscope.server.api.embedded import EmbeddedApi
from gpuscope.server.api.write_route import write_route
from gpuscope.server.app import build_app
from gpuscope.server.demo_routes import demo_routes
from gpuscope.server.http.messages import Handler
from gpuscope.server.http.routing import Route
from gpuscope.server.limit_metrics import limit_families
from gpuscope.server.own_metrics import build_families, store_families
from gpuscope.server.page_routes import page_routes
from gpuscope.server.reload_status import ReloadStatus
from gpuscope.settings import Settings
from gpuscope.store import Store
from gpuscope.wiring.demo import Demo
from gpuscope.wiring.listeners import fit_limits
from gpuscope.wiring.live_view import live_from_collectors
from gpuscope.wiring.login import Web, build_web
from gpuscope.wiring.notifying import Notifying
from gpuscope.wiring.querying import build_engine, shown_flags
from gpuscope.wiring.round_robin import RoundRobin
from gpuscope.wiring.rule_evaluation import RuleEvaluation, embedded_rules, load_rules
from gpuscope.wiring.run_agent import CollectorThreads
from gpuscope.wiring.serving import DEFAULT_LISTEN, open_store, serve

log = logging.getLogger("gpuscope")


class HistoryThread:
    """The thread that fills in a simulated history."""

    def __init__(self, history: SimulatedHistory) -> None:
        self._stop = threading.Event()
        self._thread = threading.Thread(
            target=history.run, args=(self._stop,), name="gpuscope-history", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


def run_up(settings: Settings, collectors: Sequence[Collector]) -> None:
    """Collects, stores and serves until SIGINT or SIGTERM."""
    _run(settings, collectors, ())


def run_demo(settings: Settings, demo: Demo) -> None:
    """As `run_up`, with a simulated fleet and its past."""
    routes = demo_routes(demo.fleet, SystemClock())
    _run(settings, demo.collectors, demo.nodes, routes)


def _run(
    settings: Settings,
    collectors: Sequence[Collector],
    simulated: Sequence[SimulatedNode],
    more_routes: Sequence[Route] = (),
) -> None:
    settings = fit_limits(settings)
    listen = settings.listen or DEFAULT_LISTEN
    web = build_web(settings, listen)
    loaded = load_rules(settings, ScrapeConfig())
    with ExitStack() as stack:  # stops in reverse order
        store = open_store(settings, simulated=bool(simulated))
        stack.callback(store.close)
        store.start()
        feeds = [SnapshotFeed(settings, store, collector.snapshot.node) for collector in collectors]
        history = None
        if simulated:
            history = SimulatedHistory(list(zip(simulated, feeds, strict=True)), store, SystemClock())
        else:
            for collector, feed in zip(collectors, feeds, strict=True):
                collector.subscribe(feed.take)
        reloads = ReloadStatus()
        notifying = Notifying(settings, listen)
        stack.callback(notifying.stop)
        rules = embedded_rules(settings, listen, loaded, store, sinks=[notifying.notifier])
        nodes = list(zip(collectors, feeds, strict=True))
        app = _build_app(settings, listen, web, store, nodes, history, rules, reloads, notifying, more_routes)
        running = (
            CollectorThreads(collectors[0])
            if len(collectors) == 1
            else RoundRobin(collectors, settings.interval)
        )
        stack.callback(running.stop)
        running.start()
        if history is not None:
            filling = HistoryThread(history)
            stack.callback(filling.stop)
            filling.start()
        notifying.start()
        stack.enter_context(rules)

        def reload() -> None:
            _reload_rules(settings, rules, reloads)
            notifying.reload()

        serve(app, listen, web, settings, reload)


def _reload_rules(settings: Settings, rules: RuleEvaluation, status: ReloadStatus) -> None:
    try:
        loaded = load_rules(settings, ScrapeConfig())
    except UsageError as error:
        status.failed(str(error))
        log.error("the rules were not reloaded, the previous ones stay: %s", error)
        return
    rules.reload(loaded)
    status.succeeded()
    log.info("the rules were reloaded")


def _build_app(
    settings: Settings,
    listen: tuple[str, int],
    web: Web,
    store: Store,
    nodes: Sequence[tuple[Collector, SnapshotFeed]],
    history: SimulatedHistory | None,
    rules: RuleEvaluation,
    reloads: ReloadStatus,
    notifying: Notifying,
    more_routes: Sequence[Route],
) -> Handler:
    api = EmbeddedApi(
        store,
        build_engine(settings, store),
        LocalTargets(nodes),
        flags=shown_flags(settings, listen),
        limits=settings,
        with_admin=settings.admin_api,
        rules=rules.view,
        reloads=reloads,
    )
    receiver = Receiver(store, server_limits=settings)
    collectors = [collector for collector, _ in nodes]
    # An engine of its own: limits that are set for clients' queries must not blind the page.
    live = live_from_collectors(collectors, EmbeddedEngine(store, Engine(store)))
    return build_app(
        [
            *api.routes(),
            *notifying.routes(),
            write_route(receiver),
            *more_routes,
            *api.last_routes(),
            *page_routes(live),
        ],
        own_metrics=lambda: encode_text(
            [
                *build_families(),
                *store_families(stats := store.stats()),
                *limit_families(settings, max_series=stats.max_series),
                *receiver.families(),
                *(history.families() if history else ()),
                *rules.families(),
                *reloads.families(api.started_at),
                *notifying.families(),
            ]
        ),
        ready=lambda: (
            store.trouble()
            or ("" if any(collector.snapshot.devices for collector in collectors) else "no GPU data yet")
        ),
        access=web.access,
    )
