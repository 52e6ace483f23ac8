"""The live view's samples straight from this process's collectors: a second old, not a store interval.

Only the metrics the view shows are built, and the labels of a series are merged with its node's name once, not
each second: most of what a fleet says about itself is the same things with other numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain

from gpuscope.collect.collector import Collector
from gpuscope.metrics.families import Builder
from gpuscope.metrics.families.host.builder import HostFamily
from gpuscope.metrics.families.native.builder import NativeBuilder
from gpuscope.metrics.sample import LabelSet
from gpuscope.metrics.selection import Selection
from gpuscope.server.live import FLAGS, LIVE_METRICS
from gpuscope.server.missing import Sample


class OwnSamples:
    def __init__(self, collectors: Sequence[Collector]) -> None:
        self._nodes = [_Node(collector) for collector in collectors]

    async def read(self) -> Iterator[Sample]:
        """A node's samples are built when it is its turn, and gone after it: all thirty thousand of 1,000 GPUs
        at once would send the garbage collector through the whole process."""
        return self.samples()

    def samples(self) -> Iterator[Sample]:
        return chain.from_iterable(node.samples() for node in self._nodes)


class _Node:
    def __init__(self, collector: Collector) -> None:
        only = Selection(LIVE_METRICS)
        self._collector = collector
        self._builders: tuple[Builder, ...] = (NativeBuilder(only), HostFamily(only))
        self._merged: dict[int, Mapping[str, str]] = {}  # by the identity of a label set
        self._kept: list[LabelSet] = []  # which makes identities safe: none of these is freed and another's

    def samples(self) -> list[Sample]:
        snapshot = self._collector.snapshot
        merged, merge = self._merged, self._merge
        samples: list[Sample] = []
        for builder in self._builders:
            for family in builder.to_families(snapshot):
                name, found = family.name, family.samples
                if name in FLAGS:  # nearly all are 0: a third of all samples
                    found = [sample for sample in found if sample[1] == 1]
                samples += [
                    (name, merged.get(id(labels)) or merge(labels, snapshot.node), value)
                    for labels, value in found
                ]
        if len(merged) > 2 * len(samples) + 64:  # processes come and go
            self._merged, self._kept = {}, []
        return samples

    def _merge(self, labels: LabelSet, node: str) -> Mapping[str, str]:
        self._kept.append(labels)
        merged = self._merged[id(labels)] = {**dict(labels.pairs), "instance": node}
        return merged
