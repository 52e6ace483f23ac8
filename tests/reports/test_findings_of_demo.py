"""Scenes of the simulated fleet, judged over time on every engine and live: the truth that the demo knows."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuscope.history.engines.query_engine import QueryEngine
from gpuscope.judge.checks.check import Share
from gpuscope.judge.checks.checks import CHECKS
from gpuscope.judge.reports.findings.finding_ledger import FindingLedger
from gpuscope.judge.reports.findings.past_findings import PastFinding, PastFindings, past_findings
from tests.reports.filled_engines import ENGINES, Fill
from tests.reports.simulated_findings import SCENES, Simulated, simulate

TOLERANCE = 0.005


async def read_scenes(engine: QueryEngine) -> dict[str, PastFindings]:
    found = {}
    try:
        for name in SCENES:
            simulated = simulate(name)
            begin_ms, end_ms = int(simulated.begin * 1000), int(simulated.end * 1000)
            ledger = FindingLedger(engine)
            await ledger.update(end_ms + 60_000)
            windows = ledger.windows(begin_ms, end_ms)
            assert not any(window.failed for window in windows), [window.failed for window in windows]
            found[name] = past_findings(windows, begin_ms, end_ms, fold=False)
    finally:
        await engine.close()
    return found


def one_finding(found: PastFindings, kind: str, owner: str) -> PastFinding:
    named = [one for one in found.findings if (one.finding.kind, one.finding.owner.name) == (kind, owner)]
    assert len(named) == 1, (kind, owner, [(one.finding.kind, one.finding.owner) for one in found.findings])
    return named[0]


def check(scene: str, simulated: Simulated, found: PastFindings) -> None:
    for truth in SCENES[scene].truths(simulated):
        finding = one_finding(found, truth.kind, truth.owner).finding
        assert "".join(finding.gpus) == truth.gpus, truth
        assert finding.cost_gpu_hours == pytest.approx(truth.hours, rel=TOLERANCE), truth
        assert truth.hours > 0.3


@pytest.mark.parametrize("filled", ENGINES)
def test_every_priced_kind_costs_what_the_demo_knows(filled: Fill, tmp_path: Path) -> None:
    history = [one for name in SCENES for one in simulate(name).series]
    with filled(history, tmp_path) as new_engine:
        found: Mapping[str, PastFindings] = asyncio.run(read_scenes(new_engine()))
    for name in SCENES:
        check(name, simulate(name), found[name])
    job = str(simulate("asked-for-all").job_on_first_gpu().job)
    assert job in one_finding(found["asked-for-all"], "allocated_unused", "lei").jobs
    failing = one_finding(found["broken-gpus"], "failed_jobs", "").finding
    assert (failing.gpus, failing.cost_gpu_hours) == (("1",), None)
    # A job that waits claims the idle GPUs first.
    assert "unused" not in {one.finding.kind for one in found["jobs-wait"].findings}


def test_every_priced_kind_has_a_scene() -> None:
    shown = {truth.kind for name, scene in SCENES.items() for truth in scene.truths(simulate(name))}
    priced = {check.kind for check in CHECKS.values() if check.share is not Share.NONE}
    assert shown <= priced
    assert priced - shown == {"throttled", "sw_thermal", "power_brake"}, "they cost what `hw_thermal` costs"


def test_live_the_causes_are_named() -> None:
    live = simulate("causes").live
    assert live["waits_for_disk"].gpus == ("2",)
    assert live["waits_for_network"].gpus == ("3",)
    assert (live["waits_for_rank"].gpus, live["waits_for_rank"].args["slow"]) == (("4", "5", "6"), "GPU 7")
    assert "held_idle" not in live
    assert simulate("hang-heat-idle").live["hung"].gpus == ("0", "1")


def test_live_a_job_that_asked_for_eight_and_uses_two() -> None:
    live = simulate("asked-for-all").live["allocated_unused"]
    assert (live.gpus, live.args) == (tuple("234567"), {"used": 2})
    assert "(lei) uses 2 of its allocated GPUs: no process on GPU 2–7" in live.why


def test_live_memory_without_an_owner() -> None:
    assert simulate("broken-gpus").live["orphan_memory"].gpus == ("6",)
