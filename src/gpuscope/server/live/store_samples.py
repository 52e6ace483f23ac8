"""Samples of the live picture from the embedded store, without a query: only targets that changed are read.

A query of all live metrics of 1,000 nodes selects more series than the store's cache of selections holds. Of
`NONZERO_METRICS` only values other than 0 are kept, as `EngineSamples` does. A target is usually one node; one
that has series of several nodes, as a remote writer may, is split, and a node of several targets is joined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from gpuscope.health.facts import LABELLED, Sample
from gpuscope.server.live.fleet_samples import FleetSamples, SortLater, by_node
from gpuscope.server.live.needed_metrics import LIVE_METRICS, NEEDED_VALUES, NONZERO_METRICS
from gpuscope.store import Store

LOOKBACK_MS: Final = 300_000
_METRICS: Final = frozenset(LIVE_METRICS)


def _is_wanted(metric: str, labels: Mapping[str, str]) -> bool:
    if metric not in _METRICS:
        return False
    values = NEEDED_VALUES.get(metric)
    return values is None or labels.get(LABELLED[metric][0]) in values


class StoreSamples:
    def __init__(
        self,
        store: Store,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
        *,
        is_target: Callable[[str], bool] | None = None,
    ) -> None:
        """`is_target` chooses the store's targets by name; None reads all."""
        self._newest = store.queries.newest_samples(_is_wanted, LOOKBACK_MS, is_target)
        self._clock_ms = clock_ms
        self._targets: dict[int, tuple[Sequence[Sample], dict[str, list[Sample]]]] = {}
        """Samples of each target by node, by the identity of its list, which the tuple keeps alive."""
        self._nodes: dict[str, tuple[list[list[Sample]], list[Sample]]] = {}
        """The parts of each node, and the parts joined."""

    async def read(self) -> SortLater:
        return self.samples

    def samples(self) -> FleetSamples:
        known = self._targets
        self._targets = {
            id(samples): known[id(samples)] if id(samples) in known else (samples, _split(samples))
            for samples in self._newest.read(self._clock_ms())
        }
        parts: dict[str, list[list[Sample]]] = {}
        for _, nodes in self._targets.values():
            for instance, samples in nodes.items():
                parts.setdefault(instance, []).append(samples)
        before, self._nodes = self._nodes, {}
        for instance, lists in parts.items():
            kept = before.get(instance)
            is_kept = kept is not None and _are_same(kept[0], lists)
            self._nodes[instance] = kept if kept is not None and is_kept else (lists, _join(lists))
        return {instance: samples for instance, (_, samples) in self._nodes.items()}


def _split(samples: Sequence[Sample]) -> dict[str, list[Sample]]:
    return by_node(one for one in samples if one[2] != 0 or one[0] not in NONZERO_METRICS)


def _are_same(some: Sequence[object], others: Sequence[object]) -> bool:
    return len(some) == len(others) and all(one is other for one, other in zip(some, others, strict=True))


def _join(lists: Sequence[list[Sample]]) -> list[Sample]:
    """Without a series that several targets write: it has the same value in each list."""
    if len(lists) == 1:
        return lists[0]
    found: dict[tuple[str, frozenset[tuple[str, str]]], Sample] = {}
    for samples in lists:
        for sample in samples:
            found.setdefault((sample[0], frozenset(sample[1].items())), sample)
    return list(found.values())
