"""Reports by every grouping, and receipts, over the embedded store and real engines: always the truth."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import time
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import pytest

from gpuscope.judge.reports.receipt.job_question import parse_job
from gpuscope.judge.reports.receipt.job_receipt import JobReceipt
from gpuscope.judge.reports.receipt.receipt_reader import read_receipt
from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_history import HistorySource
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.judge.rules.shipped.rule_files import rollup_file
from gpuscope.model.series import Series
from tests.engines import engine, running_prometheus
from tests.promql.prometheus import fill
from tests.reports.filled_engines import ENGINES, Fill, NewEngine, embedded
from tests.reports.simulated_usage import Run, SimulatedUsage, UsageTruth, with_rollups
from tests.reports.test_simulated_fleets import FLEET, HOUR
from tests.reports.test_usage import SampleEngine

BLOCK_MS = 2 * HOUR * 1000
"""promtool stops at the first block of two hours in which no evaluation falls."""
END_MS = (int(time.time()) - 180) * 1000 // BLOCK_MS * BLOCK_MS
"""Recent, and at the same place in its block at any time of the day: so are all evaluations."""
TRUTH = UsageTruth()
FRESH_FLEET = replace(FLEET, end_ms=END_MS, truth=TRUTH)
SECOND_NODE = SimulatedUsage(
    end_ms=END_MS,
    seconds=8 * HOUR,
    gpus=2,
    runs=[
        Run("root", "", 0, HOUR, 6 * HOUR, 0.6, pod="ml/train-0"),
        Run("root", "", 1, HOUR, 3 * HOUR, 0.3, pod="prod/chat-0"),
        Run("ann", "200", 1, 4 * HOUR, 7 * HOUR, 0.5, account="nlp"),
        Run("bob", "201", 0, 6 * HOUR + 600, 7 * HOUR, 0.5, account="vision"),
    ],
    node="n2",
    model="NVIDIA L40S",
    truth=TRUTH,
)
GROUPINGS = ("user", "account", "job", "pod", "namespace", "label:team", "node", "model", "mig-profile")
FEW_GROUPINGS = ("user", "label:team", "mig-profile")
"""One of owners, one that is joined, and one of GPUs: for engines where each question is a request."""


@pytest.fixture(scope="module")
def history() -> list[Series]:
    simulated = FRESH_FLEET.simulate()
    second = SECOND_NODE.simulate()
    for pod in ("ml/train-0", "prod/chat-0"):
        namespace, name = pod.split("/")
        for at_ms in range(second.start_ms + 5_000, second.end_ms, 60_000):
            second.add(at_ms, "gpuscope_pod_labels", 1.0, namespace=namespace, pod=name, label_team="blue")
    return with_rollups([*simulated.series(), *second.series()], simulated.start_ms, simulated.end_ms)


def ask(new_engine: NewEngine, by: str, source: HistorySource) -> UsageReport:
    async def run() -> UsageReport:
        one = new_engine()
        try:
            question = UsageQuestion(
                parse_grouping(by), FRESH_FLEET.start_ms, FRESH_FLEET.end_ms, source=source
            )
            return await usage_report(one, question)
        finally:
            await one.close()

    return asyncio.run(run())


def receipt(new_engine: NewEngine, name: str) -> JobReceipt:
    async def run() -> JobReceipt:
        one = new_engine()
        try:
            return await read_receipt(one, parse_job(name, FRESH_FLEET.start_ms, END_MS))
        finally:
            await one.close()

    return asyncio.run(run())


@pytest.mark.parametrize("filled", ENGINES)
def test_the_truth_on_every_engine(history: list[Series], filled: Fill, tmp_path: Path) -> None:
    groupings = GROUPINGS if filled is embedded or os.environ.get("SLOW") else FEW_GROUPINGS
    with filled(history, tmp_path) as new_engine:
        for source in ("samples", "auto"):
            for by in groupings:
                check_report(ask(new_engine, by, source), by, source)
        pieces = ask(new_engine, "user", "auto")
        assert {piece.source for piece in pieces.pieces} == {"samples", "hourly"}
        assert any("roll-ups" in note for note in pieces.notes), "the report says how long they live"
        for name in ("100", "ml/train-0"):
            check_receipt(receipt(new_engine, name), name)


def check_report(found: UsageReport, by: str, source: str) -> None:
    kind = "pod" if by.startswith("label") else by
    truth = {name: seconds / HOUR for (one, name), seconds in TRUTH.held.items() if one == kind}
    if by == "label:team":
        truth = {"blue": sum(truth.values())}
    held = {"/".join(row.names): row.held for row in found.rows}
    assert held.keys() == truth.keys(), (by, source)
    for name, hours in truth.items():
        assert held[name] == pytest.approx(hours, rel=0.005, abs=16 / HOUR), (by, source, name)
    assert sum(held.values()) == pytest.approx(sum(truth.values()), rel=0.005), (by, source)
    assert found.invariant.holds, (by, source, found.invariant)
    assert found.invariant.free == pytest.approx(TRUTH.free / HOUR, rel=0.005)
    assert found.invariant.stranded == pytest.approx(TRUTH.stranded / HOUR, rel=0.005)


def check_receipt(found: JobReceipt, name: str) -> None:
    key = ("pod", name) if "/" in name else ("job", name)
    assert found.gpu_hours == pytest.approx(TRUTH.held[key] / HOUR, rel=0.005)
    assert found.busy_hours == pytest.approx(TRUTH.busy[key] / HOUR, rel=0.005)
    assert found.energy_kwh == pytest.approx(TRUTH.held[key] / HOUR * 0.4, rel=0.005)
    assert [one for one in found.not_known if "agent was down" in one or "not read" in one] == []


@pytest.mark.engine("prometheus")
def test_a_real_prometheus_evaluates_the_rollups_to_the_same_sums(
    history: list[Series], tmp_path: Path
) -> None:
    """promtool asks the running server for every rule at every hour of the past, and writes blocks."""
    raw = [one for one in history if ":" not in dict(one.labels)["__name__"]]
    (tmp_path / "rollups.yml").write_text(rollup_file())
    with running_prometheus() as url:
        fill(url, raw)
        command = [
            str(engine("promtool")), "tsdb", "create-blocks-from", "rules", f"--url={url}",
            f"--start={-(-FRESH_FLEET.start_ms // BLOCK_MS) * BLOCK_MS // 1000}", f"--end={END_MS // 1000}",
            f"--output-dir={tmp_path / 'blocks'}", "rollups.yml",
        ]  # fmt: skip
        # In the folder: a group's place within the hour is a hash of its name and the file's path as given.
        made = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stdout + made.stderr
    (tmp_path / "blocks/wal").mkdir()  # promtool reads nothing that does not look like a data folder
    dump = [str(engine("promtool")), "tsdb", "dump", str(tmp_path / "blocks")]
    lines = subprocess.run(dump, capture_output=True, text=True, check=True).stdout.splitlines()
    sums: dict[str, float] = defaultdict(float)
    times: set[int] = set()
    for line in lines:
        if "gpuscope:owner_gpu_seconds:growth1h" in line and 'kind="user"' in line:
            labels, value, at = line.rsplit(" ", 2)
            (name,) = re.findall(r'[, {]name="(\w+)"', labels)
            sums[name] += float(value)
            times.add(int(at))
    whole = ask_in_memory(history, min(times) - HOUR * 1000, max(times))
    expected = {row.names[0]: row.held * HOUR for row in whole.rows}
    assert sums == {name: pytest.approx(seconds, rel=0.005, abs=61) for name, seconds in expected.items()}


def ask_in_memory(history: list[Series], start_ms: int, end_ms: int) -> UsageReport:
    question = UsageQuestion(parse_grouping("user"), start_ms, end_ms, source="samples")
    return asyncio.run(usage_report(SampleEngine(history), question))
