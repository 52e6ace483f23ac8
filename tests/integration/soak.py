"""Thousands of cycles of the whole agent in one process, with a fake driver on which everything changes.

Uses no threads and no sleep: with a manual clock, the reading intervals are as over hours. Returns the resident
memory at the end of each part of the run, which should be constant.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuscope.agent.collect.collector import Collector, PlannedSource
from gpuscope.agent.collect.error_ledger import ErrorLedger
from gpuscope.agent.collect.source_worker import SourceWorker
from gpuscope.agent.families import load_family
from gpuscope.base.settings import Settings
from gpuscope.model.source import SourceSpec, load_source
from gpuscope.serve.exporter import Exporter
from gpuscope.serve.http.messages import Request
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from gpuscope.vendors.nvidia.nvml.tiers import Clocks
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.fakes import FakeClock

GPUS = 2
CYCLES_PER_CHANGE = 20
AS_PROMETHEUS = (("accept", "application/openmetrics-text;version=1.0.0"), ("accept-encoding", "gzip"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_bytes().split()[1]) * os.sysconf("SC_PAGE_SIZE")


class Soak:
    def __init__(self, driver: FakeDriver, folder: Path) -> None:
        driver.gpus(GPUS)
        driver.freeze()
        driver.attach()
        self._driver = driver
        self._clock = FakeClock()
        self._workers = [
            SourceWorker(spec, Settings(), self._clock)
            for spec in (self._nvml_spec(folder), load_source("host"))
        ]
        self._collector = Collector(
            [PlannedSource(worker) for worker in self._workers],
            node="soak",
            interval=1.0,
            clock=self._clock,
            ledger=ErrorLedger(None),
        )
        builders = [load_family(name).build(Settings()) for name in ("native", "host")]
        exporter = Exporter(builders, openmetrics=True, title="soak")
        self._handler = exporter.handler()
        self._loop = asyncio.new_event_loop()
        self._collector.subscribe(exporter.publish)
        self.cycles = 0

    def _nvml_spec(self, folder: Path) -> SourceSpec:
        clocks = Clocks(now=self._clock.now, monotonic=self._clock.monotonic)
        return SourceSpec(name="nvml", summary="", open=lambda settings: NvmlSource(folder, clocks))

    def run(self, cycles: int) -> int:
        """Run more cycles; return the resident memory after them."""
        for _ in range(cycles):
            self._cycle()
        gc.collect()
        return resident_bytes()

    def _cycle(self) -> None:
        self.cycles += 1
        self._clock.pass_seconds(1.0)
        if self.cycles % CYCLES_PER_CHANGE == 0:
            self._change(self.cycles // CYCLES_PER_CHANGE)
        for worker in self._workers[: 2 if self.cycles % 5 == 0 else 1]:  # the host every 5 s
            worker.read_once()
        self._collector.compose()
        if self.cycles % 15 == 0:
            for headers in ((), AS_PROMETHEUS):
                answering = self._handler(Request("GET", "/metrics", headers))
                if self._loop.run_until_complete(answering).status != 200:
                    raise AssertionError("a scrape failed")

    def _change(self, number: int) -> None:
        """Add and remove processes, MIG instances, XIDs, GPUs and the driver."""
        with self._driver.at_once():
            self._driver.advance(CYCLES_PER_CHANGE)
            self._driver.processes(0, [Process(1 + number * 5 + i, name=f"run-{number}-{i}") for i in range(5)])
            self._driver.mig(1, [Mig(gi=1 + number % 3)] if number % 4 else [])
            self._driver.xid(0, 13 + number % 2)
            (self._driver.lose if number % 3 == 0 else self._driver.find)(0)
            if number % 12 == 5:  # in every round: the first sessions after a reload still add to the heap
                self._driver.reload()

    def close(self) -> None:
        self._loop.close()
        for worker in self._workers:
            worker.stop()
            worker.run()


@contextmanager
def soaking(driver: FakeDriver, folder: Path) -> Iterator[Soak]:
    soak = Soak(driver, folder)
    try:
        yield soak
    finally:
        soak.close()
