"""Builds a simulated fleet: a source, a collector and a way to compose the past for each node."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.composer import Integrator, SnapshotComposer
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.base.clock import Clock, SystemClock
from gpuscope.base.settings import Settings
from gpuscope.cli.wiring.owners import Outside, build_demo_outside, build_demo_owner_join
from gpuscope.demo import DemoFleet, DemoSource, check_settings, log_fleet
from gpuscope.demo.simulated_node import SimulatedNode
from gpuscope.model.source import SourceSpec

MAX_GAP_SECONDS = 300.0
"""Between two snapshots that a counter integrates over: the past is simulated in steps of minutes."""


@dataclass(frozen=True, slots=True)
class Demo:
    fleet: DemoFleet
    nodes: Sequence[SimulatedNode]

    @property
    def collectors(self) -> list[Collector]:
        return [node.collector for node in self.nodes]


def build_demo(settings: Settings, clock: Clock | None = None) -> Demo:
    check_settings(settings)
    clock = clock or SystemClock()
    fleet = DemoFleet(settings, started_at=clock.now(), nodes=settings.demo_nodes or 1)
    log_fleet(fleet, settings)
    # A kubelet and a folder of job files describe one node: the first.
    described = build_demo_outside(settings, clock)
    nodes = [
        _build_node(settings, fleet, index, clock, described if index == 0 else Outside())
        for index in range(fleet.node_count)
    ]
    return Demo(fleet, nodes)


def _build_node(
    settings: Settings, fleet: DemoFleet, index: int, clock: Clock, outside: Outside
) -> SimulatedNode:
    source = DemoSource(fleet, index, clock.now)
    name = settings.node if settings.node and fleet.node_count == 1 else source.name
    build_composer = partial(_build_composer, settings, name, fleet.gpus_per_node, outside)
    spec = SourceSpec(name="demo", summary="a simulated node; no number is real", open=lambda settings: source)
    collector = Collector(
        # The fleet is logged once, not once per node.
        [PlannedSource(SourceWorker(spec, settings, clock, log_first_read=False))],
        node=name,
        interval=settings.interval,
        clock=clock,
        ledger=ErrorLedger(None),
        owner_workers=outside.workers,
    )
    collector.composer = build_composer()
    return SimulatedNode(source, collector, build_composer, clock)


def _build_composer(settings: Settings, node: str, gpus: int, outside: Outside) -> SnapshotComposer:
    return SnapshotComposer(
        node,
        ledger=ErrorLedger(None),
        integrator=Integrator(max_gap_seconds=MAX_GAP_SECONDS),
        owners=build_demo_owner_join(settings, MAX_GAP_SECONDS, outside, node),
        expected_gpus=gpus,
    )
