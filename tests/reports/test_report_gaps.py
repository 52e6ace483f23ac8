"""Histories with something missing: the report says what, in hours, and the rest is still the truth."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from gpuscope.history.engines.http_connection import EngineConnection
from gpuscope.history.engines.http_engine import HttpEngine
from gpuscope.history.promql.result import Matrix
from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.model.series import Series
from tests.engines import running_prometheus
from tests.promql.prometheus import fill
from tests.reports.simulated_usage import Run, SimulatedUsage
from tests.reports.test_simulated_fleets import END_MS, HOUR, report, short_jobs
from tests.reports.test_usage import SampleEngine, gpu, owner
from tests.reports.test_usage import report as report_of_rates


def test_an_agent_that_was_down_for_hours() -> None:
    runs = [Run("ann", "1", 0, 0, 6 * HOUR), Run("bob", "2", 1, 5 * HOUR, 6 * HOUR)]
    down = (2 * HOUR, 4 * HOUR)
    simulated = SimulatedUsage(
        END_MS, 6 * HOUR, 2, runs, restarts=[down[1]], gaps=[down], cycle=15, scrape_at=0
    ).simulate()
    found = report(simulated.series(), "user", "samples", simulated.start_ms, simulated.end_ms)
    held = {row.names[0]: row.held for row in found.rows}
    assert held == {"ann": pytest.approx(4, rel=0.005), "bob": pytest.approx(1, rel=0.005)}
    assert found.invariant.lost == pytest.approx(4, rel=0.005), "two GPUs for two hours"
    assert found.invariant.holds
    assert found.missing == ["n1: 4.0 GPU-hours lost: the agent was down or a GPU did not answer"]


def test_a_node_that_is_silent_at_the_end() -> None:
    """It is down, or its samples are on their way: a report cannot tell."""
    runs = [Run("ann", "1", 0, 0, 6 * HOUR)]
    simulated = SimulatedUsage(
        END_MS, 6 * HOUR, 1, runs, gaps=[(4 * HOUR, 6 * HOUR + 1)], cycle=15, scrape_at=0
    ).simulate()
    found = report(simulated.series(), "user", "samples", simulated.start_ms, simulated.end_ms)
    assert found.invariant.lost == pytest.approx(2, rel=0.005)
    (sentence,) = found.missing
    assert sentence.key == "missing.silent_node"
    last_second = simulated.start_ms / 1000 + 4 * HOUR
    assert 0 <= float(sentence.args["at"]) - last_second <= 180, "the end of the chunk with its last sample"
    assert sentence.endswith("the agent is down, or its samples have not arrived yet")


class ArrivingSamples(SampleEngine):
    """A scrape of the last minutes is stored while a report is read: after its first few queries."""

    def __init__(self, samples: list[Series], arrives_after: int) -> None:
        cut_ms = END_MS - 60_000
        kept = [one.timestamps <= cut_ms for one in samples]
        before = [
            Series(one.labels, one.timestamps[few], one.values[few])
            for one, few in zip(samples, kept, strict=True)
            if few.any()
        ]
        super().__init__(before)
        self._all = SampleEngine(samples)
        self._left = arrives_after

    async def range(self, *args: Any, **options: Any) -> Matrix:
        self._left -= 1
        if self._left < 0:
            return await self._all.range(*args, **options)
        return await super().range(*args, **options)


@pytest.mark.parametrize("arrives_after", range(12))
def test_a_scrape_that_is_stored_while_a_report_is_read(arrives_after: int) -> None:
    engine = ArrivingSamples([*gpu(0, held=0.5, free=0.5), *owner("ann", 0, 0.5)], arrives_after)
    question = UsageQuestion(parse_grouping("user"), END_MS - HOUR * 1000, END_MS, source="samples")
    found = asyncio.run(usage_report(engine, question))
    assert found.invariant.holds
    assert "missing.parts_differ" not in {one.key for one in found.missing}


def test_a_node_whose_clock_runs_fast() -> None:
    fleet = [*gpu(0, held=1.05, observed=1.05), *owner("ann", 0, 1.05)]
    found = report_of_rates(fleet=fleet)
    assert found.missing[0] == (
        "n1: its counters grew 0.20 h more than the range has: the clocks of the node and the server differ"
    )


def test_jobs_of_20_seconds_each_have_their_seconds() -> None:
    """Half of them are seen by a single scrape; none is lost or guessed."""
    runs = short_jobs(20, 0)
    simulated = SimulatedUsage(END_MS, 4 * HOUR, 1, runs).simulate()
    found = report(simulated.series(), "job", "samples", simulated.start_ms, simulated.end_ms)
    assert {row.names[0]: round(row.held * HOUR) for row in found.rows} == {run.job: 20 for run in runs}


@pytest.mark.engine("prometheus")
def test_an_engine_that_loads_few_samples() -> None:
    """A busy hour has more series than a real Prometheus with a small limit reads at once."""
    runs = [Run("ann", "1", 0, 0, 6 * HOUR), *(Run(f"u{n}", f"{n}", 1, 3 * HOUR, 4 * HOUR) for n in range(40))]
    simulated = SimulatedUsage(END_MS, 6 * HOUR, 2, runs, cycle=15, scrape_at=0).simulate()
    question = UsageQuestion(parse_grouping("user"), simulated.start_ms, simulated.end_ms, source="samples")

    async def ask(url: str) -> UsageReport:
        engine = HttpEngine(EngineConnection(url))
        try:
            return await usage_report(engine, question)
        finally:
            await engine.close()

    with running_prometheus(flags=["--query.max-samples=500"]) as url:
        fill(url, simulated.series())
        found = asyncio.run(ask(url))
    (sentence,) = found.missing
    hours = float(sentence.removeprefix("the engine refused ").partition(" ")[0])
    assert sentence.endswith("query processing would load too many samples into memory in query execution")
    assert 1 <= hours <= 4
    held = {row.names[0]: row.held for row in found.rows}
    assert held == {"ann": pytest.approx(6 - hours, rel=0.005)}, "what was read is the truth"
    assert found.invariant.gpu_hours == pytest.approx(2 * (6 - hours), rel=0.005)
    assert found.invariant.holds


DAYS = 365


def year_of_rollups() -> list[Series]:
    """Ann holds half of one GPU for a year; daily sums by owner beside the hourly ones."""
    hours = DAYS * 24
    first_ms = (END_MS // 60_000 - 60 * hours) * 60_000 + 23_456
    hourly = first_ms + 3_600_000 * np.arange(1, hours + 1, dtype=np.int64)
    daily = hourly[23::24] + 1_800_000
    board, ann = {"instance": "n1", "uuid": "GPU-0"}, {"kind": "user", "name": "ann"}
    rows: list[tuple[str, dict[str, str], np.ndarray, float]] = [
        ("gpu_observed_seconds:growth1h", board, hourly, 3600.0),
        ("gpu_held_seconds:growth1h", board, hourly, 1800.0),
        ("gpu_free_seconds:growth1h", board, hourly, 1800.0),
        # The hourly sums of the owner are wrong here: a report that reads the days does not see them.
        ("owner_gpu_seconds:growth1h", {**board, **ann}, hourly, 1.0),
        ("owner_gpu_seconds:growth1d", ann, daily, 24 * 1800.0),
        ("owner_busy_seconds:growth1d", ann, daily, 24 * 900.0),
    ]
    series = [
        Series(tuple(sorted({"__name__": f"gpuscope:{name}", **labels}.items())), at, np.full(len(at), value))
        for name, labels, at, value in rows
    ]
    for name, at in (("hourly", hourly), ("daily", daily)):
        series.append(Series((("__name__", f"gpuscope:rollup_evaluated:{name}"),), at, at / 1000))
    return series


def test_a_year_by_owner_is_read_from_days() -> None:
    found = report(year_of_rollups(), "user", "auto", END_MS - DAYS * 24 * 3_600_000, END_MS)
    (row,) = found.rows
    assert row.held == pytest.approx(DAYS * 12, rel=0.005)
    assert row.busy == pytest.approx(DAYS * 6, rel=0.005)
    assert found.invariant.gpu_hours == pytest.approx(DAYS * 24, rel=0.001)
    assert found.invariant.holds
