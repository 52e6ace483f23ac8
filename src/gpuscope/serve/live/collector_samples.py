"""Samples of the live picture from this process's own collectors, at most a second old, and of nodes that push.

Only the metrics that the picture needs are built. The labels of a series are merged with its node's name once
and kept, because from second to second only the values change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from gpuscope.agent.families import Builder
from gpuscope.agent.families.host.builder import HostFamily
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.families.selection import MetricSelection
from gpuscope.judge.checks.checks import CHECKED_METRICS
from gpuscope.judge.checks.facts import LABELLED, Sample
from gpuscope.model.exposition.sample import LabelSet
from gpuscope.model.readings import ABSENT, Snapshot
from gpuscope.serve.live.fleet_samples import (
    GPU_INFO,
    LIVE_METRICS,
    NEEDED_VALUES,
    SLOW_METRICS,
    FleetSamples,
    SortLater,
)

if TYPE_CHECKING:  # a server that collects nothing itself does not need it
    from gpuscope.agent.collect.collector import Collector

SLOW_SECONDS: Final = 5.0
"""How long samples of SLOW_METRICS are used again."""


def snapshot_samples(snapshot: Snapshot) -> list[Sample]:
    """The samples of one snapshot that a judgement needs."""
    return [
        (family.name, {**dict(labels.pairs), "instance": snapshot.node}, value)
        for family in NativeBuilder(MetricSelection((*LIVE_METRICS, *CHECKED_METRICS))).to_families(snapshot)
        for labels, value in family.samples
    ]


class CollectorSamples:
    """`pushed` has the samples of other nodes. Of a node that this process reads and another agent pushes, its
    own samples are newer; they are left out only if no GPU is read here."""

    def __init__(self, collectors: Sequence[Collector], pushed: Callable[[], FleetSamples] = dict) -> None:
        self.nodes = [_Node(collector) for collector in collectors]
        self._pushed = pushed

    async def read(self) -> SortLater:
        return self.samples

    def samples(self) -> FleetSamples:
        own: dict[str, Sequence[Sample]] = {}
        for node in self.nodes:
            name, samples = node.samples()
            own[name] = [*own[name], *samples] if name in own else samples
        fleet = dict(own)  # own nodes first: of a GPU that two nodes report, the first is shown
        for name, pushed in self._pushed().items():
            if name not in own or not any(metric == GPU_INFO for metric, _, _ in own[name]):
                fleet[name] = pushed
        return fleet


class _Node:
    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self._fast = _builders([name for name in LIVE_METRICS if name not in SLOW_METRICS])
        self._slow = _builders([name for name in LIVE_METRICS if name in SLOW_METRICS])
        self._slow_samples: list[Sample] = []
        self._subjects: tuple[object, ...] = ()
        self._slow_at = float("-inf")
        self.merged_labels: dict[int, Mapping[str, str]] = {}  # by the identity of a label set
        self._kept: list[LabelSet] = []  # while they are kept, no other object has their identity
        self._newest: tuple[Snapshot, list[Sample]] | None = None

    def samples(self) -> tuple[str, list[Sample]]:
        """The node's name and its samples: the same list as long as the snapshot is the same."""
        snapshot = self._collector.snapshot
        if self._newest is None or self._newest[0] is not snapshot:
            self._newest = snapshot, self._samples_of(snapshot)
        return snapshot.node, self._newest[1]

    def _samples_of(self, snapshot: Snapshot) -> list[Sample]:
        # A GPU that is lost or comes back, or whose processes are not known any more, and a process that ends
        # must not have old numbers for a moment.
        devices = (
            (
                device.uuid,
                device.lost,
                device.processes_known,
                *(instance.processes_known for instance in device.instances),
            )
            for device in snapshot.devices
        )
        processes = () if snapshot.processes is ABSENT else snapshot.processes
        pids = ((process.pid, process.gpu_uuid) for process in processes)
        subjects = (snapshot.processes is ABSENT, *devices, *pids)
        if subjects != self._subjects or not 0 <= snapshot.taken_at - self._slow_at < SLOW_SECONDS:
            self._slow_samples = [one for one in self._build(self._slow, snapshot) if _is_needed(one)]
            self._subjects, self._slow_at = subjects, snapshot.taken_at
        samples = self._build(self._fast, snapshot) + self._slow_samples
        if len(self.merged_labels) > 2 * len(samples) + 64:  # processes come and go
            self.merged_labels, self._kept = {}, []
        return samples

    def _build(self, builders: Iterable[Builder], snapshot: Snapshot) -> list[Sample]:
        merged, merge = self.merged_labels, self._merge
        samples: list[Sample] = []
        for builder in builders:
            for family in builder.to_families(snapshot):
                name, found = family.name, family.samples
                samples += [
                    (name, merged.get(id(labels)) or merge(labels, snapshot.node), value)
                    for labels, value in found
                ]
        return samples

    def _merge(self, labels: LabelSet, node: str) -> Mapping[str, str]:
        self._kept.append(labels)
        merged = self.merged_labels[id(labels)] = {**dict(labels.pairs), "instance": node}
        return merged


def _is_needed(sample: Sample) -> bool:
    metric, labels, _ = sample
    values = NEEDED_VALUES.get(metric)
    return values is None or labels.get(LABELLED[metric][0]) in values


def _builders(names: Iterable[str]) -> tuple[Builder, ...]:
    only = MetricSelection(tuple(names))
    return NativeBuilder(only), HostFamily(only)
