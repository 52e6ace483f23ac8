"""A GPU that two reporters have counts once: a node that is pushed and scraped, and one whose GPU moved."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from gpuscope.judge.reports.board_spans import board_spans
from gpuscope.judge.reports.gpu_reporters import GpuReporters, ReportedSpan, Turn, take_turns
from gpuscope.judge.reports.rates import parse_rates
from gpuscope.judge.reports.receipt.job_question import parse_job
from gpuscope.judge.reports.receipt.job_receipt import JobReceipt
from gpuscope.judge.reports.receipt.receipt_reader import read_receipt
from gpuscope.judge.reports.report_range import RangePiece
from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_history import HistorySource
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.model.series import Series
from tests.examples import examples
from tests.reports.filled_engines import ENGINES, Fill, NewEngine
from tests.reports.simulated_usage import SCRAPE_SECONDS, Layout, Run, SimulatedUsage, with_rollups
from tests.reports.test_simulated_fleets import END_MS, HOUR, assert_buckets_add_up
from tests.reports.test_usage import SampleEngine

Seconds = tuple[int, int]
"""From when to when a reporter reports."""
PUSHED, SCRAPED = "n1", "n1:9400"


def reported(simulated: SimulatedUsage, instance: str, times: Sequence[Seconds], **labels: str) -> list[Series]:
    """The history as this reporter has it."""
    kept = []
    for one in simulated.series():
        seconds = (one.timestamps - simulated.start_ms) / 1000
        inside = np.any([(begin <= seconds) & (seconds <= end) for begin, end in times], axis=0)
        if inside.any():
            pairs = {**dict(one.labels), "instance": instance, **labels}
            kept.append(Series(tuple(sorted(pairs.items())), one.timestamps[inside], one.values[inside]))
    return kept


def twice(fleet: SimulatedUsage, pushed: Sequence[Seconds], scraped: Sequence[Seconds]) -> list[Series]:
    """The same agent, pushed and scraped at different times."""
    one, other = (
        SimulatedUsage(
            fleet.end_ms, fleet.seconds, fleet.gpus, fleet.runs, fleet.layouts, fleet.restarts, scrape_at=at
        ).simulate()
        for at in (5, 10)
    )
    fleet.truth = one.truth
    return [*reported(one, PUSHED, pushed), *reported(other, SCRAPED, scraped)]


def question(by: str, fleet: SimulatedUsage, source: HistorySource) -> UsageQuestion:
    return UsageQuestion(parse_grouping(by), fleet.start_ms, fleet.end_ms, parse_rates("2"), source=source)


def usage(
    series: Sequence[Series], fleet: SimulatedUsage, by: str = "user", source: HistorySource = "samples"
) -> UsageReport:
    found = asyncio.run(usage_report(SampleEngine(series), question(by, fleet, source)))
    assert_buckets_add_up(found)
    return found


FLEET = SimulatedUsage(
    END_MS, 7 * HOUR, 1, [Run("ann", "1", 0, 0, 4 * HOUR, 0.8), Run("bob", "2", 0, 5 * HOUR, 6 * HOUR, 0.5)]
)


@pytest.fixture(scope="module")
def pushed_and_scraped() -> list[Series]:
    both = twice(FLEET, [(0, 7 * HOUR)], [(0, 7 * HOUR)])
    return with_rollups(both, FLEET.start_ms, FLEET.end_ms)


def as_pushed(series: Sequence[Series]) -> list[Series]:
    return [one for one in series if dict(one.labels).get("instance", PUSHED) == PUSHED]


@pytest.mark.parametrize("source", ["samples", "auto"])
@pytest.mark.parametrize("by", ["user", "node"])
def test_a_node_that_is_pushed_and_scraped_counts_once(
    pushed_and_scraped: list[Series], by: str, source: HistorySource
) -> None:
    found = usage(pushed_and_scraped, FLEET, by, source)
    expected = usage(as_pushed(pushed_and_scraped), FLEET, by, source)
    assert found.gpus == 1
    assert found.rows == expected.rows
    assert found.invariant == expected.invariant
    assert found.buckets == expected.buckets
    assert found.missing == expected.missing
    assert {piece.source for piece in found.pieces} >= ({"hourly"} if source == "auto" else {"samples"})


@pytest.fixture(scope="module")
def pushed_then_scraped(pushed_and_scraped: list[Series]) -> list[Series]:
    """The pushed series end after four and a half hours, in the middle of an hour of the roll-ups."""
    until_ms = FLEET.start_ms + 4 * HOUR * 1000 + 1_800_000
    series = []
    for one in pushed_and_scraped:
        if ":" in dict(one.labels)["__name__"]:
            continue
        kept = (one.timestamps <= until_ms) | (dict(one.labels)["instance"] == SCRAPED)
        if kept.any():
            series.append(Series(one.labels, one.timestamps[kept], one.values[kept]))
    return with_rollups(series, FLEET.start_ms, FLEET.end_ms)


@pytest.mark.parametrize("filled", ENGINES)
def test_every_engine_counts_a_change_of_reporters_once(
    pushed_and_scraped: list[Series], pushed_then_scraped: list[Series], filled: Fill, tmp_path: Path
) -> None:
    expected = usage(as_pushed(pushed_and_scraped), FLEET, "user", "auto")

    async def ask(new_engine: NewEngine, source: HistorySource) -> UsageReport:
        engine = new_engine()
        try:
            return await usage_report(engine, question("user", FLEET, source))
        finally:
            await engine.close()

    with filled(pushed_then_scraped, tmp_path) as new_engine:
        for source in ("samples", "auto"):
            found = asyncio.run(ask(new_engine, source))
            assert found.gpus == 1
            assert found.invariant.gpu_hours == pytest.approx(expected.invariant.gpu_hours, abs=16 / HOUR)
            for row, other in zip(found.rows, expected.rows, strict=True):
                assert row.held == pytest.approx(other.held, abs=16 / HOUR)
                assert row.busy == pytest.approx(other.busy, abs=16 / HOUR)
                assert row.energy_kwh == pytest.approx(other.energy_kwh, abs=0.4 * 16 / HOUR)


def test_a_receipt_of_a_node_that_is_pushed_and_scraped(pushed_and_scraped: list[Series]) -> None:
    def receipt(series: Sequence[Series]) -> JobReceipt:
        return asyncio.run(read_receipt(SampleEngine(series), parse_job("2", FLEET.start_ms, FLEET.end_ms)))

    found = receipt(pushed_and_scraped)
    assert len(found.gpus) == 1
    assert found.gpus[0].held_seconds == pytest.approx(HOUR)
    assert found.gpus[0].busy_seconds == pytest.approx(0.5 * HOUR)
    assert found == receipt(as_pushed(pushed_and_scraped))


@pytest.mark.parametrize("source", ["samples", "auto"])
def test_a_gpu_that_moved_counts_on_each_node_for_its_own_time(source: HistorySource) -> None:
    """From n1 to n2, with half an hour in which it was nowhere."""
    before = SimulatedUsage(
        END_MS, 8 * HOUR, 1, [Run("ann", "1", 0, 0, 3 * HOUR)], [Layout(0, 3 * HOUR + 600, present=False)]
    ).simulate()
    after = SimulatedUsage(
        END_MS,
        8 * HOUR,
        1,
        [Run("bob", "2", 0, 5 * HOUR, 8 * HOUR, 0.5)],
        [Layout(0, 0, present=False), Layout(0, 3 * HOUR + 2400)],
        node="n2",
    ).simulate()
    series = [*reported(before, "n1", [(0, 8 * HOUR)]), *reported(after, "n2", [(0, 8 * HOUR)], uuid="GPU-0")]
    if source == "auto":
        series = with_rollups(series, before.start_ms, before.end_ms)
    found = usage(series, before, "node", source)
    held = {row.names[0]: row.held for row in found.rows}
    assert held == pytest.approx({"n1": 3, "n2": 3}, abs=20 / HOUR)
    assert found.gpus == 1
    assert found.invariant.gpu_hours == pytest.approx(8, abs=20 / HOUR), "one GPU, not two"
    assert found.invariant.lost == pytest.approx(0.5, abs=40 / HOUR)
    assert found.invariant.holds


spans_of_reporter = st.lists(
    st.tuples(st.integers(0, 480), st.integers(60, 480)).map(lambda one: (5 * one[0], 5 * sum(one))),
    min_size=1,
    max_size=3,
)
some_runs = st.lists(
    st.builds(
        lambda user, gpu, start, length, sm: Run(user, f"{user}-{start}", gpu, start, start + length, sm),
        st.sampled_from(["ann", "bob"]),
        st.integers(0, 1),
        st.integers(0, 480).map(lambda one: 5 * one),
        st.integers(1, 300).map(lambda one: 5 * one),
        st.floats(0, 1),
    ),
    min_size=1,
    max_size=4,
    unique=True,
)


@settings(max_examples=examples(10), phases=[Phase.generate])
@given(some_runs, spans_of_reporter, spans_of_reporter, st.lists(st.integers(1, 479), max_size=1))
def test_any_overlap_is_counted_once(
    runs: list[Run], pushed: list[Seconds], scraped: list[Seconds], restarts: list[int]
) -> None:
    """Against sums over the samples that are made here, and against what really happened."""
    fleet = SimulatedUsage(END_MS, 2400, 2, runs, restarts=[5 * one for one in restarts])
    series = twice(fleet, pushed, scraped)
    reporters = read_reporters(series, fleet)
    found = usage(series, fleet)
    assert found.invariant.holds or abs(found.invariant.difference) <= 4 * SCRAPE_SECONDS / HOUR
    columns = {
        "held": "gpuscope_owner_gpu_seconds_total",
        "busy_known": "gpuscope_owner_busy_seconds_total",
        "energy_kwh": "gpuscope_owner_energy_joules_total",
    }
    for column, metric in columns.items():
        expected = sums_by_user(series, metric, reporters, fleet)
        for row in found.rows:
            unit = 3.6e6 if column == "energy_kwh" else HOUR
            assert (getattr(row, column) or 0.0) * unit == pytest.approx(expected[row.names[0]], abs=1e-6)
    for row in found.rows:
        assert row.cost == pytest.approx(2 * row.held)
        changes = sum(max(0, len(turns) - 1) for turns in reporters.turns.values())
        cut_off = (changes + 2 * len(restarts)) * SCRAPE_SECONDS
        assert row.held * HOUR <= fleet.truth.held["user", row.names[0]] + cut_off + 1e-6


def read_reporters(series: Sequence[Series], fleet: SimulatedUsage) -> GpuReporters:
    piece = RangePiece(fleet.start_ms, fleet.end_ms, "samples")
    _, reporters = asyncio.run(board_spans(SampleEngine(series), [piece], {}))
    for turns in reporters.turns.values():
        assert all(one.end_ms == other.start_ms for one, other in pairwise(turns))
        assert turns[-1].end_ms == fleet.end_ms
    return reporters


def sums_by_user(
    series: Sequence[Series], metric: str, reporters: GpuReporters, fleet: SimulatedUsage
) -> dict[str, float]:
    """Sample by sample: what a counter grew since the sample before counts if the turn had begun then."""
    sums: dict[str, float] = defaultdict(float)
    for one in series:
        labels = dict(one.labels)
        if labels["__name__"] != metric or labels.get("kind") != "user":
            continue
        turns = reporters.turns.get(labels["uuid"])
        for begin_ms, end_ms in (
            [(fleet.start_ms, fleet.end_ms)]
            if turns is None
            else [(turn.start_ms, turn.end_ms) for turn in turns if turn.reporter[0] == labels["instance"]]
        ):
            value = 0.0
            for at_ms, now in zip(one.timestamps.tolist(), one.values.tolist(), strict=True):
                if begin_ms < at_ms <= end_ms:
                    sums[labels["name"]] += now - value if now >= value else now
                if at_ms <= end_ms:
                    value = now
    return sums


NO_EDGES = np.empty(0, np.int64)
A, B = ("a", "x"), ("b", "x")


@pytest.mark.parametrize(
    ("spans", "turns"),
    [
        pytest.param(
            [ReportedSpan(B, 0, 1000, 0), ReportedSpan(A, 0, 1000, 0)],
            [Turn(A, 0, 1000)],
            id="the first by name",
        ),
        pytest.param(
            [ReportedSpan(B, 0, 1000, 0), ReportedSpan(A, 300, 1000, 0)],
            [Turn(B, 0, 1000)],
            id="it stays with the one that had it",
        ),
        pytest.param(
            [ReportedSpan(A, 0, 500, 0), ReportedSpan(B, 100, 1000, -50)],
            [Turn(A, 0, 500), Turn(B, 500, 1000, (True, False))],
            id="until that one falls silent",
        ),
        pytest.param(
            [ReportedSpan(A, 0, 500, 0), ReportedSpan(B, 700, 1000, 690)],
            [Turn(A, 0, 690), Turn(B, 690, 1000)],
            id="moved: the new reporter counts from its beginning",
        ),
        pytest.param(
            [ReportedSpan(A, 0, 500, 0), ReportedSpan(B, 700, 1000, 100)],
            [Turn(A, 0, 700), Turn(B, 700, 1000, (True, False))],
            id="what a new reporter had counted while another one reported does not count",
        ),
        pytest.param(
            [ReportedSpan(A, 0, 500, 0), ReportedSpan(A, 900, 1000, 500), ReportedSpan(B, 0, 1000, 0)],
            [Turn(A, 0, 500, (False, True)), Turn(B, 500, 1000, (True, False))],
            id="it does not go back while the other one reports",
        ),
    ],
)
def test_turns(spans: list[ReportedSpan], turns: list[Turn]) -> None:
    assert take_turns(spans, 0, 1000, NO_EDGES) == turns


def test_a_change_is_on_an_edge_between_chunks() -> None:
    spans = [ReportedSpan(A, 0, 520, 0), ReportedSpan(B, 100, 1000, 0)]
    edges_ms = np.arange(0, 1001, 100)
    turns = [Turn(A, 0, 500, (False, True)), Turn(B, 500, 1000, (True, False))]
    assert take_turns(spans, 0, 1000, edges_ms) == turns
