"""Samples of the live picture from the embedded store or another engine, in as few requests as needed.

Of another engine fast metrics are read for every picture, slow ones every 15 s, the usual scrape interval. A
node whose GPUs or processes have changed has its slow metrics read again at once: a GPU that is lost, or a
process that ended, must not keep old values.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from gpuscope.base.go_quote import quote
from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.history.engines.vector_text import LabelDicts
from gpuscope.history.store import Store
from gpuscope.history.store.tick import is_verified
from gpuscope.judge.checks.facts import LABELLED, TAKEN_AT, Sample
from gpuscope.judge.checks.finding_details import one_of
from gpuscope.serve.live.fleet_samples import (
    FAST_METRICS,
    LIVE_METRICS,
    NEEDED_VALUES,
    SLOW_METRICS,
    FleetSamples,
    SortLater,
    by_node,
)

LOOKBACK_MS: Final = 300_000
_METRICS: Final = frozenset(LIVE_METRICS)


def _is_wanted(metric: str, labels: Mapping[str, str]) -> bool:
    if metric not in _METRICS:
        return False
    values = NEEDED_VALUES.get(metric)
    return values is None or labels.get(LABELLED[metric][0]) in values


class StoreSamples:
    """Without a query, only targets that changed are read: a query of all live metrics of 1,000 nodes selects
    more series than the store's cache of selections holds. A target is usually one node; one that has series of
    several nodes, as a remote writer may, is split, and a node of several targets is joined."""

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
        agents = (one for one in verified if any(metric == TAKEN_AT for metric, _, _ in nodes[one]))
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


SLOW_SECONDS: Final = 15.0
MAX_NODES_PER_QUERY: Final = 100
"""With more nodes that have changed, the slow metrics of all nodes are read."""
_UP: Final = "gpuscope_gpu_up"
_SUBJECT_METRICS: Final = frozenset({_UP, "gpuscope_gpu_memory_used_bytes", "gpuscope_process_memory_bytes"})
"""Every GPU, MIG instance and process has one of these."""

Subject = tuple[str, str, str, float]
"""Instance, UUID, PID; and whether a GPU is up."""


def _selector(names: Iterable[str], matcher: str = "") -> str:
    return f'{{__name__=~"{"|".join(sorted(names))}"{matcher}}}'


FAST_QUERY: Final = _selector(FAST_METRICS)
SLOW_QUERY: Final = _selector(SLOW_METRICS)


class EngineSamples:
    def __init__(self, engine: QueryEngine, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._clock = clock
        self._label_dicts = LabelDicts()
        self._subjects: set[Subject] = set()
        self._slow: list[Sample] = []
        self._slow_at = float("-inf")
        self._nodes: dict[str, list[Sample]] = {}

    async def read(self) -> SortLater:
        now = self._clock()
        fast = await self._read_query(FAST_QUERY)
        before, self._subjects = self._subjects, _subjects(fast)
        changed = {subject[0] for subject in before ^ self._subjects}
        if now - self._slow_at >= SLOW_SECONDS or len(changed) > MAX_NODES_PER_QUERY:
            self._slow_at = float("-inf")  # read again next time if this fails
            self._slow = await self._read_query(SLOW_QUERY)
            self._slow_at = now
        elif changed:
            await self._read_slow_of(changed)
        return partial(self._keep_unchanged, fast + self._slow)

    def _keep_unchanged(self, samples: list[Sample]) -> FleetSamples:
        """The samples by node; of a node without a change, the list of the last update."""
        known = self._nodes
        self._nodes = {
            instance: before if (before := known.get(instance)) == found else found
            for instance, found in by_node(samples).items()
        }
        return self._nodes

    async def _read_slow_of(self, instances: Collection[str]) -> None:
        known_at, self._slow_at = self._slow_at, float("-inf")
        matcher = f", instance=~{quote(one_of(sorted(instances)))}"
        new = await self._read_query(_selector(SLOW_METRICS, matcher))
        self._slow = [one for one in self._slow if one[1].get("instance", "") not in instances] + new
        self._slow_at = known_at

    async def _read_query(self, query: str) -> list[Sample]:
        vector = await self._engine.instant(query)
        dicts = self._label_dicts.of(vector.labels)
        names = [labels.get("__name__", "") for labels in dicts]
        return list(zip(names, dicts, vector.values.tolist(), strict=True))


def _subjects(samples: Iterable[Sample]) -> set[Subject]:
    return {
        (
            labels.get("instance", ""),
            labels.get("uuid", ""),
            labels.get("pid", ""),
            value if metric == _UP else 1.0,
        )
        for metric, labels, value in samples
        if metric in _SUBJECT_METRICS
    }
