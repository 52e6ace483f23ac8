"""A simulated fleet: a collector for each node, and the past they would have seen."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpuscope.clock import SystemClock
from gpuscope.collect.collector import Collector, PlannedSource
from gpuscope.collect.counters import Integrator
from gpuscope.collect.merge import merge_readings
from gpuscope.collect.source_worker import SourceWorker
from gpuscope.collect.xid_ledger import XidLedger
from gpuscope.health.xids import explain_xid
from gpuscope.owners.owner_join import OwnerJoin
from gpuscope.readings import Snapshot, SourceStatus
from gpuscope.settings import Settings
from gpuscope.sources import Source, SourceSpec
from gpuscope.sources.demo import DemoFleet, check_settings, open_node
from gpuscope.wiring.owners import Outside, build_demo_outside, build_demo_owner_join

MAX_GAP_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Demo:
    fleet: DemoFleet
    collectors: Sequence[Collector]
    integrators: Sequence[Integrator]
    ledgers: Sequence[XidLedger]
    ownership: Sequence[OwnerJoin]

    def past(self, index: int, times: range) -> Iterator[Snapshot]:
        """A node's snapshots at these times, before its collector runs."""
        # The live integrators carry on where history ends, so they count in the live, monotonic time.
        to_monotonic = time.monotonic() - time.time()
        for at in times:
            reading = self.fleet.reading(index, float(at), float(at - times.step))
            merged = merge_readings([reading])
            self.ledgers[index].add(reading.xids)
            counters = self.integrators[index].advance(merged.devices, at + to_monotonic)
            processes, ownership = self.ownership[index].advance(
                merged.processes,
                merged.devices,
                counters,
                simulated=True,
                now=float(at),
                monotonic=at + to_monotonic,
            )
            yield Snapshot(
                node=self.fleet.node_names[index],
                taken_at=float(at),
                simulated=True,
                driver=merged.driver,
                devices=merged.devices,
                processes=processes,
                ownership=ownership,
                host=merged.host,
                counters=counters,
                xids=self.ledgers[index].totals(merged.devices),
                sources=(SourceStatus(name="demo", up=True, why="simulated"),),
                expected_gpus=self.fleet.gpus_per_node,
            )


def build_demo(settings: Settings) -> Demo:
    check_settings(settings)
    clock = SystemClock()
    fleet = DemoFleet(settings, started_at=clock.now(), nodes=settings.demo_nodes or 1)
    integrators = [Integrator(max_gap_seconds=MAX_GAP_SECONDS) for _ in fleet.node_names]
    ledgers = [XidLedger(None) for _ in fleet.node_names]
    # A kubelet and a folder of job files describe one node: the first.
    outside = [build_demo_outside(settings, clock), *(Outside() for _ in fleet.node_names[1:])]
    ownership = [build_demo_owner_join(settings, MAX_GAP_SECONDS, one) for one in outside]
    collectors = []
    for index, name in enumerate(fleet.node_names):
        node = settings.node if settings.node and len(fleet.node_names) == 1 else name
        spec = SourceSpec(
            name="demo",
            summary="a simulated node; no number is real",
            open=partial(_open, index=index, fleet=fleet, clock=clock),
        )
        collectors.append(
            Collector(
                [PlannedSource(SourceWorker(spec, settings, clock))],
                node=node,
                interval=settings.interval,
                clock=clock,
                ledger=ledgers[index],
                integrator=integrators[index],
                owners=ownership[index],
                owner_workers=outside[index].workers,
                expected_gpus=fleet.gpus_per_node,
                explain_xid=lambda code: explain_xid(code).meaning,
            )
        )
    return Demo(fleet, collectors, integrators, ledgers, ownership)


def _open(settings: Settings, *, index: int, fleet: DemoFleet, clock: SystemClock) -> Source:
    return open_node(settings, index, clock.now, fleet)
