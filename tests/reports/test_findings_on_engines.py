"""The same history gives the same findings and costs on every engine."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.checks.check import Share
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.judge.reports.findings.past_findings import PastFindings, past_findings
from gpuscope.judge.reports.rates import parse_rates
from tests.fakes import Keywords
from tests.reports.filled_engines import ENGINES, Fill
from tests.reports.histories import START_MS, History

JOB: Keywords = {"user": "alice", "slurm_job": "17"}


def every_kind() -> History:
    """Half a day in which each priced kind has a GPU of its own."""
    history = History(minutes=12 * 60)
    idle = history.gpu(0, processes=1.0)
    history.process(idle, "1", idle_since=100, end=500, **JOB)
    history.gpu(1, processes=0.0)
    for number, metric in enumerate(("io_wait", "network_wait", "busiest_thread"), 2):
        gpu = history.gpu(number, processes=1.0)
        labels = history.process(gpu, "2", user=f"user{number}")
        history.add(f"gpuscope_process_{metric}_ratio", 0.95, 60, 360, **labels)
        history.add("gpuscope_process_children_cpu_ratio", 0.9, **labels)
        history.add("gpuscope_gpu_utilization_minute_ratio", 0.2, 60, 360, **gpu)
    hung = history.gpu(5, processes=1.0)
    history.process(hung, "5", user="erin")
    history.add("gpuscope_gpu_hung_seconds", lambda minute: 60.0 * (minute - 60), 60, 360, **hung)
    hot = history.gpu(6, processes=1.0)
    history.add("gpuscope_gpu_clock_hertz", 1e9, **hot, clock="sm")
    history.add("gpuscope_gpu_clock_max_hertz", 2e9, **hot, clock="sm")
    history.add("gpuscope_gpu_throttle_reason", 1.0, 0, 300, **hot, reason="hw_thermal_slowdown")
    orphaned = history.gpu(7, processes=1.0)
    history.add("gpuscope_gpu_unlisted_memory_bytes", 4e10, 0, 300, **orphaned)
    history.add("gpuscope_gpu_utilization_ratio", 0.0, **orphaned)
    history.add("gpuscope_gpu_memory_total_bytes", 8e10, **orphaned)
    for instance, watts in (("n2:9400", 140.0), ("n3:9400", 630.0)):
        rank = history.gpu(0, instance=instance, model="NVIDIA A100", processes=1.0)
        history.process(rank, "7", program="18.0", user="rank", slurm_job="18")
        history.add("gpuscope_gpu_utilization_minute_ratio", 1.0, **rank)
        history.add("gpuscope_gpu_power_minute_watts", watts, **rank)
        history.add("gpuscope_gpu_power_limit_watts", 700.0, **rank, limit="enforced")
    uneven = [history.gpu(number, instance="n4:9400", processes=1.0) for number in range(2)]
    pod: Keywords = {"user": "root", "namespace": "ml", "pod": "train-0"}
    history.process(uneven[0], "8", program="train", **pod)
    history.process(uneven[1], "9", idle_since=120, program="train", **pod)
    free = history.gpu(2, instance="n4:9400", processes=0.0)
    history.add("gpuscope_gpu_free_for_seconds", lambda minute: 60.0 * minute + 86400.0, 60, **free)
    _with_slurm_and_clocks(history)
    history.gpu(0, instance="n5:9400", end=600, processes=1.0)
    history.add("up", 0.0, 600, instance="n5:9400", job="gpus")
    return history


def _with_slurm_and_clocks(history: History) -> None:
    """Jobs that wait while a GPU is idle, an allocation without a process, a lost and a slow GPU."""
    slurm: Keywords = {"instance": "head:9400"}
    history.add("gpuscope_slurm_partition_gpus_requested", 8.0, 0, 240, **slurm, partition="gpu", gres="gpu")
    pending = {**slurm, "partition": "gpu", "reason": "Resources"}
    history.add("gpuscope_slurm_partition_jobs_pending", 3.0, 0, 240, **pending)
    history.add("gpuscope_slurm_gpus", 1.0, **slurm, gres="gpu", state="idle")
    history.add("gpuscope_slurm_node_gpus", 1.0, **slurm, node="n6", gres="gpu", state="idle")
    history.gpu(0, instance="n6:9400", processes=0.0)
    allocated = history.gpu(1, instance="n6:9400", processes=0.0)
    history.add("gpuscope_allocation_used", 0.0, 60, 360, **allocated, slurm_job="19")
    lost = history.gpu(2, instance="n6:9400", processes=1.0)
    history.add("gpuscope_gpu_up", 0.0, 300, **lost)
    for number in range(3):
        gpu = history.gpu(number, instance="n7:9400", processes=1.0)
        history.add("gpuscope_gpu_clock_hertz", 1.2e9 if number == 1 else 2e9, **gpu, clock="sm")
        history.add("gpuscope_gpu_utilization_ratio", 1.0, **gpu)


async def read(engine: QueryEngine, history: History) -> PastFindings:
    ledger = FindingLedger(engine)
    now_ms = history.end_ms + 60_000
    await ledger.update(now_ms)
    while await ledger.cover(START_MS, now_ms):
        pass
    windows = ledger.windows(START_MS, history.end_ms)
    await engine.close()
    rates = parse_rates("H100=2.5,*=1")
    return past_findings(windows, START_MS, history.end_ms, rates=rates, fold=False)


def costs(found: PastFindings) -> dict[tuple[str, str, tuple[str, ...]], tuple[float | None, float | None]]:
    return {
        (one.finding.kind, one.finding.owner.label, one.finding.uuids): (one.finding.cost_gpu_hours, one.cost)
        for one in found.findings
    }


@pytest.mark.parametrize("filled", ENGINES)
def test_every_engine_gives_the_same(filled: Fill, tmp_path: Path) -> None:
    history = every_kind()
    with filled(list(history.sorted_series()), tmp_path) as new_engine:
        theirs = asyncio.run(read(new_engine(), history))
    ours = asyncio.run(read(history.engine(), history))
    expected, found = costs(ours), costs(theirs)
    priced = {check.kind for check in CHECKS.values() if check.share is not Share.NONE}
    # Throttling for one reason has the form of `throttled`.
    alike = {"slurm_nodes_down", "sw_thermal", "hw_thermal", "power_brake"}
    assert {kind for kind, _, _ in expected} >= priced - alike
    assert found.keys() == expected.keys()
    for key, (gpu_hours, money) in expected.items():
        assert found[key] == (_close(gpu_hours), _close(money)), key
    assert theirs.coverage.known_gpu_hours == pytest.approx(ours.coverage.known_gpu_hours, rel=0.005)


def _close(value: float | None) -> object:
    return None if value is None else pytest.approx(value, rel=0.005, abs=0.02)
