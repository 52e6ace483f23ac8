"""Reports against simulated nodes whose truth is known: from samples, from roll-ups and from both."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.judge.reports.usage.usage import UsageReport, parse_grouping
from gpuscope.judge.reports.usage.usage_history import HistorySource
from gpuscope.judge.reports.usage.usage_report import UsageQuestion, usage_report
from gpuscope.model.readings import ABSENT
from gpuscope.model.series import Series
from tests.examples import examples
from tests.reports.simulated_usage import SCRAPE_SECONDS, Layout, Run, SimulatedUsage, with_rollups
from tests.reports.test_usage import SampleEngine

HOUR = 3600
END_MS = 1_790_000_100_000


def short_jobs(count: int, gpu: int) -> list[Run]:
    """Jobs of 20 seconds, one every ten minutes: half of them are seen by one scrape only."""
    starts = [600 * n + 5 * (13 * n % 19) for n in range(count)]
    return [Run("eve", f"short-{n}", gpu, start, start + 20) for n, start in enumerate(starts)]


FLEET = SimulatedUsage(
    end_ms=END_MS,
    seconds=8 * HOUR,
    gpus=4,
    runs=[
        Run("ann", "100", 0, 100, 7 * HOUR, 0.8),
        Run("bob", "101", 1, HOUR, 3 * HOUR, 0.25),
        Run("eve", "102", 1, 2 * HOUR, 3 * HOUR, 0.75),
        Run("bob", "103", 1, 5 * HOUR + 75, 6 * HOUR + 5, 0.0),
        *short_jobs(45, 2),
        Run("kim", "104", 3, HOUR, 2 * HOUR, 1.0),
        Run("kim", "105", 3, 4 * HOUR, 7 * HOUR, ABSENT, instance=0),
        Run("kim", "106", 3, 5 * HOUR, 6 * HOUR, ABSENT, instance=1),
        Run("lee", "107", 3, 5 * HOUR, 6 * HOUR, ABSENT, instance=1),
    ],
    layouts=[
        Layout(3, 0),
        Layout(3, 3 * HOUR, ("3g.40gb", "2g.20gb"), activity=0.5),
        Layout(3, 7 * HOUR + 1800),
    ],
    restarts=[4 * HOUR + 100],
    gaps=[(2 * HOUR, 2 * HOUR + 240)],
)


@pytest.fixture(scope="module")
def history() -> list[Series]:
    simulated = FLEET.simulate()
    return with_rollups(simulated.series(), simulated.start_ms, simulated.end_ms)


def report(
    series: Sequence[Series],
    by: str,
    source: HistorySource,
    start_ms: int = FLEET.start_ms,
    end_ms: int = FLEET.end_ms,
) -> UsageReport:
    question = UsageQuestion(parse_grouping(by), start_ms, end_ms, source=source)
    found = asyncio.run(usage_report(SampleEngine(series), question))
    assert_buckets_add_up(found)  # of every history that a test here makes
    return found


def assert_buckets_add_up(found: UsageReport) -> None:
    """Each part of the plot to that of the invariant; no bucket has less than nothing."""
    parts = ("busy", "idle", "unknown", "free", "lost", "stranded")
    sums = {part: sum(getattr(one, part) for one in found.buckets) for part in parts}
    assert all(getattr(one, part) >= 0 for one in found.buckets for part in parts)
    invariant = found.invariant
    held = invariant.owners + invariant.unattributed
    assert sums["busy"] + sums["idle"] + sums["unknown"] == pytest.approx(held, abs=1e-9)
    for part in ("free", "lost", "stranded"):
        assert sums[part] == pytest.approx(getattr(invariant, part), abs=1e-9), part


@pytest.mark.parametrize("source", ["samples", "auto"])
@pytest.mark.parametrize("by", ["user", "job"])
def test_hours_are_the_truth(history: list[Series], by: str, source: HistorySource) -> None:
    found = report(history, by, source)
    truth = {name: seconds / HOUR for (kind, name), seconds in FLEET.truth.held.items() if kind == by}
    held = {row.names[0]: row.held for row in found.rows}
    assert held.keys() == truth.keys()
    for name, hours in truth.items():
        # Half a percent, or the scrape interval in which a job of 20 s ended or the agent started again.
        assert held[name] == pytest.approx(hours, rel=0.005, abs=16 / HOUR), name
    assert sum(held.values()) == pytest.approx(sum(truth.values()), rel=0.005)
    busy = {row.names[0]: row.busy for row in found.rows if row.busy is not None}
    for name, hours in busy.items():
        assert hours == pytest.approx(FLEET.truth.busy[by, name] / HOUR, rel=0.005, abs=16 / HOUR), name
    assert found.invariant.holds, found.invariant
    assert found.invariant.free == pytest.approx(FLEET.truth.free / HOUR, rel=0.005)
    assert found.invariant.stranded == pytest.approx(FLEET.truth.stranded / HOUR, rel=0.005)
    assert found.invariant.gpu_hours == pytest.approx(32, rel=0.001)


def test_a_gap_of_scrapes_is_not_lost_and_a_restart_is(history: list[Series]) -> None:
    lost = report(history, "user", "samples").invariant.lost * HOUR
    assert 0 < lost <= 4 * 17, (
        "the agent lost at most a scrape interval of four GPUs; the counters went on in the gap"
    )


@pytest.mark.parametrize("by", ["user", "job", "mig-profile"])
def test_samples_rollups_and_both_agree(history: list[Series], by: str) -> None:
    sources = {piece.source for piece in report(history, by, "auto").pieces}
    assert sources == {"samples", "hourly"}
    pieces = [piece for piece in report(history, by, "auto").pieces if piece.source == "hourly"]
    hours = pieces[0].start_ms, pieces[-1].end_ms
    whole = report(history, by, "samples")
    by_samples, by_rollups = report(history, by, "samples", *hours), report(history, by, "rollups", *hours)
    for found, other in ((report(history, by, "auto"), whole), (by_rollups, by_samples)):
        expected = {row.names: row for row in other.rows}
        assert {row.names for row in found.rows if row.held > 0.001} == {
            names for names, row in expected.items() if row.held > 0.001
        }
        for row in found.rows:
            # A job of 20 s is its own; a counter that goes back loses at most the minute it happened in.
            slack = 61 / HOUR
            assert row.held == pytest.approx(expected[row.names].held, rel=0.005, abs=slack)
            assert row.unknown == pytest.approx(expected[row.names].unknown, rel=0.005, abs=slack)
            kwh = expected[row.names].energy_kwh or 0.0
            assert (row.energy_kwh or 0.0) == pytest.approx(kwh, rel=0.005, abs=0.01)
        assert found.invariant.holds
        assert found.invariant.owners == pytest.approx(other.invariant.owners, rel=0.005)
        assert found.invariant.gpu_hours == pytest.approx(other.invariant.gpu_hours, rel=0.005)


def test_what_a_neighbour_has_too_much_is_not_lost() -> None:
    """A GPU that is first seen in the middle of a roll-up's hour, which is on both sides of a bucket's edge."""
    runs = [Run("ann", f"{number}", number, 0, 12 * HOUR) for number in range(2)]
    layouts = [Layout(1, 0, (), False), Layout(1, 5 * HOUR + 1800, ())]
    simulated = SimulatedUsage(END_MS, 12 * HOUR, 2, runs, layouts).simulate()
    series = with_rollups(simulated.series(), simulated.start_ms, simulated.end_ms)
    start_ms = simulated.start_ms + 1_260_000  # no edge of a bucket is one of an hour's
    found = report(series, "user", "auto", start_ms, simulated.end_ms)
    assert sum(one.lost for one in found.buckets) == pytest.approx(found.invariant.lost, abs=1e-9)
    assert max(one.lost for one in found.buckets) <= found.invariant.lost + 1e-9


def given_by_slurm(simulated: SimulatedUsage, job: str, index: int, start: int, end: int) -> list[Series]:
    """What the agent that reads Slurm has of a job's GPU; the node's own agent has no prolog."""

    def series(name: str, first: int, last: int, **labels: str) -> Series:
        seconds = np.arange(first, last, SCRAPE_SECONDS, dtype=np.int64)
        pairs = {"__name__": name, "instance": "head:9400", "job": "gpuscope", **labels}
        return Series(tuple(sorted(pairs.items())), simulated.start_ms + 1000 * seconds, np.ones(len(seconds)))

    place = {"node": "n1", "gres": "gpu", "index": str(index)}
    return [
        series("gpuscope_slurm_up", 0, int(simulated.seconds)),
        series("gpuscope_slurm_job_info", start, end, slurm_job=job, user="ann", account="nlp"),
        series("gpuscope_slurm_job_gres_info", start, end, slurm_job=job, **place),
    ]


@pytest.fixture(scope="module")
def job_that_uses_half() -> tuple[SimulatedUsage, list[Series]]:
    """Job 7 had two GPUs for four of eight hours and used one of them."""
    runs = [Run("ann", "7", 0, 2 * HOUR, 6 * HOUR, 0.5)]
    simulated = SimulatedUsage(END_MS, 8 * HOUR, 3, runs).simulate()
    return simulated, with_rollups(simulated.series(), simulated.start_ms, simulated.end_ms)


@pytest.mark.parametrize("source", ["samples", "auto"])
@pytest.mark.parametrize(("by", "name"), [("job", "7"), ("user", "ann"), ("node", "n1")])
def test_what_slurm_gave_and_nobody_used_is_held_without_a_prolog(
    by: str, name: str, source: HistorySource, job_that_uses_half: tuple[SimulatedUsage, list[Series]]
) -> None:
    simulated, series = job_that_uses_half
    blind = report(series, by, source, simulated.start_ms, simulated.end_ms)
    given = [one for index in (0, 1) for one in given_by_slurm(simulated, "7", index, 2 * HOUR, 6 * HOUR)]
    known = list({one.labels: one for one in (*series, *given)}.values())
    found = report(known, by, source, simulated.start_ms, simulated.end_ms)
    assert found.invariant.gpu_hours == blind.invariant.gpu_hours
    assert found.invariant.free == pytest.approx(blind.invariant.free - 4, rel=0.01)
    assert found.invariant.holds
    assert found.invariant.difference == pytest.approx(blind.invariant.difference, abs=1e-9)
    (row,) = [one for one in found.rows if one.names == (name,)]
    assert row.held == pytest.approx(8, rel=0.01)
    assert row.busy == pytest.approx(2, rel=0.01)
    assert row.idle_held == pytest.approx(4, rel=0.01)


LATER_LAYOUTS = st.sampled_from(
    [(), ("3g.40gb",), ("3g.40gb", "2g.20gb"), ("1g.10gb",) * 7],
)


@settings(max_examples=examples(12), deadline=None)
@given(
    new=st.lists(st.integers(0, 4), max_size=3, unique=True),
    split=LATER_LAYOUTS,
    by=st.sampled_from(["user", "job", "account", "node", "model"]),
)
def test_a_closed_range_keeps_its_sums_whatever_appears_after_it(
    new: list[int], split: tuple[str, ...], by: str
) -> None:
    """An engine lists the series of whole blocks: also those of GPUs and instances that came after it."""
    runs = [Run("ann", "7", 0, 600, 7200, 0.5), Run("bob", "8", 2, 0, 3 * HOUR, 0.0)]
    before = [Layout(gpu, 0, (), gpu < 3) for gpu in range(5)]
    after = [Layout(gpu, 5400, (), present=True) for gpu in new] + [Layout(1, 5400, split)]
    simulated = SimulatedUsage(END_MS, 2 * HOUR, 5, runs, [*before, *after], cycle=15, scrape_at=0).simulate()
    given = [one for index in (0, 1) for one in given_by_slurm(simulated, "7", index, 600, 7200)]
    later = list({one.labels: one for one in (*simulated.series(), *given)}.values())
    end_ms = simulated.start_ms + 5000 * 1000
    earlier = []
    for one in later:
        is_here = one.timestamps <= end_ms
        if is_here.any():
            earlier.append(Series(one.labels, one.timestamps[is_here], one.values[is_here]))
    was, now = (report(series, by, "samples", simulated.start_ms, end_ms) for series in (earlier, later))
    assert now.invariant == was.invariant
    assert now.rows == was.rows
    assert now.gpus == was.gpus


def test_an_hour_whose_evaluation_was_missed_is_read_from_samples() -> None:
    simulated = SimulatedUsage(END_MS, 8 * HOUR, runs=[Run("ann", "1", 0, 0, 8 * HOUR)]).simulate()
    series = with_rollups(simulated.series(), simulated.start_ms, simulated.end_ms, missed=[4])
    found = report(series, "user", "auto")
    assert [piece.source for piece in found.pieces] == ["samples", "hourly", "samples", "hourly", "samples"]
    assert found.rows[0].held == pytest.approx(8, rel=0.001)


def test_without_samples_the_report_begins_with_a_whole_hour_and_says_so() -> None:
    simulated = SimulatedUsage(END_MS, 10 * HOUR, runs=[Run("ann", "1", 0, 0, 10 * HOUR)]).simulate()
    series = with_rollups(simulated.series(), simulated.start_ms, simulated.end_ms)
    kept = [one for one in series if dict(one.labels)["__name__"].startswith("gpuscope:")]
    start_ms, end_ms = simulated.start_ms + 5400_000, simulated.end_ms - 5400_000
    found = report(kept, "user", "auto", start_ms, end_ms)
    assert "samples of the first 0.5 h are no longer kept" in found.missing[0]
    assert found.invariant.holds
    assert found.rows[0].held == pytest.approx(found.invariant.gpu_hours - found.invariant.lost, rel=0.001)


@pytest.mark.parametrize(("job", "pod"), [("1", ""), ("", "ml/train")])
def test_that_allocations_are_not_in_rollups_is_said_where_there_are_jobs(job: str, pod: str) -> None:
    runs = [Run("ann", job, 0, 0, 8 * HOUR, pod=pod)]
    simulated = SimulatedUsage(END_MS, 8 * HOUR, 1, runs, cycle=15, scrape_at=0).simulate()
    series = with_rollups(simulated.series(), simulated.start_ms, simulated.end_ms)
    deleted_ms = simulated.start_ms + 4 * HOUR * 1000
    kept = []
    for one in series:
        is_kept = (one.timestamps > deleted_ms) | dict(one.labels)["__name__"].startswith("gpuscope:")
        if is_kept.any():
            kept.append(Series(one.labels, one.timestamps[is_kept], one.values[is_kept]))
    sentence = "h of the range are known from roll-ups only, which do not say which GPUs Slurm gave away"
    found = report(kept, "user", "auto", simulated.start_ms, simulated.end_ms)
    assert [one[:4] for one in found.missing if sentence in one] == (["3.0 "] if job else [])
    complete = report(series, "user", "auto", simulated.start_ms, simulated.end_ms)
    assert not [one for one in complete.missing if sentence in one]


def test_a_user_of_a_shared_instance_has_unknown_work(history: list[Series]) -> None:
    rows = {row.names[0]: row for row in report(history, "job", "auto").rows}
    assert rows["105"].busy == pytest.approx(3 * 3 / 7 * 0.5, rel=0.01), "the activity goes to the only owner"
    for shared in ("106", "107"):
        assert rows[shared].busy is None
        assert rows[shared].unknown == pytest.approx(rows[shared].held)
        assert rows[shared].is_energy_estimate or rows[shared].energy_kwh in (None, 0.0)
    profiles = {row.names[0]: row.held for row in report(history, "mig-profile", "auto").rows}
    assert profiles["3g.40gb"] == pytest.approx(3 * 3 / 7, rel=0.01)
    assert set(profiles) == {"whole GPU", "3g.40gb", "2g.20gb"}


moments = st.integers(0, 480).map(lambda one: 5 * one)
runs = st.builds(
    lambda user, gpu, start, length, sm, instance: Run(
        user, f"{user}-{start}", gpu, start, start + length, sm, instance
    ),
    st.sampled_from(["ann", "bob", "eve"]),
    st.integers(0, 1),
    moments,
    st.integers(1, 300).map(lambda one: 5 * one),
    st.one_of(st.floats(0, 1), st.just(ABSENT)),
    st.sampled_from([None, None, 0, 1]),
)
layouts = st.builds(
    Layout,
    st.integers(0, 1),
    moments,
    st.sampled_from([(), ("3g.40gb",), ("1g.10gb", "2g.20gb"), ("3g.40gb", "3g.40gb")]),
    st.sampled_from([True, True, True, False]),
)


@settings(max_examples=examples(12))
@given(
    st.lists(runs, max_size=5, unique=True),  # two equal ones would be one process
    st.lists(layouts, max_size=4).map(lambda all_: sorted(all_, key=lambda one: one.since)),
    st.lists(moments, max_size=2),
    st.lists(st.tuples(moments, st.integers(1, 250)).map(lambda one: (one[0], sum(one))), max_size=2),
    st.sampled_from([0, 5, 10]),
)
def test_the_parts_of_any_history_add_up(
    some_runs: list[Run],
    some_layouts: list[Layout],
    restarts: list[int],
    gaps: list[tuple[int, int]],
    scrape_at: int,
) -> None:
    """Random owners, gaps, resets, MIG changes and GPUs that come and go."""
    simulated = SimulatedUsage(
        END_MS, 2400, 2, some_runs, some_layouts, restarts, gaps, scrape_at=scrape_at
    ).simulate()
    series = simulated.series()
    if not series:
        return
    for by in ("user", "job", "node"):
        found = report(series, by, "samples", simulated.start_ms, simulated.end_ms)
        # A counter that is scraped with the value it had before a restart hides what it counted since.
        hidden = len(restarts) * SCRAPE_SECONDS / HOUR
        assert found.invariant.holds or abs(found.invariant.difference) <= hidden, (by, found.invariant)
        rows = {row.names[0]: row for row in found.rows}
        for row in rows.values():
            assert row.busy_known + row.unknown <= row.held + 1e-6
        if by != "node":
            truth = {name: seconds for (kind, name), seconds in simulated.truth.held.items() if kind == by}
            # Nothing is made up: never more than there was, but for what a restart of the agent cuts off.
            for name, row in rows.items():
                assert row.held * HOUR <= truth[name] + 1e-3


def test_a_year_of_rollups_is_read_at_once() -> None:
    """A window of a year: more milliseconds than some parsers of PromQL take."""
    hours = 365 * 24
    first_ms = (END_MS // 60_000 - 60 * hours) * 60_000 + 23_456
    times = first_ms + 3_600_000 * np.arange(1, hours + 1, dtype=np.int64)
    owner = {"kind": "user", "name": "ann"}
    rows: list[tuple[str, dict[str, str], float]] = [
        ("gpuscope:gpu_observed_seconds:growth1h", {}, 3600.0),
        ("gpuscope:gpu_held_seconds:growth1h", {}, 1800.0),
        ("gpuscope:gpu_free_seconds:growth1h", {}, 1800.0),
        ("gpuscope:owner_gpu_seconds:growth1h", owner, 1800.0),
        ("gpuscope:owner_busy_seconds:growth1h", owner, 900.0),
    ]
    series = [
        Series(
            tuple(sorted({"__name__": name, "instance": "n1", "uuid": "GPU-0", **labels}.items())),
            times,
            np.full(hours, value),
        )
        for name, labels, value in rows
    ]
    marker = (("__name__", "gpuscope:rollup_evaluated:hourly"),)
    series.append(Series(marker, times, times / 1000))
    found = report(series, "user", "auto", END_MS - hours * 3_600_000, END_MS)
    assert found.rows[0].held == pytest.approx(hours / 2, rel=0.001)
    assert found.rows[0].busy == pytest.approx(hours / 4, rel=0.001)
    assert found.invariant.holds
    assert len(found.buckets) <= 60
