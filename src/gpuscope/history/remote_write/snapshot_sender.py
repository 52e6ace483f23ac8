"""An agent's remote write: takes a collector's snapshots and sends their metric families every
`remote_write_interval`. No numpy: this runs in the agent."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

from gpuscope.agent.families import Builder
from gpuscope.base.settings import Settings
from gpuscope.history.remote_write.sender import RemoteWriteQueues
from gpuscope.history.scrape.sink import Sink
from gpuscope.model.exposition.sample import LabelSet, MetricFamily
from gpuscope.model.readings import Snapshot

# Metric families as remote-write samples, as if a server had scraped them.
#
# Adds `job` and `instance`, `up`, and a stale marker for every series that is gone since the last call. No
# numpy: this runs in the agent.

STALE = struct.unpack("<d", struct.pack("<Q", 0x7FF0000000000002))[0]
"""Prometheus' stale marker: a NaN with these bits."""


class FamilySender:
    def __init__(self, sink: Sink, labels: Mapping[str, str]) -> None:
        self._sink = sink
        self._labels = dict(labels)
        self._encoded: dict[str, dict[LabelSet, bytes]] = {}
        self._sent_last: set[bytes] = set()
        self._up = sink.encode_labels({**self._labels, "__name__": "up"}.items())

    def send(self, families: Iterable[MetricFamily], at_ms: int) -> None:
        samples: list[tuple[bytes, int, float]] = [(self._up, at_ms, 1.0)]
        for family in families:
            known = self._encoded.setdefault(family.name, {})
            for labels, value in family.samples:
                encoded = known.get(labels)
                if encoded is None:
                    encoded = known[labels] = self._encode(family.name, labels)
                samples.append((encoded, at_ms, float(value)))
            if len(known) > 4 * len(family.samples) + 1000:  # labels of processes that have ended
                known.clear()
        current = {encoded for encoded, _, _ in samples}
        samples += [(encoded, at_ms, STALE) for encoded in self._sent_last - current]
        self._sent_last = current
        self._sink.take(samples)

    def _encode(self, name: str, labels: LabelSet) -> bytes:
        own = {key: value for key, value in labels.pairs if value != ""}
        return self._sink.encode_labels({**own, **self._labels, "__name__": name}.items())


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
