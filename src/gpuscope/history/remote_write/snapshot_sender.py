"""An agent's remote write: takes a collector's snapshots and sends their metric families every
`remote_write_interval`. No numpy: this runs in the agent."""

from __future__ import annotations

from collections.abc import Sequence

from gpuscope.agent.families import Builder
from gpuscope.base.settings import Settings
from gpuscope.history.remote_write.family_sender import FamilySender
from gpuscope.history.remote_write.queues import RemoteWriteQueues
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.readings import Snapshot

AGENT_QUEUE_BYTES = 4 << 20
"""About twenty minutes of a busy machine; the agent's whole budget is 40 MiB."""
EARLY_SECONDS = 0.5
"""A snapshot may come so much early: the collector's interval has its own phase."""


class SnapshotSender:
    """A collector's listener. It has its own builders: those of the HTTP listeners belong to their threads."""

    def __init__(self, settings: Settings, queues: RemoteWriteQueues, builders: Sequence[Builder]) -> None:
        self._builders = builders
        self._interval = settings.remote_write_interval
        self._next_at = 0.0
        self._queues = queues
        self._sender = FamilySender(queues, {"job": "gpuscope", "instance": settings.node_name()})

    def take(self, snapshot: Snapshot) -> None:
        if snapshot.taken_at < self._next_at - EARLY_SECONDS:
            return
        self._next_at = snapshot.taken_at + self._interval
        families = [family for builder in self._builders for family in builder.to_families(snapshot)]
        self._sender.send(families, int(snapshot.taken_at * 1000))

    def to_families(self, snapshot: Snapshot) -> list[MetricFamily]:
        """As a `Builder`: the counters of the queues, for the agent's own exposition."""
        return list(self._queues.families())
