"""A simulated fleet through the same pipeline as hardware: real models, invented machines, people and faults.

Deterministic: the reading of a node at a time depends on the seed and on the scenarios alone, so that history
can be made as fast as it can be stored. Every reading says that it is simulated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gpuscope.errors import UsageError
from gpuscope.readings import Reading
from gpuscope.settings import Settings
from gpuscope.sources import Source, SourceSpec, Tier
from gpuscope.sources.demo.fleet import DemoFleet
from gpuscope.sources.demo.models import MODELS
from gpuscope.sources.demo.plan import DemoSettings
from gpuscope.sources.demo.scenarios import SCENARIOS

__all__ = ["MODELS", "SCENARIOS", "SOURCE", "DemoFleet", "DemoSource", "check_settings", "open_node"]

log = logging.getLogger("gpuscope.source")


def check_settings(settings: Settings) -> None:
    """Raises UsageError for a scenario, model or size that cannot be; before anything is started."""
    DemoFleet(settings)


class DemoSource:
    """One node of a fleet at the time the clock shows. Simulating is cheap: every tier is read every time."""

    def __init__(self, fleet: DemoFleet, node_index: int, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._node = node_index
        self._clock = clock
        self._since = fleet.started_at

    def read(self, due: frozenset[Tier]) -> Reading:
        now = self._clock()
        # A clock set back must not report an XID twice, nor a mean over no time.
        reading = self._fleet.reading(self._node, now, self._since if self._since <= now else now)
        self._since = max(self._since, now)
        return reading

    def close(self) -> None:
        pass


def open_node(
    settings: Settings,
    node_index: int = 0,
    clock: Callable[[], float] = time.time,
    fleet: DemoFleet | None = None,
) -> DemoSource:
    """One node as a source. Nodes that are to share one start of scenarios share a fleet."""
    if fleet is None:
        count = max(node_index + 1, settings.demo_nodes or 1)
        fleet = DemoFleet(settings, started_at=clock(), nodes=count)
    if not 0 <= node_index < fleet.node_count:
        raise UsageError(f"demo node {node_index}: the simulated fleet has {fleet.node_count}")
    node, own = fleet.node(node_index), settings.view(DemoSettings)
    log.warning(
        "simulated node %s: %d × %s, seed %d, scenarios: %s; no number is real",
        node.machine.name,
        len(node.gpus),
        node.model.name,
        own.seed,
        ", ".join(own.scenario) or "none",
    )
    return DemoSource(fleet, node_index, clock)


def _open(settings: Settings) -> Source:
    return open_node(settings)


SOURCE = SourceSpec(
    name="demo",
    summary="a simulated node; no number is real",
    open=_open,
    check=check_settings,
)
