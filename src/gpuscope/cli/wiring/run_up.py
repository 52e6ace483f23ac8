"""Builds and runs `up`: collect on this machine or from a simulated fleet, store, and answer queries.

The port opens before a simulated history exists: a thread fills it in behind the running page.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from typing import Protocol

from gpuscope.agent.collect.collector import Collector
from gpuscope.base.clock import SystemClock
from gpuscope.base.errors import GpuscopeError
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.demo import Demo
from gpuscope.cli.wiring.embedded_server import build_embedded_server
from gpuscope.cli.wiring.heap import keep_one_heap
from gpuscope.cli.wiring.listeners import fit_limits
from gpuscope.cli.wiring.live_view import live_from_collectors
from gpuscope.cli.wiring.login import build_web
from gpuscope.cli.wiring.own_metrics_thread import OwnMetricsThread
from gpuscope.cli.wiring.rule_evaluation import load_rules, reload_rules
from gpuscope.cli.wiring.run_agent import CollectorThreads
from gpuscope.cli.wiring.serving import DEFAULT_LISTEN, open_store, serve
from gpuscope.demo.demo_routes import demo_routes
from gpuscope.demo.simulated_history import SimulatedHistory
from gpuscope.demo.simulated_node import SimulatedNode
from gpuscope.history.scrape.config import ScrapeConfig
from gpuscope.history.scrape.local_feeds import LocalTargets, OwnMetricsFeed, SnapshotFeed
from gpuscope.history.store import Store
from gpuscope.judge.checks.states import State
from gpuscope.serve.api.query_threads import QueryLog
from gpuscope.serve.http.messages import Route
from gpuscope.serve.live.live_fleet import LiveFleet

# Runs the collectors of many simulated nodes one after the other in one thread.
#
# With a thread each, a hundred collectors compete for the interpreter: some do not run for half a minute and
# look stale, and viewers wait. For simulations only: a real source may hang, and must not delay other nodes.


class RoundRobin:
    def __init__(self, collectors: Sequence[Collector], interval: float) -> None:
        self._nodes = [CollectorThreads(collector) for collector in collectors]
        self._interval = interval
        self._stop = threading.Event()
        self._cycle = threading.Thread(target=self._run, name="cycle", daemon=True)

    def start(self) -> None:
        for node in self._nodes:
            node.start_workers()
        self._cycle.start()

    def stop(self) -> None:
        self._stop.set()
        if self._cycle.is_alive():
            self._cycle.join(timeout=5.0)
        for node in self._nodes:
            node.stop()

    def _run(self) -> None:
        while not self._stop.is_set():
            began_at = time.monotonic()
            for node in self._nodes:
                if self._stop.is_set():
                    return
                node.collector.tick()
            self._stop.wait(max(0.0, began_at + self._interval - time.monotonic()))


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
    keep_one_heap()
    settings = fit_limits(settings)
    listen = settings.listen or DEFAULT_LISTEN
    web = build_web(settings, listen)
    read_rules = partial(load_rules, settings, ScrapeConfig(), with_shipped=True)
    loaded = read_rules()
    with ExitStack() as stack:  # stops in reverse order
        store = open_store(settings, simulated=bool(simulated))
        stack.callback(store.close)
        store.start()
        nodes = [
            (collector, SnapshotFeed(settings, store, collector.snapshot.node)) for collector in collectors
        ]
        history = _store_readings(nodes, simulated, store)
        server = build_embedded_server(
            settings,
            listen,
            store,
            web,
            loaded,
            partial(live_from_collectors, collectors, store, limits=settings),
            history.families if history is not None else tuple,
        )
        instance = socket.gethostname() if simulated else collectors[0].snapshot.node
        own = OwnMetricsFeed(store, instance, settings.store_interval, server.own_families, SystemClock())
        api = server.build_api(LocalTargets(nodes, own), (), QueryLog())

        def reload() -> None:
            reload_rules(read_rules, server.rules, server.reloads)
            server.notifying.reload()
            server.scheduled.reload(server.reloads)

        ready = partial(_not_ready_reason, store, collectors, server.live)
        app = server.build_app(api, web, ready, reload, more_routes)
        _start(server.notifying, stack)
        _start(_collecting(settings, collectors), stack)
        if history is not None:
            _start(HistoryThread(history), stack)
        stack.enter_context(server.rules)
        stack.enter_context(server.scheduled)
        _start(OwnMetricsThread(own), stack)
        serve(app, listen, web, settings, reload, [server.judging.run, server.past.watch])


def _store_readings(
    nodes: Sequence[tuple[Collector, SnapshotFeed]], simulated: Sequence[SimulatedNode], store: Store
) -> SimulatedHistory | None:
    """Connect each node with the store: at once, or, for a simulated one, after its history."""
    if simulated:
        feeds = [feed for _, feed in nodes]
        return SimulatedHistory(list(zip(simulated, feeds, strict=True)), store, SystemClock())
    for collector, feed in nodes:
        collector.subscribe(feed.take)
    return None


async def _not_ready_reason(store: Store, collectors: Sequence[Collector], live: LiveFleet) -> str:
    """A machine without GPUs is ready if a node that pushes has some: there is something to show."""
    if problem := store.write_problem():
        return problem
    if any(collector.snapshot.devices for collector in collectors):
        return ""
    try:
        counts = (await live.newest())["counts"]
    except GpuscopeError as error:
        return str(error)
    return "" if counts["units"] > counts["states"].get(State.GONE, 0) else "no GPU data yet"


class _Startable(Protocol):
    def start(self) -> None: ...
    def stop(self) -> None: ...


def _start(part: _Startable, stack: ExitStack) -> None:
    stack.callback(part.stop)
    part.start()


def _collecting(settings: Settings, collectors: Sequence[Collector]) -> _Startable:
    if len(collectors) == 1:
        return CollectorThreads(collectors[0])
    return RoundRobin(collectors, settings.interval)
