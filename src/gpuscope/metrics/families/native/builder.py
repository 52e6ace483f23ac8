"""Family `native`: gpuscope's own metrics, with correct types and units, of everything in a snapshot."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.metrics.families import FamilySpec
from gpuscope.metrics.families.native.agent_metrics import AgentMetrics
from gpuscope.metrics.families.native.device_metrics import DeviceMetrics
from gpuscope.metrics.families.native.owner_metrics import OwnerMetrics
from gpuscope.metrics.families.native.process_metrics import ProcessMetrics
from gpuscope.metrics.families.native.slurm_metrics import SlurmMetrics
from gpuscope.metrics.sample import MetricFamily
from gpuscope.metrics.selection import EVERY_METRIC, Selection
from gpuscope.readings import Snapshot
from gpuscope.settings import Settings


class NativeBuilder:
    def __init__(self, only: Selection = EVERY_METRIC) -> None:
        self._parts = (
            DeviceMetrics(only),
            ProcessMetrics(only),
            OwnerMetrics(only),
            SlurmMetrics(only),
            AgentMetrics(only),
        )

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        for part in self._parts:
            yield from part.to_families(snapshot)


def _build(settings: Settings) -> NativeBuilder:
    return NativeBuilder()


FAMILY = FamilySpec(
    name="native",
    summary="gpuscope_*: every device, MIG instance, process and event, in base units",
    build=_build,
    openmetrics=True,
)
