"""Busy seconds from the driver's samples: within 5 % for a 3 s burst at any reading interval."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscope.agent.collect.composer import Integrator
from gpuscope.model.readings import ABSENT
from gpuscope.vendors.nvidia.nvml.profiling import MAX_PERIOD_US, weigh
from tests.examples import examples
from tests.fake_nvml.driver import FakeDriver
from tests.fake_nvml.fixtures import driver
from tests.sources.nvml_rig import FAST, Rig

__all__ = ["driver"]


@pytest.fixture
def rig(driver: FakeDriver, tmp_path: Path) -> Iterator[Rig]:
    driver.gpus(1)
    with Rig(driver, tmp_path) as rig:
        yield rig


def integrate(rig: Rig, rhythm: list[float], burst_at: int, seconds: float = 3.0) -> tuple[float, float]:
    """Busy seconds by the integrator and by the source's own count, over readings at these intervals."""
    integrator = Integrator(max_gap_seconds=30)
    for _ in range(3):
        integrator.advance(rig.tick(1, FAST).devices, rig.clocks.monotonic())
    first = rig.tick(1, FAST).devices[0]
    (before,) = integrator.advance([first], rig.clocks.monotonic()).values()
    for step, pause in enumerate(rhythm):
        if step == burst_at:
            rig.driver.burst(0, seconds)
        device = rig.tick(pause, FAST).devices[0]
        (after,) = integrator.advance([device], rig.clocks.monotonic()).values()
    assert before.busy_seconds is not ABSENT
    assert after.busy_seconds is not ABSENT
    assert first.busy_seconds is not ABSENT
    assert device.busy_seconds is not ABSENT
    return after.busy_seconds - before.busy_seconds, device.busy_seconds - first.busy_seconds


def test_a_burst_between_two_scrapes(rig: Rig) -> None:
    by_integrator, by_samples = integrate(rig, [1.0] * 15, burst_at=5)
    assert by_integrator == pytest.approx(3, rel=0.05)
    assert by_samples == pytest.approx(3, rel=0.01)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("interval", [0.25, 1.0, 2.0, 5.0])
def test_a_burst_seen_in_an_uneven_rhythm(rig: Rig, interval: float, seed: int) -> None:
    dice = random.Random(seed)
    rig.driver.advance(dice.random())  # the driver's periods do not begin with our seconds
    rhythm = [interval * dice.uniform(0.97, 1.03) for _ in range(round(20 / interval))]
    by_integrator, by_samples = integrate(rig, rhythm, burst_at=len(rhythm) // 4)
    assert by_integrator == pytest.approx(3, rel=0.05)
    assert by_samples == pytest.approx(3, rel=0.02)


def test_a_short_reading_gap_is_filled_from_the_drivers_buffer(rig: Rig) -> None:
    _, by_samples = integrate(rig, [1.0, 15.0, 1.0], burst_at=1)
    assert by_samples == pytest.approx(3, rel=0.01)


def test_a_steady_load_is_exact(rig: Rig) -> None:
    rig.driver.set(0, util=37)
    rig.tick(5)
    for _ in range(5):
        assert rig.tick(0.7, FAST).devices[0].utilization_mean_ratio == 0.37


def test_the_first_reading_is_of_now_not_of_the_last_20_seconds(rig: Rig) -> None:
    rig.driver.set(0, util=100)
    rig.driver.advance(5)
    device = rig.device()
    assert device.utilization_mean_ratio == 1
    assert device.busy_seconds == 0


def test_between_two_samples_the_last_mean_is_kept_for_a_moment(rig: Rig) -> None:
    rig.driver.set(0, util=60)
    rig.tick(2)
    rig.tick(1)
    for _ in range(3):
        assert rig.tick(0.01, FAST).devices[0].utilization_mean_ratio == 0.6


def test_a_driver_that_stops_sampling_leaves_the_mean_absent(rig: Rig) -> None:
    rig.read()
    rig.driver.fail("nvmlDeviceGetSamples", error="NOT_FOUND")
    for _ in range(5):
        device = rig.tick(1, FAST).devices[0]
    assert device.utilization_mean_ratio is ABSENT
    assert device.utilization_ratio == 0
    rig.driver.heal()
    assert rig.tick(1, FAST).devices[0].utilization_mean_ratio == 0


def test_a_clock_set_back_is_survived(rig: Rig) -> None:
    rig.driver.set(0, util=50)
    rig.tick(2)
    rig.driver.advance(-30)
    rig.read(FAST)
    rig.driver.set(0, util=80)
    rig.tick(2, FAST)
    assert rig.tick(1, FAST).devices[0].utilization_mean_ratio == 0.8


def test_a_refused_call_leaves_the_rest(rig: Rig) -> None:
    rig.driver.fail("nvmlDeviceGetSamples", error="NOT_SUPPORTED")
    device = rig.device()
    assert device.utilization_mean_ratio is ABSENT
    assert device.busy_seconds is ABSENT
    assert device.utilization_ratio == 0


STAMPS = st.lists(st.tuples(st.integers(1, 10**8), st.integers(0, 100)), max_size=30)


@settings(max_examples=examples(200))
@given(STAMPS, st.integers(0, 10**8))
def test_weighing_stays_within_its_samples(samples: list[tuple[int, int]], since: int) -> None:
    found = weigh(samples, since)
    fresh = [sample for sample in samples if sample[0] > since]
    if not fresh:
        assert found is ABSENT
        return
    assert found is not ABSENT
    assert found.last_us == max(stamp for stamp, _ in fresh)
    percents = [percent for _, percent in fresh]
    assert min(percents) * found.covered_us <= found.percent_us <= max(percents) * found.covered_us
    assert found.covered_us <= max(1, len(fresh) * MAX_PERIOD_US)


@settings(max_examples=examples(200))
@given(STAMPS, st.integers(1, 10**8), st.data())
def test_weighing_in_two_parts_is_weighing_at_once(
    samples: list[tuple[int, int]], since: int, data: st.DataObject
) -> None:
    samples = sorted(dict(samples).items())
    whole = weigh(samples, since)
    if whole is ABSENT:
        return
    cut = data.draw(st.sampled_from([stamp for stamp, _ in samples if stamp > since]))
    first = weigh([sample for sample in samples if sample[0] <= cut], since)
    assert first is not ABSENT
    second = weigh(samples, first.last_us)
    rest = 0 if second is ABSENT else second.percent_us
    assert first.percent_us + rest == whole.percent_us
