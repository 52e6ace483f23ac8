"""A simulated fleet that goes through the same pipeline as hardware: real models, invented nodes and users.

A node's reading at a given time depends only on the seed, the scenarios and that time, so that hours of history
can be simulated as fast as they can be stored. Every reading is marked as simulated.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from gpuscope.base.errors import UsageError
from gpuscope.base.settings import Settings
from gpuscope.demo.fleet import DemoFleet, node_name
from gpuscope.demo.plan import DemoSettings
from gpuscope.demo.scenarios import SCENARIOS
from gpuscope.model.readings import Reading
from gpuscope.model.source import Source, SourceSpec, Tier

__all__ = [
    "SCENARIOS",
    "SOURCE",
    "DemoFleet",
    "DemoSource",
    "check_settings",
    "log_fleet",
    "open_node",
]

log = logging.getLogger("gpuscope.source")


def check_settings(settings: Settings) -> None:
    """Raises UsageError for an unknown scenario or model or an impossible size, before anything starts."""
    DemoFleet(settings)


class DemoSource:
    """One node of a fleet at the time of the clock. Simulating is cheap, so each read covers all tiers."""

    def __init__(self, fleet: DemoFleet, node_index: int, clock: Callable[[], float]) -> None:
        self._fleet = fleet
        self._index = node_index
        self._clock = clock
        self.name = node_name(node_index)
        self.read_until = fleet.started_at
        """The time of the latest reading: where the next one begins to count XIDs and means."""

    def read(self, due: frozenset[Tier]) -> Reading:
        now = self._clock()
        # A clock set back must not report an XID twice, nor a mean over no time.
        since = min(self.read_until, now)
        reading = self._fleet.loads.apply(self.name, self.read_at(now, since), now, since)
        self.read_until = max(self.read_until, now)
        return reading

    @property
    def scenarios_begin(self) -> float:
        return self._fleet.scenarios_begin(self._index)

    def read_at(self, at: float, since: float) -> Reading:
        """The node at any time, past or future, after a reading at `since`."""
        return self._fleet.reading(self._index, at, since)

    def close(self) -> None:
        pass


def open_node(
    settings: Settings,
    node_index: int = 0,
    clock: Callable[[], float] = time.time,
    fleet: DemoFleet | None = None,
) -> DemoSource:
    """One node as a source. Nodes of the same fleet start their scenarios at the same time."""
    if fleet is None:
        count = max(node_index + 1, settings.demo_nodes or 1)
        fleet = DemoFleet(settings, started_at=clock(), nodes=count)
        log_fleet(fleet, settings)
    if not 0 <= node_index < fleet.node_count:
        raise UsageError(f"demo node {node_index}: the simulated fleet has {fleet.node_count}")
    return DemoSource(fleet, node_index, clock)


def log_fleet(fleet: DemoFleet, settings: Settings) -> None:
    own = settings.view(DemoSettings)
    log.warning(
        "simulated fleet: %d × %d GPUs, seed %d, scenarios: %s; no number is real",
        fleet.node_count,
        fleet.gpus_per_node,
        own.seed,
        ", ".join(own.scenario) or "none",
    )


def _open(settings: Settings) -> Source:
    return open_node(settings)


SOURCE = SourceSpec(
    name="demo",
    summary="a simulated node; no number is real",
    open=_open,
    check=check_settings,
)
