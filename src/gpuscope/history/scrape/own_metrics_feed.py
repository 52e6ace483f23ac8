"""Stores this process' own metrics, as a scrape of its `/metrics` would: so rules about them work.

Input: the metric families of `/metrics`. Output: while `is_wanted`, their samples and staleness markers in the
store. They have no `up`, because this is no target of the configuration: `count(up)` must be what a Prometheus
with the same file has. A store that fails costs these samples only; the log has when that begins and ends.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from gpuscope.base.clock import Clock
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.history.scrape.local import LocalIngester
from gpuscope.history.store import Store, StoreError
from gpuscope.model.exposition.sample import MetricFamily

log = logging.getLogger("gpuscope")

OWN_JOB = "gpuscope-server"
MIN_INTERVAL_SECONDS = 15.0
"""Nothing here changes faster than rules are evaluated."""


class OwnMetricsFeed:
    def __init__(
        self,
        store: Store,
        instance: str,
        interval_seconds: float,
        families: Callable[[], Iterable[MetricFamily]],
        clock: Clock,
        is_wanted: Callable[[], bool] = lambda: True,
    ) -> None:
        self.interval_seconds = max(interval_seconds, MIN_INTERVAL_SECONDS)
        self.labels: Mapping[str, str] = {"job": OWN_JOB, "instance": instance}
        self.target = LocalIngester(store, self.labels, has_reports=False)
        self._store = store
        self.stored_at = 0.0
        """Of the last samples; 0 before the first ones, and while they are not wanted."""
        self._is_wanted = is_wanted
        self._families = families
        self._clock = clock
        self._episode = EpisodeLog(log, "storing own metrics")

    def store_now(self) -> None:
        now = self._clock.now()
        if not self._is_wanted():
            self._end(int(now * 1000))
            return
        try:
            self.target.submit(self._families(), int(now * 1000)).result()
        except StoreError as error:
            self._episode.failed(str(error))
        else:
            self.stored_at = now
            self._episode.succeeded()

    def _end(self, at_ms: int) -> None:
        """Marks the series as stale: from now on another scrape stores them, or nobody needs them."""
        if self.stored_at:
            self.stored_at = 0.0
            self.target.close(at_ms)
            self.target = LocalIngester(self._store, self.labels, has_reports=False)
