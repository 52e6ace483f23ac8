from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.agent.collect.composer import Integrator
from gpuscope.model.readings import ABSENT, Counters, Device, Uuid
from tests.fakes import gpu

UUID = Uuid("GPU-0")


def integrate(steps: list[tuple[float, Device]]) -> Counters:
    integrator = Integrator(max_gap_seconds=30.0)
    at, counters = 0.0, dict[Uuid, Counters]()
    for seconds, device in steps:
        at += seconds
        counters = integrator.advance([device], at)
    return counters[UUID]


def test_busy_seconds_are_utilisation_times_time() -> None:
    counters = integrate(
        [(0, gpu(utilization_ratio=0.0)), (1, gpu(utilization_ratio=1.0)), (2, gpu(utilization_ratio=0.5))]
    )
    assert counters.busy_seconds == 2.0


def test_the_drivers_own_samples_are_better_than_the_last_value() -> None:
    device = gpu(utilization_ratio=1.0, utilization_mean_ratio=0.3)
    assert integrate([(0, device), (1, device)]).busy_seconds == pytest.approx(0.3)


def test_the_drivers_running_total_is_best_and_may_start_anew() -> None:
    steps = [(1.0, gpu(utilization_ratio=1.0, busy_seconds=total)) for total in (10.0, 10.5, 0.0, 0.25)]
    assert integrate(steps).busy_seconds == 0.75


def test_what_was_never_read_has_no_counter() -> None:
    counters = integrate([(0, gpu()), (1, gpu())])
    assert counters.busy_seconds is ABSENT
    assert counters.energy_joules is ABSENT
    assert counters.throttled_seconds == {}


def test_a_gap_is_not_filled_with_invented_work() -> None:
    busy = gpu(utilization_ratio=1.0)
    assert integrate([(0, busy), (1, busy), (3600, busy), (1, busy)]).busy_seconds == 2.0
    assert integrate([(0, busy), (0.5, busy), (30, busy), (30.5, busy)]).busy_seconds == 30.5, (
        "30 s are no gap yet"
    )


def test_a_lost_gpu_has_no_counters() -> None:
    assert Integrator(max_gap_seconds=30.0).advance([gpu(lost=True, utilization_ratio=1.0)], 0.0) == {}


def test_energy_is_the_drivers_counter_or_power_times_time() -> None:
    assert integrate([(0, gpu(energy_joules=50.0, power_watts=9.0))]).energy_joules == 50.0
    steps: list[tuple[float, Device]] = [(0, gpu(power_watts=100.0)), (2, gpu(power_watts=100.0))]
    assert integrate(steps).energy_joules == 200.0


def test_throttled_time_comes_from_the_driver_where_it_counts_and_from_the_mask_else() -> None:
    def hot(driver_seconds: float) -> Device:
        return gpu(throttle_mask=0x20 | 0x04, throttled_seconds={"sw_power_cap": driver_seconds})

    throttled = integrate([(0, hot(100.0)), (1, hot(100.25))]).throttled_seconds
    assert throttled["sw_power_cap"] == 0.25
    assert throttled["sw_thermal_slowdown"] == 1.0
    assert throttled["hw_slowdown"] == 0.0
    assert "gpu_idle" not in throttled


def test_a_driver_counter_that_starts_anew_does_not_go_backwards() -> None:
    steps = [(1.0, gpu(throttled_seconds={"sync_boost": value})) for value in (5.0, 6.0, 0.0, 0.5)]
    assert integrate(steps).throttled_seconds["sync_boost"] == 1.5


@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1)), min_size=1, max_size=40))
def test_counters_never_go_backwards(steps: list[tuple[float, float]]) -> None:
    integrator = Integrator(max_gap_seconds=30.0)
    at, last = 0.0, 0.0
    for seconds, ratio in steps:
        at += seconds
        now = integrator.advance([gpu(utilization_ratio=ratio)], at)[UUID].busy_seconds
        assert now is not ABSENT
        assert now >= last
        last = now
