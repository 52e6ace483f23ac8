"""Findings over a time range against histories whose truth is known: who lost what, how often, the price."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from gpuscope.history.promql.parse import parse
from gpuscope.judge.checks.check import Check, Share
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.checks.finding_texts import FINDING_TEXTS, NOT_FINDINGS, STEP_TEXTS, fill
from gpuscope.judge.checks.thresholds import STARTING_SECONDS
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.judge.reports.findings.past_findings import PastFinding, PastFindings, past_findings
from gpuscope.judge.reports.rates import parse_rates
from tests.fakes import Keywords
from tests.reports.histories import START_MS, STEP_MS, History

MINUTE = 1 / 60
STARTING = STARTING_SECONDS / 60
"""A process that has just started does not wait."""


def report(
    history: History, *, begin: int = 0, end: int | None = None, rate: str = "", fold: bool = False
) -> PastFindings:
    async def read() -> PastFindings:
        ledger = FindingLedger(history.engine())
        now_ms = history.end_ms + 60_000
        await ledger.update(now_ms)
        while await ledger.cover(START_MS, now_ms):
            pass
        start_ms = START_MS + begin * STEP_MS
        end_ms = history.end_ms if end is None else START_MS + end * STEP_MS
        rates = parse_rates(rate) if rate else None
        return past_findings(ledger.windows(start_ms, end_ms), start_ms, end_ms, rates=rates, fold=fold)

    return asyncio.run(read())


def by_kind(found: PastFindings) -> dict[str, PastFinding]:
    kinds = {one.finding.kind: one for one in found.findings}
    assert len(kinds) == len(found.findings), [one.finding.kind for one in found.findings]
    return kinds


def test_a_gpu_held_idle_costs_from_when_it_last_worked() -> None:
    history = History()
    gpu = history.gpu(0, processes=1.0)
    history.process(gpu, "7", end=600, idle_since=120, user="alice", slurm_job="17")
    history.process(gpu, "8", begin=600, end=1200, idle_since=900, user="alice", slurm_job="18")
    history.process(gpu, "9", begin=1200, user="bob")
    found = by_kind(report(history))["held_idle"]
    assert found.finding.cost_gpu_hours == pytest.approx((480 + 300) * MINUTE, rel=0.005)
    assert (found.times, found.jobs, found.nodes) == (2, ("17", "18"), ("n1",))
    assert found.finding.owner.label == "alice"
    assert found.finding.since == pytest.approx(history.at(120), abs=60)
    assert found.finding.until == pytest.approx(history.at(1200), abs=60)
    assert found.finding.why == "alice held and did not use 1 of the GPUs"


@pytest.mark.parametrize("pushed_until", [None, 700])
def test_a_node_that_is_pushed_and_scraped_loses_its_time_once(pushed_until: int | None) -> None:
    history = History()
    for instance, end in (("n1:9400", None), ("n1", pushed_until)):
        gpu = history.gpu(0, instance=instance, end=end, processes=1.0)
        history.process(gpu, "7", end=end, idle_since=120, user="alice", slurm_job="17")
    found = report(history)
    held_idle = by_kind(found)["held_idle"]
    assert held_idle.finding.cost_gpu_hours == pytest.approx(22, rel=0.005)
    assert (held_idle.finding.gpus, held_idle.nodes) == (("0",), ("n1",))
    assert (found.coverage.gpus, found.coverage.gpu_hours) == (1, 24)
    assert found.coverage.known_gpu_hours == pytest.approx(24, abs=2 * MINUTE)


def test_a_scrape_that_fails_is_no_node_that_is_down_while_it_pushes() -> None:
    history = History()
    history.gpu(0, instance="n1:9400", end=600, processes=1.0)
    history.gpu(0, instance="n1", end=1200, processes=1.0)
    history.add("up", 1.0, 0, 600, instance="n1:9400", job="gpus")
    history.add("up", 0.0, 600, instance="n1:9400", job="gpus")
    down = by_kind(report(history))["node_down"]
    assert down.finding.cost_gpu_hours == pytest.approx(4, rel=0.02)
    assert down.finding.since == pytest.approx(history.at(1200), abs=300)


def test_late_samples_of_a_second_reporter_are_read_once() -> None:
    history = History()
    for instance in ("n1", "n1:9400"):
        history.gpu(0, instance=instance, processes=1.0)

    async def read() -> bool:
        ledger = FindingLedger(history.engine())
        now_ms = history.end_ms + 60_000
        await ledger.update(now_ms)
        while await ledger.cover(START_MS, now_ms):
            pass
        return await ledger.recheck(now_ms)

    assert not asyncio.run(read()), "nothing has changed"


def test_two_owners_of_a_gpu_share_its_cost_by_memory() -> None:
    history = History()
    gpu = history.gpu(0, processes=2.0)
    history.process(gpu, "7", idle_since=0, memory_bytes=40e9, user="alice")
    history.process(gpu, "8", idle_since=0, memory_bytes=10e9, user="bob")
    costs = {one.finding.owner.name: one.finding.cost_gpu_hours for one in report(history, end=600).findings}
    assert costs == {"alice": pytest.approx(8.0, rel=0.005), "bob": pytest.approx(2.0, rel=0.005)}


def test_costs_never_exceed_the_time_of_the_gpu() -> None:
    """Idle, allocated and without a process on another GPU of the pod: the first row that claims it has it."""
    history = History()
    gpus = [history.gpu(number, processes=1.0) for number in range(2)]
    owner: Keywords = {"user": "root", "namespace": "ml", "pod": "train-0"}
    history.process(gpus[0], "7", program="train", **owner)
    history.process(gpus[1], "8", idle_since=0, program="train", **owner)
    history.add("gpuscope_gpu_utilization_minute_ratio", 0.0, **gpus[1])
    history.add("gpuscope_process_io_wait_ratio", 0.9, **gpus[1], pid="8", **owner)
    found = by_kind(report(history))
    costs = {kind: one.finding.cost_gpu_hours or 0.0 for kind, one in found.items()}
    assert sum(costs.values()) == pytest.approx(24, rel=0.005)
    assert costs["only_some_work"] == pytest.approx(23.9, abs=0.2)


@pytest.mark.parametrize(
    ("kind", "metric"),
    [
        ("waits_for_disk", "gpuscope_process_io_wait_ratio"),
        ("waits_for_network", "gpuscope_process_network_wait_ratio"),
        ("waits_for_data", "gpuscope_process_busiest_thread_ratio"),
    ],
)
def test_a_gpu_that_waits_costs_what_it_does_not_use(kind: str, metric: str) -> None:
    history = History()
    gpu = history.gpu(0, processes=1.0)
    labels = history.process(gpu, "7", user="alice", slurm_job="17")
    history.add("gpuscope_gpu_utilization_minute_ratio", 0.25, 0, 600, **gpu)
    history.add("gpuscope_gpu_utilization_minute_ratio", 0.95, 600, **gpu)
    history.add(metric, 0.95, **labels)
    history.add("gpuscope_process_children_cpu_ratio", 0.9, **labels)
    found = by_kind(report(history))[kind]
    assert found.finding.cost_gpu_hours == pytest.approx(0.75 * (600 - STARTING) * MINUTE, rel=0.005)
    assert found.finding.owner.name == "alice"


def test_a_rank_that_waits_for_another_node() -> None:
    history = History()
    for instance, watts in (("n1:9400", 140.0), ("n2:9400", 630.0)):
        gpu = history.gpu(0, instance=instance, processes=1.0)
        history.process(gpu, "7", program="17.0", user="alice", slurm_job="17")
        history.add("gpuscope_gpu_utilization_minute_ratio", 1.0, **gpu)
        history.add("gpuscope_gpu_power_minute_watts", watts, 0, 300, **gpu)
        history.add("gpuscope_gpu_power_minute_watts", 630.0, 300, **gpu)
        history.add("gpuscope_gpu_power_limit_watts", 700.0, **gpu, limit="enforced")
    found = by_kind(report(history))["waits_for_rank"]
    assert found.finding.cost_gpu_hours == pytest.approx(0.8 * (300 - STARTING) * MINUTE, rel=0.005)
    assert found.finding.uuids == ("GPU-n1-0",)


def test_a_hung_gpu_costs_from_its_beginning() -> None:
    history = History()
    gpu = history.gpu(0, processes=1.0)
    history.process(gpu, "7", user="alice")
    history.add("gpuscope_gpu_hung_seconds", lambda minute: 60.0 * (minute - 60), 60, 360, **gpu)
    found = by_kind(report(history))["hung"]
    assert found.finding.cost_gpu_hours == pytest.approx(5, rel=0.005)


def test_lost_gpus_nodes_that_are_down_and_memory_without_an_owner() -> None:
    history = History()
    for number in range(2):
        history.gpu(number, end=600, processes=1.0)
    history.add("up", 1.0, 0, 600, instance="n1:9400", job="gpus")
    history.add("up", 0.0, 600, instance="n1:9400", job="gpus")
    other = history.gpu(0, instance="n2:9400", processes=1.0)
    history.add("gpuscope_gpu_up", 0.0, 1200, **other)
    history.add("gpuscope_gpu_unlisted_memory_bytes", 4e10, 0, 300, **other)
    history.add("gpuscope_gpu_utilization_ratio", 0.0, **other)
    history.add("gpuscope_gpu_memory_total_bytes", 8e10, **other)
    found = by_kind(report(history))
    assert found["node_down"].finding.cost_gpu_hours == pytest.approx(2 * 14, rel=0.005)
    assert found["gpu_lost"].finding.cost_gpu_hours == pytest.approx(4, rel=0.005)
    assert found["orphan_memory"].finding.cost_gpu_hours == pytest.approx(2.5, rel=0.005)


def test_a_gpu_that_is_free_for_a_day_is_unused_from_the_beginning() -> None:
    history = History(minutes=40 * 60)
    for number, free_from in enumerate((600, 1200)):
        gpu = history.gpu(number, processes=0.0)
        history.add("gpuscope_gpu_free_for_seconds", free_for(free_from), **gpu)
    unused = by_kind(report(history))["unused"]
    assert unused.finding.uuids == ("GPU-n1-0",), "the other one is free for 20 hours"
    assert unused.finding.cost_gpu_hours == pytest.approx(30, rel=0.005)


def free_for(minute_free: int) -> Callable[[int], float]:
    return lambda minute: max(0.0, 60.0 * (minute - minute_free))


def test_a_queue_that_waits_while_gpus_are_free() -> None:
    history = History()
    history.gpu(0, processes=0.0)
    slurm: Keywords = {"instance": "head:9400"}
    history.add("gpuscope_slurm_partition_gpus_requested", 8.0, 0, 240, **slurm, partition="gpu", gres="gpu")
    pending = {**slurm, "partition": "gpu", "reason": "Resources"}
    history.add("gpuscope_slurm_partition_jobs_pending", 3.0, 0, 240, **pending)
    history.add("gpuscope_slurm_gpus", 1.0, **slurm, gres="gpu", state="idle")
    history.add("gpuscope_slurm_node_gpus", 1.0, **slurm, node="n1", gres="gpu", state="idle")
    found = by_kind(report(history))
    assert found["queue_waits"].finding.cost_gpu_hours == pytest.approx(4, rel=0.005)


def test_throttled_for_hours_and_slower_than_its_siblings() -> None:
    history = History()
    for number in range(3):
        gpu = history.gpu(number, processes=1.0)
        slow = number == 2
        history.add("gpuscope_gpu_clock_hertz", 1e9 if slow else 2e9, **gpu, clock="sm")
        history.add("gpuscope_gpu_clock_max_hertz", 2e9, **gpu, clock="sm")
        history.add("gpuscope_gpu_utilization_ratio", 1.0, **gpu)
        reason = {**gpu, "reason": "hw_thermal_slowdown"}
        history.add("gpuscope_gpu_throttle_reason", float(slow), 0, 300, **reason)
        history.add("gpuscope_gpu_throttle_reason", float(number == 1), 300, 330, **reason)
    costs = {
        (one.finding.kind, one.finding.gpus): one.finding.cost_gpu_hours for one in report(history).findings
    }
    assert costs == {
        ("throttled", ("2",)): pytest.approx(2.5, rel=0.005),
        ("throttled", ("1",)): 0.0,  # at its full clock nothing is lost
        ("slow_sibling", ("2",)): pytest.approx(0.5 * 19, rel=0.01),
    }


def test_what_is_lost_is_not_known_where_no_clock_is_read() -> None:
    history = History()
    gpu = history.gpu(0, processes=1.0)
    history.add("gpuscope_gpu_throttle_reason", 1.0, 60, 300, **gpu, reason="hw_thermal_slowdown")
    throttled = by_kind(report(history))["throttled"]
    assert throttled.finding.since == START_MS / 1000 + 3600
    assert throttled.hours == pytest.approx(4, rel=0.01)
    assert throttled.finding.cost_gpu_hours is None


def test_the_price_is_that_of_the_model_and_a_mig_instance_counts_by_its_slices() -> None:
    history = History()
    for number, model in enumerate(("NVIDIA H100", "NVIDIA A100", "NVIDIA L4")):
        history.process(history.gpu(number, model=model, processes=1.0), "7", idle_since=0, user=f"u{number}")
    board = history.gpu(3)
    instance = {**board, "gpu": "3_7_0", "uuid": "MIG-1"}
    history.add("gpuscope_mig_info", 1.0, **instance, parent_uuid=board["uuid"], profile="2g.20gb")
    history.process(instance, "9", idle_since=0, user="u3")
    found = report(history, rate="H100=7,A100=1")
    costs = {one.finding.owner.name: (one.finding.cost_gpu_hours, one.cost) for one in found.findings}
    assert costs["u0"] == (pytest.approx(24, rel=0.005), pytest.approx(168, rel=0.005))
    assert costs["u1"] == (pytest.approx(24, rel=0.005), pytest.approx(24, rel=0.005))
    assert costs["u2"] == (pytest.approx(24, rel=0.005), None)
    assert costs["u3"] == (pytest.approx(24 * 2 / 7, rel=0.005), pytest.approx(48, rel=0.005))
    assert found.unpriced_models == ["NVIDIA L4"]
    assert [one.finding.owner.name for one in found.findings] == ["u0", "u3", "u1", "u2"]


def test_a_range_clips_what_reaches_beyond_it() -> None:
    history = History()
    history.process(history.gpu(0, processes=1.0), "7", idle_since=0, user="alice")
    found = report(history, begin=400, end=1000)
    (one,) = found.findings
    assert one.finding.cost_gpu_hours == pytest.approx(10, rel=0.005)
    assert one.finding.until is None
    assert found.coverage.known_gpu_hours == pytest.approx(10, rel=0.005)


def test_small_ones_are_folded_and_nothing_is_lost() -> None:
    history = History()
    for number in range(12):
        gpu = history.gpu(number, processes=1.0)
        history.process(gpu, "7", idle_since=0, end=1440 if number < 6 else 31, user=f"u{number:02}")
    found, whole = report(history, fold=True), report(history)
    assert [one.finding.owner.name for one in found.findings] == [f"u{number:02}" for number in range(6)]
    ((folded),) = found.folded
    assert (folded.kind, folded.count) == ("held_idle", 6)
    everything = sum(one.finding.cost_gpu_hours or 0.0 for one in whole.findings)
    shown = sum(one.finding.cost_gpu_hours or 0.0 for one in found.findings)
    assert shown + folded.cost_gpu_hours == pytest.approx(everything)


def test_what_is_missing_is_said_in_hours() -> None:
    history = History()
    history.gpu(0, begin=300, end=600)
    history.gpu(0, begin=720)
    sentences = " ".join(report(history).coverage.sentences)
    assert "the history begins 5.0 h after the start of the range" in sentences
    assert "2.0 GPU-hours are missing" in sentences
    assert "without processes and owners" in sentences
    coverage = report(history).coverage
    assert coverage.gpu_hours == pytest.approx(19, rel=0.005)
    assert coverage.known_gpu_hours + coverage.missing_gpu_hours == pytest.approx(coverage.gpu_hours)
    assert "no GPU in this range" in " ".join(report(History()).coverage.sentences)


@pytest.mark.parametrize("check", [one for one in CHECKS.values() if one.kind not in NOT_FINDINGS],
                         ids=lambda check: check.kind)  # fmt: skip
def test_the_text_of_a_kind_is_complete(check: Check) -> None:
    key = f"past.{check.kind}" if f"past.{check.kind}" in FINDING_TEXTS else check.kind
    assert key in FINDING_TEXTS
    if check.share is not Share.NONE:
        parse(check.lost or check.promql)
        assert check.kind in STEP_TEXTS
        assert "{" not in fill(FINDING_TEXTS[key], {"gpus": "0", "owner": "alice", "count": 1})


def test_an_allocation_without_a_process() -> None:
    history = History()
    for number in range(8):
        gpu = history.gpu(number, processes=1.0 if number < 2 else 0.0)
        history.add("gpuscope_allocation_used", float(number < 2), **gpu, slurm_job="17")
    found = by_kind(report(history))["allocated_unused"]
    assert found.finding.cost_gpu_hours == pytest.approx(6 * 24, rel=0.01)
    assert (found.finding.owner.label, found.finding.args) == ("job 17", {"count": 6})


def test_evidence_shows_the_finding_and_no_other() -> None:
    history = History()
    history.process(history.gpu(0, processes=1.0), "7", idle_since=0, user='a"b')
    history.process(history.gpu(1, processes=1.0), "8", idle_since=0, user="bob")
    for one in report(history).findings:
        shown = asyncio.run(history.engine().instant(one.finding.evidence, history.end_ms - STEP_MS))
        assert [dict(labels)["user"] for labels in shown.labels] == [one.finding.owner.name]
