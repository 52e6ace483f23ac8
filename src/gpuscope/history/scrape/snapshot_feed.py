"""Stores the snapshots of one node of this process, as a scrape of that node would.

Every `store_interval` seconds one snapshot goes to the store as metric families. A store that fails costs
history, not the live view: the failure is logged when it begins and when it ends.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future

from gpuscope.agent.families import Builder, load_family
from gpuscope.base.episode_log import EpisodeLog
from gpuscope.base.settings import Settings
from gpuscope.history.scrape.local import LocalIngester
from gpuscope.history.store import Appended, Store, StoreError
from gpuscope.model.readings import Snapshot

log = logging.getLogger("gpuscope")

STORED_FAMILIES = ("native", "host")
TOLERANCE_SECONDS = 0.5  # snapshots are taken at an interval of their own, which need not divide ours


class SnapshotFeed:
    def __init__(self, settings: Settings, store: Store, node: str) -> None:
        self.interval_seconds = settings.store_interval
        self.labels = {"job": "gpuscope", "instance": node}
        self.target = LocalIngester(store, self.labels)
        self._builders: list[Builder] = [load_family(name).build(settings) for name in STORED_FAMILIES]
        self._next_at = 0.0
        self._episode = EpisodeLog(log, "storing history", level=logging.ERROR)
        self._storing: Future[Appended] | None = None

    def take(self, snapshot: Snapshot) -> None:
        """Stores the snapshot if one is due."""
        if snapshot.taken_at < self._next_at - TOLERANCE_SECONDS:
            return
        self._next_at = snapshot.taken_at + self.interval_seconds
        # Wait for the previous commit, not for this one: a slow disk must not delay the next reading.
        storing, self._storing = self._storing, None
        try:
            if storing is not None:
                storing.result()
                self._episode.succeeded()
            self._storing = self.submit(snapshot)
        except StoreError as error:
            self._episode.failed(str(error))

    def submit(self, snapshot: Snapshot) -> Future[Appended]:
        families = [family for builder in self._builders for family in builder.to_families(snapshot)]
        return self.target.submit(families, int(snapshot.taken_at * 1000))
