"""Family `native`: gpuscope's own metrics for everything in a snapshot, with correct types and units."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpuscope.agent.families import FamilySpec
from gpuscope.agent.families.native.agent_metrics import AgentMetrics
from gpuscope.agent.families.native.collective_metrics import CollectiveMetrics
from gpuscope.agent.families.native.device_metrics import DeviceMetrics
from gpuscope.agent.families.native.link_metrics import LinkMetrics
from gpuscope.agent.families.native.owner_metrics import OwnerMetrics
from gpuscope.agent.families.native.process_metrics import ProcessMetrics
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import MetricFamily
from gpuscope.model.readings import ABSENT, Snapshot

if TYPE_CHECKING:
    from gpuscope.agent.families.native.slurm_metrics import SlurmMetrics


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
