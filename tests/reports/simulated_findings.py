"""Scenes of the simulated fleet whose truth the demo knows: who lost how many GPU-hours to what.

Each scene is ninety minutes of a node of eight GPUs, simulated a minute at a time as the demo's own history is,
and lies in a window of its own; so one engine can hold all of them. The truth comes from the simulated GPUs,
never from the samples.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import median

import numpy as np

from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.families.selection import MetricSelection
from gpuscope.cli.wiring.demo import build_demo
from gpuscope.demo.curve import POWER
from gpuscope.demo.jobs import PEOPLE
from gpuscope.demo.simulated_gpu import Gpu
from gpuscope.history.promql import Engine
from gpuscope.judge.checks.checks import CHECKED_METRICS
from gpuscope.judge.checks.facts import sort_samples
from gpuscope.judge.checks.finding import Finding
from gpuscope.judge.checks.findings import FindingMaker
from gpuscope.judge.checks.judgement import EVALUATED, Judgement
from gpuscope.judge.reports.findings.finding_ledger import WINDOW_MS
from gpuscope.model.readings import Owner, Snapshot
from gpuscope.model.series import Series
from gpuscope.serve.live.collector_samples import snapshot_samples
from tests.fakes import make_settings, present
from tests.health.judged import query
from tests.promql.memory import STALE, MemoryStorage, to_labels
from tests.reports.histories import START_MS

LEAD_MINUTES, MINUTES = 20, 90
HOURS = MINUTES / 60
UNRECORDED_MINUTES = 3
"""How often an agent reads whose samples are not needed."""
MINUTE_LOST = 30
"""When a GPU is lost, or a node stops to answer, in the scenes in which this happens."""
NEEDED = (
    "gpuscope_mig_info",
    "gpuscope_gpu_info",
    "gpuscope_gpu_processes",
    *CHECKED_METRICS,
    *{name for check in EVALUATED for name in re.findall(r"\bgpuscope_\w+", check.lost)},
)


@dataclass(frozen=True, slots=True)
class Truth:
    kind: str
    gpus: str
    """Their indices, as one word."""
    hours: float
    owner: str = ""


@dataclass(frozen=True)
class Simulated:
    number: int
    gpus: tuple[Gpu, ...]
    series: list[Series]
    last: Snapshot

    @property
    def begin(self) -> float:
        return begin_of(self.number)

    @property
    def end(self) -> float:
        return self.begin + 60 * MINUTES

    @cached_property
    def live(self) -> dict[str, Finding]:
        """What a server says that has the samples of the scene."""
        storage, judgement, now = MemoryStorage(), Judgement(), self.last.taken_at
        for one in self.series:
            storage.add(dict(one.labels), zip(one.timestamps.tolist(), one.values.tolist(), strict=True))
        engine = Engine(storage)
        for check in EVALUATED:
            vector = query(engine, check.promql, now)
            others = query(engine, check.others, now) if check.others and vector.labels else None
            judgement.apply(check, vector, now, others)
        nodes = sort_samples(snapshot_samples(self.last), now).nodes
        maker = FindingMaker(nodes, others=judgement.others)
        return {one.kind: one for one in maker.make(judgement.open_now())}

    def hours_waited(self, gpus: str) -> float:
        """Hours that these GPUs did not work, in the minutes in which they waited."""
        return sum(self._waited(self.gpus[int(index)]) for index in gpus)

    def _waited(self, gpu: Gpu) -> float:
        ends = [self.begin + 60 * minute for minute in range(MINUTES)]
        means = [(gpu.busy_seconds(at) - gpu.busy_seconds(at - 60)) / 60 for at in ends]
        return sum(1 - mean for mean in means if mean < 0.6) / 60

    def hours_below_power_limit(self, gpus: str) -> float:
        used = 0.0
        for gpu in (self.gpus[int(index)] for index in gpus):
            joules = (gpu.total(POWER, self.end) - gpu.total(POWER, self.begin)) * gpu.identity.quality
            used += joules / gpu.model.power_limit / 3600
        return len(gpus) * HOURS - used

    def job_on_first_gpu(self) -> Owner:
        gpu = self.gpus[0]
        moment = gpu.timelines[0].moment(self.begin)
        (tenant,) = moment.activity.tenants
        return gpu.run_of(tenant, moment.round_start, moment.round_number, self.begin).owner

    def clocks(self, index: int) -> list[float]:
        """The SM clock at every minute, as a share of the highest one."""
        gpu = self.gpus[index]
        return [self._clock(gpu, self.begin + 60 * minute) for minute in range(MINUTES)]

    @staticmethod
    def _clock(gpu: Gpu, at: float) -> float:
        device, _ = gpu.read(at, None)
        return device.clock_hertz["sm"] / device.clock_max_hertz["sm"]


@dataclass(frozen=True, slots=True)
class Scene:
    scenarios: tuple[str, ...]
    truths: Callable[[Simulated], Sequence[Truth]]
    has_slurm: bool = True
    starts_at_minute: int = MINUTES
    """When the program starts: an event, such as the loss of a GPU, happens then; a state began before."""
    node_ends_at_minute: int | None = None
    hours_before: int = 0
    """How long the agent has watched before the samples begin."""


def _causes(simulated: Simulated) -> Sequence[Truth]:
    return (
        Truth("waits_for_data", "01", simulated.hours_waited("01"), PEOPLE[1].user),
        Truth("waits_for_disk", "2", simulated.hours_waited("2"), PEOPLE[3].user),
        Truth("waits_for_network", "3", simulated.hours_waited("3"), PEOPLE[6].user),
        Truth("waits_for_rank", "456", simulated.hours_below_power_limit("456"), PEOPLE[8].user),
    )


def _hang_heat_and_idle(simulated: Simulated) -> Sequence[Truth]:
    return (
        Truth("hung", "01", 2 * HOURS, PEOPLE[10].user),
        Truth("hw_thermal", "2", sum(1 - clock for clock in simulated.clocks(2)) / 60),
        Truth("held_idle", "4567", 4 * HOURS, PEOPLE[2].user),
    )


def _jobs_wait(_: Simulated) -> Sequence[Truth]:
    """Another node of the simulated cluster, with as many GPUs, is down."""
    return Truth("queue_waits", "01234567", 8 * HOURS), Truth("slurm_nodes_down", "", 8 * HOURS)


def _slow_sibling(simulated: Simulated) -> Sequence[Truth]:
    clocks = [simulated.clocks(index)[0] for index in range(8)]
    return (Truth("slow_sibling", "3", (1 - clocks[3] / median(clocks)) * HOURS),)


def _broken_gpus(simulated: Simulated) -> Sequence[Truth]:
    return (
        Truth("orphan_memory", "6", _orphaned_share(simulated.gpus[6]) * HOURS),
        Truth("gpu_lost", "5", (MINUTES - MINUTE_LOST) / 60),
    )


def _orphaned_share(gpu: Gpu) -> float:
    total = gpu.model.memory_bytes
    return 0.5 * (total - gpu.model.reserved_mib * 2**20) / total


SCENES: dict[str, Scene] = {
    "causes": Scene(("slow-loader", "slow-disk", "slow-network", "slow-rank"), _causes),
    "hang-heat-idle": Scene(("hang", "thermal", "held-idle"), _hang_heat_and_idle),
    "asked-for-all": Scene(
        ("asked-for-all",),
        lambda simulated: (
            Truth("allocated_unused", "234567", 6 * HOURS, present(simulated.job_on_first_gpu().user)),
        ),
    ),
    "jobs-wait": Scene(("unused",), _jobs_wait),
    "unused": Scene(
        ("unused",),
        lambda _: (Truth("unused", "01234567", 8 * HOURS),),
        has_slurm=False,
        starts_at_minute=-17 * 60,
        hours_before=25,
    ),
    "one-works": Scene(
        ("one-works",), lambda _: (Truth("only_some_work", "1234567", 7 * HOURS, PEOPLE[0].user),)
    ),
    "slow-sibling": Scene(("slow-sibling",), _slow_sibling),
    "broken-gpus": Scene(
        ("orphan-memory", "failing-gpu", "lost-gpu"), _broken_gpus, starts_at_minute=MINUTE_LOST
    ),
    "node-down": Scene(
        (),
        lambda _: (Truth("node_down", "", 8 * (MINUTES - MINUTE_LOST) / 60),),
        node_ends_at_minute=MINUTE_LOST,
    ),
}


def begin_of(number: int) -> float:
    return (START_MS + number * WINDOW_MS) / 1000 + 60 * LEAD_MINUTES


_Key = tuple[str, tuple[tuple[str, str], ...]]
"""A metric and the labels of a sample."""


@dataclass(frozen=True, slots=True)
class _StartClock:
    at: float

    def now(self) -> float:
        return self.at

    def monotonic(self) -> float:
        return self.at


@cache
def simulate(name: str) -> Simulated:
    scene, number = SCENES[name], list(SCENES).index(name)
    begin = begin_of(number)
    settings = make_settings(
        scenario=scene.scenarios, demo_nodes=1, demo_gpus=8, demo_model="h100", idle_after=30.0
    )
    demo = build_demo(settings, _StartClock(begin + 60 * scene.starts_at_minute))
    (node,) = demo.nodes
    composer = node.build_composer()
    names = [one for one in NEEDED if scene.has_slurm or not one.startswith("gpuscope_slurm_")]
    builder, points = NativeBuilder(MetricSelection(names)), dict[_Key, list[tuple[float, float]]]()
    snapshot = Snapshot(node="", taken_at=begin)
    for minute in range(-LEAD_MINUTES - 60 * scene.hours_before, -LEAD_MINUTES, UNRECORDED_MINUTES):
        node.compose_past(composer, begin + 60 * minute, begin + 60 * minute - 60)
    for minute in range(-LEAD_MINUTES, MINUTES + 1):
        at = begin + 60 * minute
        is_up = scene.node_ends_at_minute is None or minute < scene.node_ends_at_minute
        if is_up:
            snapshot = node.compose_past(composer, at, at - 60)
        points.setdefault(("up", ()), []).append((at, float(is_up)))
        for family in builder.to_families(snapshot) if is_up else ():
            for labels, value in family.samples:
                points.setdefault((family.name, labels.pairs), []).append((at, float(value)))
    series = _to_series(points, {"instance": snapshot.node, "job": "gpuscope"}, begin + 60 * MINUTES)
    return Simulated(number, demo.fleet.node(0).gpus, series, snapshot)


def _to_series(
    points: dict[_Key, list[tuple[float, float]]], target: dict[str, str], end: float
) -> list[Series]:
    """With the marks that a scrape leaves where a series is missing."""
    found = []
    for (name, pairs), samples in points.items():
        labels = to_labels({**dict(pairs), **target, "__name__": name})
        times, values = [], []
        for place, (at, value) in enumerate(samples):
            times.append(int(at * 1000))
            values.append(value)
            is_last = place + 1 == len(samples)
            if (at < end) if is_last else samples[place + 1][0] > at + 60:
                times.append(int(at * 1000) + 60_000)
                values.append(STALE)
        found.append(Series(labels, np.array(times, np.int64), np.array(values)))
    return found
