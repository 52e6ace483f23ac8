"""Samples of the live picture from the embedded store, without a query: only targets that changed are read.

A query of all live metrics of 1,000 nodes selects more series than the store's cache of selections holds. A
target is usually one node; one that has series of several nodes, as a remote writer may, is split, and a node
of several targets is joined.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.history.store import Store
from gpuscope.history.store.tick import is_verified
from gpuscope.judge.checks.facts import LABELLED, Sample
from gpuscope.serve.live.fleet_samples import LIVE_METRICS, NEEDED_VALUES, FleetSamples, SortLater, by_node
from gpuscope.serve.live.gone_history import SNAPSHOT_METRIC

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
        self._newest = store.newest_samples(_is_wanted, LOOKBACK_MS, is_target)
        self._clock_ms = clock_ms
        self._targets: dict[str, _TargetSamples] = {}
        self._nodes: dict[str, tuple[list[list[Sample]], list[Sample]]] = {}
        """The parts of each node, and the parts joined."""

    async def read(self) -> SortLater:
        return self.samples

    def samples(self) -> FleetSamples:
        """Nodes whose agents are verified first: the picture leaves out what it has no room for. Of such a node
        nothing counts that an unverified target sends."""
        known = self._targets
        self._targets = {
            name: before
            if (before := known.get(name)) is not None and before.samples is samples
            else _TargetSamples.split(name, samples)
            for name, samples in self._newest.read(self._clock_ms()).items()
        }
        targets = self._targets.values()
        parts: dict[str, list[list[Sample]]] = {name: [] for target in targets for name in target.agents}
        verified = frozenset(parts)
        for target in targets:
            for instance, samples in target.nodes.items():
                if instance not in verified or instance in target.verified:
                    parts.setdefault(instance, []).append(samples)
        nodes_before, self._nodes = self._nodes, {}
        for instance, lists in parts.items():
            kept = nodes_before.get(instance)
            is_kept = kept is not None and _are_same(kept[0], lists)
            self._nodes[instance] = kept if kept is not None and is_kept else (lists, _join(lists))
        return {instance: samples for instance, (_, samples) in self._nodes.items()}


@dataclass(frozen=True, slots=True)
class _TargetSamples:
    samples: Sequence[Sample]
    nodes: Mapping[str, list[Sample]]
    """By instance."""
    verified: frozenset[str]
    """The instances that this target speaks for."""
    agents: frozenset[str]
    """Those of them that are an agent's."""

    @classmethod
    def split(cls, name: str, samples: Sequence[Sample]) -> _TargetSamples:
        nodes = by_node(samples)
        verified = frozenset(instance for instance in nodes if is_verified({"instance": instance}, (name,)))
        agents = (one for one in verified if any(metric == SNAPSHOT_METRIC for metric, _, _ in nodes[one]))
        return cls(samples, nodes, verified, frozenset(agents))


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
