"""Family `native`: gpuscope's own metrics for everything in a snapshot, with correct types and units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuscope import __version__
from gpuscope.agent.families import FamilySpec
from gpuscope.agent.families.native.collective_metrics import CollectiveMetrics
from gpuscope.agent.families.native.device_metrics import DeviceMetrics
from gpuscope.agent.families.native.link_metrics import LinkMetrics
from gpuscope.agent.families.native.owner_metrics import OwnerMetrics
from gpuscope.agent.families.native.process_metrics import ProcessMetrics
from gpuscope.agent.families.native.table import (
    AGENT_CPU,
    AGENT_INFO,
    AGENT_MEMORY,
    AGENT_SNAPSHOT_AGE,
    AGENT_SNAPSHOT_TIME,
    AGENT_SNAPSHOTS,
    AGENT_START_TIME,
    GPUS_EXPECTED,
    GPUS_SEEN,
    NODE_CPU,
    SOURCE_DURATION,
    SOURCE_FAILURES,
    SOURCE_LAST_SUCCESS,
    SOURCE_UP,
)
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample, label_texts
from gpuscope.model.readings import ABSENT, Snapshot

if TYPE_CHECKING:
    from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics

# Native metrics of the agent: state of each source, expected GPUs, CPU time and memory.


class AgentMetrics:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        # Few samples per node: the selection is applied after they are built.
        return (family for family in _families(snapshot) if family.name in self._only)


def _families(snapshot: Snapshot) -> Iterator[MetricFamily]:
    yield from _sources(snapshot)
    seen = sum(not device.lost for device in snapshot.devices)
    yield GPUS_SEEN.family([Sample(NO_LABELS, seen)])
    if snapshot.expected_gpus is not ABSENT:
        yield GPUS_EXPECTED.family([Sample(NO_LABELS, snapshot.expected_gpus)])
    if snapshot.cpu_ratio is not ABSENT:
        yield NODE_CPU.family([Sample(NO_LABELS, snapshot.cpu_ratio)])
    about = (__version__, snapshot.node, "true" if snapshot.simulated else "false")
    yield AGENT_INFO.family([Sample(label_texts(AGENT_INFO.labels, about), 1)])
    # Samples that are given on at once have the time of the snapshot; who serves it later counts on (Exporter).
    yield AGENT_SNAPSHOT_AGE.family([Sample(NO_LABELS, 0.0)])
    yield AGENT_SNAPSHOT_TIME.family([Sample(NO_LABELS, snapshot.taken_at)])
    agent = snapshot.agent
    if agent is not ABSENT:
        yield AGENT_START_TIME.family([Sample(NO_LABELS, agent.started_at)])
        yield AGENT_SNAPSHOTS.family([Sample(NO_LABELS, agent.snapshots)])
        yield AGENT_CPU.family([Sample(NO_LABELS, agent.cpu_seconds)])
        yield AGENT_MEMORY.family([Sample(NO_LABELS, agent.memory_bytes)])


def _sources(snapshot: Snapshot) -> Iterator[MetricFamily]:
    labelled = [(LabelSet((("source", status.name),)), status) for status in snapshot.sources]
    yield SOURCE_UP.family([Sample(labels, 1 if status.up else 0) for labels, status in labelled])
    yield SOURCE_FAILURES.family([Sample(labels, status.failures) for labels, status in labelled])
    yield SOURCE_DURATION.family(
        [Sample(labels, d) for labels, status in labelled if (d := status.duration_seconds) is not ABSENT]
    )
    yield SOURCE_LAST_SUCCESS.family(
        [Sample(labels, at) for labels, status in labelled if (at := status.last_success_at) is not ABSENT]
    )


class _SlurmPart:
    """Loads the metrics of Slurm when there is a cluster: the agents of compute nodes do without their code."""

    def __init__(self, only: MetricSelection) -> None:
        self._only = only
        self._metrics: SlurmMetrics | None = None

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        if self._metrics is None:
            if snapshot.slurm is ABSENT and all(status.name != "slurm" for status in snapshot.sources):
                return iter(())
            from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics

            self._metrics = SlurmMetrics(self._only)
        return self._metrics.to_families(snapshot)


class NativeBuilder:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._parts = (
            DeviceMetrics(only),
            ProcessMetrics(only),
            OwnerMetrics(only),
            LinkMetrics(only),
            CollectiveMetrics(only),
            _SlurmPart(only),
            AgentMetrics(only),
        )

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        for part in self._parts:
            yield from part.to_families(snapshot)


FAMILY = FamilySpec(
    name="native",
    summary="gpuscope_*: every device, MIG instance, process and event, in base units",
    build=lambda settings: NativeBuilder(),
    openmetrics=True,
    on_demand=True,
)
