"""The live view's samples: what every metric's builders would give, without building every metric."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from gpuscope.agent.collect.collector import Collector
from gpuscope.agent.families.host.builder import HostFamily
from gpuscope.agent.families.native.builder import NativeBuilder
from gpuscope.agent.families.native.table import GPU_UP, PROCESS_INFO
from gpuscope.agent.families.selection import MetricSelection
from gpuscope.cli.wiring.demo import build_demo
from gpuscope.judge.checks.facts import Sample
from gpuscope.model.readings import Pid, Snapshot
from gpuscope.serve.live.collector_samples import CollectorSamples
from gpuscope.serve.live.fleet_samples import LIVE_METRICS
from tests.fakes import make_settings
from tests.server.live.pictures import fleet_state

NODES = 3


@pytest.fixture(scope="module")
def fleet() -> tuple[list[Collector], list[list[Snapshot]]]:
    scenarios = ("lost-gpu", "xid79", "thermal")
    demo = build_demo(make_settings(source="demo", demo_nodes=NODES, demo_gpus=8, scenario=scenarios))
    now = int(time.time())  # when its faults begin
    times = range(now, now + 180, 60)
    by_node = []
    for node in demo.nodes:
        composer = node.build_composer()
        by_node.append([node.compose_past(composer, at, at - 60) for at in times])
    return demo.collectors, [list(moment) for moment in zip(*by_node, strict=True)]


def flat(own: CollectorSamples) -> list[Sample]:
    return [sample for samples in own.samples().values() for sample in samples]


def everything(snapshot: Snapshot) -> list[Sample]:
    return [
        (family.name, {**dict(labels.pairs), "instance": snapshot.node}, value)
        for builder in (NativeBuilder(), HostFamily())
        for family in builder.to_families(snapshot)
        for labels, value in family.samples
    ]


def test_the_state_is_that_of_all_metrics(fleet: tuple[list[Collector], list[list[Snapshot]]]) -> None:
    collectors, moments = fleet
    own = CollectorSamples(collectors)
    for moment in moments:
        for collector, snapshot in zip(collectors, moment, strict=True):
            collector.snapshot = snapshot
        expected = [sample for snapshot in moment for sample in everything(snapshot)]
        now = moment[0].taken_at
        state = fleet_state(flat(own), now=now, source="test", stored=expected)
        assert state == fleet_state(expected, now=now, source="test")
    assert {"lost", "busy"} <= {gpu["state"] for gpu in state["gpus"]}
    assert all(gpu["model"] for gpu in state["gpus"])  # also of the lost


def test_a_gpu_that_is_lost_a_second_later_has_no_old_numbers(
    fleet: tuple[list[Collector], list[list[Snapshot]]],
) -> None:
    """Slow metrics are used again for five seconds, but not across a loss."""
    collectors, moments = fleet
    own = CollectorSamples(collectors)
    healthy, ill = moments[0], moments[-1]
    for collector, snapshot in zip(collectors, healthy, strict=True):
        collector.snapshot = snapshot
    own.samples()
    at = healthy[0].taken_at + 1
    later = [replace(snapshot, taken_at=at) for snapshot in ill]
    for collector, snapshot in zip(collectors, later, strict=True):
        collector.snapshot = snapshot
    lost = [
        {(name, labels["uuid"]) for name, labels, _ in samples if "uuid" in labels}
        for samples in (flat(own), (sample for one in later for sample in everything(one)))
    ]
    gone = {device.uuid for snapshot in later for device in snapshot.devices if device.lost}
    assert gone
    assert {one for one in lost[0] if one[1] in gone} <= lost[1]


def test_only_what_is_shown_is_built(fleet: tuple[list[Collector], list[list[Snapshot]]]) -> None:
    snapshot = fleet[1][0][0]
    only = MetricSelection(LIVE_METRICS)
    built = [family.name for b in (NativeBuilder(only), HostFamily(only)) for family in b.to_families(snapshot)]
    assert set(built) <= set(LIVE_METRICS)
    assert len(built) == len(set(built))


@pytest.mark.parametrize("name", [GPU_UP.name, PROCESS_INFO.name, "node_load1", "gpuscope_gpu_power_watts"])
def test_one_metric_alone_is_as_among_all(
    fleet: tuple[list[Collector], list[list[Snapshot]]], name: str
) -> None:
    snapshot = fleet[1][0][0]
    only = MetricSelection([name])
    alone = [
        (family.name, {**dict(labels.pairs), "instance": snapshot.node}, value)
        for builder in (NativeBuilder(only), HostFamily(only))
        for family in builder.to_families(snapshot)
        for labels, value in family.samples
    ]
    assert alone
    assert alone == [sample for sample in everything(snapshot) if sample[0] == name]


def test_nodes_that_push_are_added_and_do_not_replace_what_is_read_here(
    fleet: tuple[list[Collector], list[list[Snapshot]]],
) -> None:
    collectors, moments = fleet
    for collector, snapshot in zip(collectors, moments[0], strict=True):
        collector.snapshot = snapshot
    names = [snapshot.node for snapshot in moments[0]]
    pushed = {
        instance: [("gpuscope_gpu_up", {"instance": instance, "uuid": "GPU-x"}, 1.0)]
        for instance in ("node7", names[0], names[1])
    }
    collectors[1].snapshot = replace(moments[0][1], devices=())  # its driver does not answer
    samples = CollectorSamples(collectors, lambda: pushed).samples()
    assert list(samples) == [*names, "node7"]
    assert samples["node7"] is pushed["node7"]
    assert samples[names[1]] is pushed[names[1]]
    assert pushed[names[0]][0] not in samples[names[0]]


def test_labels_of_what_has_gone_are_forgotten(fleet: tuple[list[Collector], list[list[Snapshot]]]) -> None:
    collectors, moments = fleet
    snapshot = moments[0][0]
    assert isinstance(snapshot.processes, tuple)
    own = CollectorSamples(collectors[:1])
    counts = []
    for turn in range(40):
        processes = tuple(
            replace(process, pid=Pid(process.pid + 1000 * turn)) for process in snapshot.processes
        )
        collectors[0].snapshot = replace(snapshot, processes=processes)
        counts.append(len(flat(own)))
        assert len(own.nodes[0].merged_labels) <= 2 * counts[-1] + 64
    assert len(set(counts)) == 1
