"""Metric families as remote-write samples, as if a server had scraped them.

Adds `job` and `instance`, `up`, and a stale marker for every series that is gone since the last call. No numpy:
this runs in the agent.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping

from gpuscope.history.scrape.sink import Sink
from gpuscope.model.exposition.sample import LabelSet, MetricFamily

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
