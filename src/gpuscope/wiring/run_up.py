"""Builds and runs `up`: collects on this machine, keeps it, and answers about it."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from gpuscope.collect.collector import Collector
from gpuscope.exposition.text import encode_text
from gpuscope.metrics.families import Builder, load_family
from gpuscope.promql import Engine
from gpuscope.readings import Snapshot
from gpuscope.remote_write.receiver import Receiver
from gpuscope.rfc3339 import to_rfc3339
from gpuscope.scrape.local import LocalIngester
from gpuscope.server.api.embedded import EmbeddedApi
from gpuscope.server.api.write_route import write_route
from gpuscope.server.app import build_app
from gpuscope.server.limit_metrics import limit_families
from gpuscope.server.own_metrics import build_families, store_families
from gpuscope.server.page_routes import page_routes
from gpuscope.settings import Settings
from gpuscope.store import Appended, Store, StoreError
from gpuscope.wiring.listeners import fit_limits
from gpuscope.wiring.live_view import live_from_collectors
from gpuscope.wiring.login import build_web
from gpuscope.wiring.querying import build_engine, shown_flags
from gpuscope.wiring.round_robin import RunningInTurns
from gpuscope.wiring.run_agent import Running
from gpuscope.wiring.serving import DEFAULT_LISTEN, open_store, serve

if TYPE_CHECKING:
    from gpuscope.wiring.demo import Demo

log = logging.getLogger("gpuscope")

STORED_FAMILIES = ("native", "host")
HISTORY_SECONDS = 6 * 3600
HISTORY_STEP_SECONDS = 60


class Feed:
    """Stores one node's snapshots every `store_interval`; a failing store costs history, not the live view."""

    def __init__(self, settings: Settings, store: Store, node: str) -> None:
        self._builders: list[Builder] = [load_family(name).build(settings) for name in STORED_FAMILIES]
        self._every = settings.store_interval
        self._next_at = 0.0
        self._trouble = ""
        self._storing: Future[Appended] | None = None
        self.target = LocalIngester(store, {"job": "gpuscope", "instance": node})

    def take(self, snapshot: Snapshot) -> None:
        # Half a second of tolerance: snapshots come on a beat of their own.
        if snapshot.taken_at < self._next_at - 0.5:
            return
        self._next_at = snapshot.taken_at + self._every
        # The one before is waited for, not this one: a disk that is slow to confirm holds up no reading.
        storing, self._storing = self._storing, None
        try:
            if storing is not None:
                storing.result()
                if self._trouble:
                    log.info("history is stored again")
                self._trouble = ""
            self._storing = self.submit(snapshot)
        except StoreError as error:
            if str(error) != self._trouble:
                log.error("history is not stored: %s", error)
            self._trouble = str(error)

    def submit(self, snapshot: Snapshot) -> Future[Appended]:
        families = [family for builder in self._builders for family in builder.to_families(snapshot)]
        return self.target.submit(families, int(snapshot.taken_at * 1000))


def fill_with_history(demo: Demo, settings: Settings, store: Store) -> None:
    """Six hours of a simulated fleet's past into an empty store, with a line of progress for whoever waits."""
    if store.stats().newest_ms is not None:
        return
    started = time.monotonic()
    end = int(time.time()) // HISTORY_STEP_SECONDS * HISTORY_STEP_SECONDS
    times = range(end - HISTORY_SECONDS, end, HISTORY_STEP_SECONDS)
    names = demo.fleet.node_names
    for index, name in enumerate(names):
        feed = Feed(settings, store, name)
        for done, snapshot in enumerate(demo.past(index, times), 1):
            stored = feed.submit(snapshot)  # not waited for one by one: many ticks share a commit
            _show_progress(index * len(times) + done, len(times) * len(names))
        stored.result()
    log.info("filled with 6 h of simulated history in %.1f s", time.monotonic() - started)


def _show_progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 20 == 0 or done == total):
        end = "\n" if done == total else ""
        sys.stderr.write(f"\rsimulating 6 h of history: {100 * done // total:3d} %{end}")
        sys.stderr.flush()


class LocalTargets:
    """The API's view of the nodes this process collects from itself."""

    def __init__(self, feeds: Sequence[tuple[Collector, Feed]]) -> None:
        self._feeds = feeds

    def targets_json(self, state: str) -> dict[str, Any]:
        active = [self._target(collector) for collector, _ in self._feeds] if state != "dropped" else []
        return {"activeTargets": active, "droppedTargets": [], "droppedTargetCounts": {}}

    def _target(self, collector: Collector) -> dict[str, Any]:
        snapshot = collector.snapshot
        troubles = [f"{status.name}: {status.why}" for status in snapshot.sources if not status.up]
        labels = {"job": "gpuscope", "instance": snapshot.node}
        return {
            "discoveredLabels": labels,
            "labels": labels,
            "scrapePool": "gpuscope",
            "scrapeUrl": "",
            "globalUrl": "",
            "lastError": "; ".join(troubles),
            "lastScrape": to_rfc3339(snapshot.taken_at),
            "lastScrapeDuration": 0,
            "health": "up" if snapshot.devices else "unknown",
            "scrapeInterval": "5s",
            "scrapeTimeout": "5s",
        }

    def metadata(self) -> dict[str, list[dict[str, str]]]:
        merged: dict[str, list[dict[str, str]]] = {}
        for _, feed in self._feeds:
            merged |= feed.target.metadata()
        return merged

    def target_metadata(self) -> Iterator[tuple[dict[str, str], dict[str, dict[str, str]]]]:
        for collector, feed in self._feeds:
            labels = {"job": "gpuscope", "instance": collector.snapshot.node}
            yield labels, {name: one[0] for name, one in feed.target.metadata().items()}

    def config_text(self) -> str:
        return ""


def run_up(settings: Settings, collectors: Sequence[Collector], prepare: Callable[[Store], None]) -> None:
    """Collects, stores and serves until SIGINT or SIGTERM. `prepare` may fill an empty store first."""
    settings = fit_limits(settings)
    listen = settings.listen or DEFAULT_LISTEN
    web = build_web(settings, listen)
    store = open_store(settings, simulated=settings.source == "demo")
    try:
        feeds = [(collector, Feed(settings, store, collector.snapshot.node)) for collector in collectors]
        store.start()
        prepare(store)
        for collector, feed in feeds:
            collector.subscribe(feed.take)
        api = EmbeddedApi(
            store,
            build_engine(settings, store),
            LocalTargets(feeds),
            flags=shown_flags(settings, listen),
            limits=settings,
            with_admin=settings.admin_api,
        )
        receiver = Receiver(store, server_limits=settings)
        # The page's own question is not a client's: limits set for those must not blind it.
        live = live_from_collectors(collectors, Engine(store))
        app = build_app(
            [*api.routes(), write_route(receiver), *api.last_routes(), *page_routes(live)],
            own_metrics=lambda: encode_text(
                [
                    *build_families(),
                    *store_families(stats := store.stats()),
                    *limit_families(settings, max_series=stats.max_series),
                    *receiver.families(),
                ]
            ),
            ready=lambda: (
                store.trouble() or ("" if any(c.snapshot.devices for c, _ in feeds) else "no GPU data yet")
            ),
            access=web.access,
        )
        running = (
            Running(collectors[0]) if len(collectors) == 1 else RunningInTurns(collectors, settings.interval)
        )
        running.start()
        try:
            serve(app, listen, web, settings)
        finally:
            running.stop()
    finally:
        store.close()
