"""Family `native`: gpuscope's own metrics for everything in a snapshot, with correct types and units."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.metrics.families import FamilySpec
from gpuscope.metrics.families.native.agent_metrics import AgentMetrics
from gpuscope.metrics.families.native.device_metrics import DeviceMetrics
from gpuscope.metrics.families.native.owner_metrics import OwnerMetrics
from gpuscope.metrics.families.native.process_metrics import ProcessMetrics
from gpuscope.metrics.sample import MetricFamily
from gpuscope.metrics.selection import EVERY_METRIC, Selection
from gpuscope.readings import Snapshot


class NativeBuilder:
    def __init__(self, only: Selection = EVERY_METRIC) -> None:
        self._parts = (DeviceMetrics(only), ProcessMetrics(only), OwnerMetrics(only), AgentMetrics(only))

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        for part in self._parts:
            yield from part.to_families(snapshot)


FAMILY = FamilySpec(
    name="native",
    summary="gpuscope_*: every device, MIG instance, process and event, in base units",
    build=lambda settings: NativeBuilder(),
    openmetrics=True,
)
