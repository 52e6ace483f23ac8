"""Samples of the live picture from this process's own collectors: at most a second old.

Only the metrics that the picture needs are built. The labels of a series are merged with its node's name once
and kept, because from second to second only the values change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import Final

from gpuscope.collect.collector import Collector
from gpuscope.health.facts import Sample
from gpuscope.metrics.families import Builder
from gpuscope.metrics.families.host.builder import HostFamily
from gpuscope.metrics.families.native.builder import NativeBuilder
from gpuscope.metrics.sample import LabelSet
from gpuscope.metrics.selection import MetricSelection
from gpuscope.readings import Snapshot
from gpuscope.server.live_metrics import LIVE_METRICS, NONZERO_METRICS, SLOW_METRICS

SLOW_SECONDS: Final = 5.0
"""How long samples of SLOW_METRICS are used again."""


def snapshot_samples(snapshot: Snapshot) -> list[Sample]:
    """The samples of one snapshot that a judgement needs."""
    return [
        (family.name, {**dict(labels.pairs), "instance": snapshot.node}, value)
        for family in NativeBuilder(MetricSelection(LIVE_METRICS)).to_families(snapshot)
        for labels, value in family.samples
    ]


class LiveSamples:
    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._nodes = [_Node(collector) for collector in collectors]

    async def read(self) -> Iterator[Sample]:
        """Lazy, node by node: the fifty thousand samples of 1,000 GPUs at once would start a full garbage
        collection."""
        return self.samples()

    def samples(self) -> Iterator[Sample]:
        return chain.from_iterable(node.samples() for node in self._nodes)


class _Node:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._fast = _builders([name for name in LIVE_METRICS if name not in SLOW_METRICS])
        self._slow = _builders([name for name in LIVE_METRICS if name in SLOW_METRICS])
        self._slow_samples: list[Sample] = []
        self._devices: tuple[object, ...] = ()
        self._slow_at = float("-inf")
        self._merged: dict[int, Mapping[str, str]] = {}  # by the identity of a label set
        self._kept: list[LabelSet] = []  # while they are kept, no other object has their identity

    def samples(self) -> list[Sample]:
        snapshot = self._collector.snapshot
        # A GPU that is lost or comes back must not have its old numbers for a moment.
        devices = tuple((device.uuid, device.lost, len(device.instances)) for device in snapshot.devices)
        if devices != self._devices or not 0 <= snapshot.taken_at - self._slow_at < SLOW_SECONDS:
            self._slow_samples = self._build(self._slow, snapshot)
            self._devices, self._slow_at = devices, snapshot.taken_at
        samples = self._build(self._fast, snapshot) + self._slow_samples
        if len(self._merged) > 2 * len(samples) + 64:  # processes come and go
            self._merged, self._kept = {}, []
        return samples

    def _build(self, builders: Iterable[Builder], snapshot: Snapshot) -> list[Sample]:
        merged, merge = self._merged, self._merge
        samples: list[Sample] = []
        for builder in builders:
            for family in builder.to_families(snapshot):
                name, found = family.name, family.samples
                if name in NONZERO_METRICS:
                    found = [sample for sample in found if sample[1] != 0]
                samples += [
                    (name, merged.get(id(labels)) or merge(labels, snapshot.node), value)
                    for labels, value in found
                ]
        return samples

    def _merge(self, labels: LabelSet, node: str) -> Mapping[str, str]:
        self._kept.append(labels)
        merged = self._merged[id(labels)] = {**dict(labels.pairs), "instance": node}
        return merged


def _builders(names: Iterable[str]) -> tuple[Builder, ...]:
    only = MetricSelection(tuple(names))
    return NativeBuilder(only), HostFamily(only)
