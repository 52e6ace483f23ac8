"""The thread that stores the server's own metrics, and the rule by which `gpuscope server` stores them."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence

from gpuscope.base.clock import SystemClock
from gpuscope.base.settings import Settings
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
