"""A simulated fleet for `up --demo`: a collector for each node, and six hours of history to begin with."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from gpuscope.collect.clock import SystemClock
from gpuscope.collect.collector import Collector, Planned
from gpuscope.collect.counters import Integrator
from gpuscope.collect.merge import merge_readings
from gpuscope.collect.runner import Runner
from gpuscope.collect.xids import XidLedger
from gpuscope.readings import Snapshot, SourceStatus
from gpuscope.settings import Settings
from gpuscope.sources import Source, SourceSpec
from gpuscope.sources.demo import DemoFleet, open_node
from gpuscope.store import Store
from gpuscope.wiring.server import Feed

log = logging.getLogger("gpuscope")

HISTORY_SECONDS = 6 * 3600
HISTORY_STEP_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Demo:
    settings: Settings
    fleet: DemoFleet
    collectors: Sequence[Collector]
    integrators: Sequence[Integrator]
    ledgers: Sequence[XidLedger]

    def fill_if_empty(self, store: Store) -> None:
        """Six hours of history at a minute's step, with a line of progress for whoever waits."""
        if store.stats().newest_ms is not None:
            return
        started = time.monotonic()
        end = int(time.time()) // HISTORY_STEP_SECONDS * HISTORY_STEP_SECONDS
        times = range(end - HISTORY_SECONDS, end, HISTORY_STEP_SECONDS)
        for index, name in enumerate(self.fleet.node_names):
            feed = Feed(self.settings, store, name)
            for done, snapshot in enumerate(self._past(index, times)):
                last = feed.submit(snapshot)  # not waited for one by one: many ticks share a commit
                _progress(index * len(times) + done + 1, len(times) * len(self.fleet.node_names))
            last.result()
        log.info("filled with 6 h of simulated history in %.1f s", time.monotonic() - started)

    def _past(self, index: int, times: range) -> Iterator[Snapshot]:
        # The live integrators carry on where history ends, so they count in the live, monotonic time.
        to_monotonic = time.monotonic() - time.time()
        for at in times:
            reading = self.fleet.reading(index, float(at), float(at - times.step))
            merged = merge_readings([reading])
            self.ledgers[index].add(reading.xids)
            yield Snapshot(
                node=self.fleet.node_names[index],
                taken_at=float(at),
                simulated=True,
                driver=merged.driver,
                devices=merged.devices,
                processes=merged.processes,
                host=merged.host,
                counters=self.integrators[index].advance(merged.devices, at + to_monotonic),
                xids=self.ledgers[index].totals(merged.devices),
                sources=(SourceStatus(name="demo", up=True, why="simulated"),),
            )


def build_demo(settings: Settings) -> Demo:
    clock = SystemClock()
    fleet = DemoFleet(settings, started_at=clock.now(), nodes=settings.demo_nodes or 1)
    integrators = [Integrator(longest_gap_seconds=5 * HISTORY_STEP_SECONDS) for _ in fleet.node_names]
    ledgers = [XidLedger(None) for _ in fleet.node_names]
    collectors = []
    for index, name in enumerate(fleet.node_names):
        spec = SourceSpec(
            name="demo",
            summary="a simulated node; no number is real",
            open=partial(_open, index=index, fleet=fleet, clock=clock),
        )
        collectors.append(
            Collector(
                [Planned(Runner(spec, settings, clock))],
                node=name,
                interval=settings.interval,
                clock=clock,
                ledger=ledgers[index],
                integrator=integrators[index],
            )
        )
    return Demo(settings, fleet, collectors, integrators, ledgers)


def _open(settings: Settings, *, index: int, fleet: DemoFleet, clock: SystemClock) -> Source:
    return open_node(settings, index, clock.now, fleet)


def _progress(done: int, total: int) -> None:
    if sys.stderr.isatty() and (done % 20 == 0 or done == total):
        end = "\n" if done == total else ""
        sys.stderr.write(f"\rsimulating 6 h of history: {100 * done // total:3d} %{end}")
        sys.stderr.flush()
