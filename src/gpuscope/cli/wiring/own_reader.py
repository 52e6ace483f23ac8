"""The live picture of this machine from a collector of this process: no agent and no server is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterator

from gpuscope.agent.collect.collector import Collector
from gpuscope.agent.families.host.builder import HostFamily
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.families.selection import MetricSelection
from gpuscope.cli.wiring.live_readers import SHOWN_METRICS, Picture, to_picture
from gpuscope.cli.wiring.run_agent import CollectorThreads
from gpuscope.judge.checks.facts import Sample
from gpuscope.model.readings import Snapshot
from gpuscope.serve.live.fleet_judge import FleetJudge
from gpuscope.serve.live.sample_judge import SampleJudge


class OwnReader:
    """`read` makes a new snapshot; the workers of the sources run in threads of their own until `close`."""

    is_local = True
    origin = ""

    def __init__(self, collector: Collector) -> None:
        self._threads = CollectorThreads(collector)
        only = MetricSelection(SHOWN_METRICS)
        self._builders = (NativeBuilder(only), HostFamily(only))
        self._judge = SampleJudge()
        self._fleet = FleetJudge(self._judge)
        self._started = False

    @property
    def collector(self) -> Collector:
        return self._threads.collector

    def start(self) -> None:
        if not self._started:
            self._started = True
            self._threads.start_workers()

    def read(self) -> Picture:
        self.start()
        return self.to_picture(self.collector.tick())

    def read_twice(self, seconds_apart: float, max_seconds: float) -> Picture:
        """For one-shot commands: some numbers need two readings."""
        self.start()
        self.collector.tick()
        threading.Event().wait(seconds_apart)
        self.collector.tick()
        self.collector.finish_reading(max_seconds)
        return self.to_picture(self.collector.snapshot)

    def to_picture(self, snapshot: Snapshot) -> Picture:
        samples = list(self._samples(snapshot))
        now = snapshot.taken_at
        picture = dict(to_picture(samples, self._judge, self._fleet, now=now, source="this machine"))
        affinities = ((device.uuid, device.memory_affinity) for device in snapshot.devices)
        picture["numa"] = {uuid: str(sorted(words.items())) for uuid, words in affinities if words}
        if not any(not device.lost for device in snapshot.devices):
            down = [f"{status.name}: {status.why}" for status in snapshot.sources if not status.up]
            picture["notes"] = ["no GPU readable; run `gpuscope doctor` for details", *down]
        return picture

    def close(self) -> None:
        if self._started:
            self._threads.stop()

    def _samples(self, snapshot: Snapshot) -> Iterator[Sample]:
        for builder in self._builders:
            for family in builder.to_families(snapshot):
                for labels, value in family.samples:
                    yield family.name, {**dict(labels.pairs), "instance": snapshot.node}, value
