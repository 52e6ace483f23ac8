"""The closed forms of the simulation: integrals and heat against stepping through time."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.demo.curve import BUSY, POWER, Curve, Phase
from gpuscope.demo.track import Activity, Timeline, Track
from gpuscope.demo.workload import IDLE
from tests.examples import examples

LAG = 30.0


def curve(*beats: tuple[float, float, float]) -> Curve:
    return Curve([Phase(seconds, (busy, watts, 0.0, 0.0, 0.0, 0.0)) for seconds, busy, watts in beats], LAG)


curves = st.lists(
    st.tuples(st.floats(0.5, 200), st.floats(0, 1), st.floats(10, 700)), min_size=1, max_size=8
).map(lambda beats: curve(*beats))


@settings(max_examples=examples(100), deadline=None)
@given(curves, st.floats(0, 1e5), st.floats(0, 300))
def test_a_total_is_the_integral_of_the_rates(load: Curve, start: float, lasts: float) -> None:
    steps = 200
    stepped = (
        sum(load.phase(start + lasts * (i + 0.5) / steps).rates[POWER] for i in range(steps)) * lasts / steps
    )
    exact = load.totals(start + lasts)[POWER] - load.totals(start)[POWER]
    # A step is at most one phase wrong at each of its borders.
    borders = 2 + lasts / min(phase.seconds for phase in load.phases)
    assert exact == pytest.approx(stepped, abs=borders * 700 * lasts / steps + 1e-3)
    for channel in (BUSY, POWER):
        assert load.total(channel, start) == pytest.approx(load.totals(start)[channel], rel=1e-12)


@settings(max_examples=examples(100), deadline=None)
@given(curves, st.floats(0, 200), st.floats(0, 700))
def test_heat_follows_power_with_a_lag(load: Curve, until: float, at_start: float) -> None:
    heat, step = at_start, 0.1
    for i in range(int(until / step)):
        heat += (load.phase(i * step).rates[POWER] - heat) * step / LAG
    assert load.heat(until, at_start) == pytest.approx(heat, abs=6.0)


def test_heat_does_not_jump_where_one_spell_ends() -> None:
    track = Track(
        [Activity(0.0, curve((60, 1, 600)), IDLE), Activity(300.0, curve((60, 0, 60)), IDLE)], 0.0, 600.0
    )
    for border in (300.0, 600.0):
        assert track.moment(border).heat == pytest.approx(track.moment(border - 1e-6).heat, abs=1e-2)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(curves, min_size=1, max_size=4), st.lists(st.floats(-5e3, 2e4), min_size=2, max_size=12))
def test_a_timeline_only_grows_over_rounds_and_splices(loads: list[Curve], times: list[float]) -> None:
    activities = [Activity(row * 100.0, load, IDLE) for row, load in enumerate(loads)]
    timeline = Timeline(Track(activities, origin=50.0, period=100.0 * len(loads)))
    timeline.splice(4_000.0, [Activity(0.0, loads[0], IDLE), Activity(10.0, loads[-1], IDLE)])
    timeline.splice(9_000.0, [Activity(0.0, loads[-1], IDLE)])
    totals = [timeline.totals(at)[POWER] for at in sorted(times)]
    assert totals == sorted(totals)
    for cut in (4_000.0, 9_000.0):
        before, after = timeline.totals(cut - 1e-6)[POWER], timeline.totals(cut)[POWER]
        assert after == pytest.approx(before, abs=1e-2)
        assert timeline.moment(cut).totals == timeline.totals(cut)


def test_an_earlier_splice_replaces_all_that_came_after_it() -> None:
    timeline = Timeline(Track([Activity(0.0, curve((10, 0, 50)), IDLE)], 0.0, 100.0))
    timeline.splice(500.0, [Activity(0.0, curve((10, 0.25, 50)), IDLE)])
    timeline.splice(400.0, [Activity(0.0, curve((10, 0.75, 50)), IDLE)])
    assert timeline.moment(600.0).phase.rates[BUSY] == 0.75
    assert timeline.totals(600.0)[BUSY] == pytest.approx(150.0)


def test_xids_are_told_once_in_whatever_windows_one_asks() -> None:
    load = curve((10, 0, 50))
    track = Track([Activity(0.0, load, IDLE), Activity(30.0, load, IDLE, xid=31)], 0.0, 100.0)
    timeline = Timeline(track)
    timeline.splice(1_000.0, [Activity(0.0, load, IDLE, xid=13)])
    whole = list(timeline.xids(0.0, inf))
    assert whole == [(30.0 + 100.0 * n, 31) for n in range(10)] + [(1_000.0, 13)]
    assert [x for t in range(0, 1_200, 7) for x in timeline.xids(t, t + 7)] == whole
