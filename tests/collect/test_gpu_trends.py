"""When a GPU hangs, and its means over a minute, from readings alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpuscope.agent.collect.gpu_trends import MAX_SECONDS, GpuTrends
from gpuscope.model.readings import ABSENT, Counters, Device, GpuTrend, Maybe, Pid, Process, Uuid
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.fakes import Keywords

UUID = Uuid("GPU-1")
SPINNING = make_device(
    uuid=UUID,
    index=0,
    utilization_ratio=1.0,
    power_watts=150.0,
    power_limit_watts={"enforced": 700.0},
    pcie_bytes_per_second={"tx": 0.0, "rx": 0.0},
    engine_active_ratio={"dram": 0.0},
)


def trend_of(*devices: Device, counters: tuple[Counters, ...] = ()) -> GpuTrend:
    """After one cycle a second for each device."""
    trends, trend = GpuTrends(), GpuTrend()
    for second, device in enumerate(devices):
        known = {UUID: counters[second]} if counters else {}
        found = trends.advance([device], known, (), (), now=1000.0 + second, monotonic=float(second))
        trend = found[UUID]
    return trend


def test_a_gpu_hangs_since_it_spins_without_power_and_traffic() -> None:
    assert trend_of(SPINNING, SPINNING, SPINNING).hung_since == 1000.0
    assert trend_of(replace(SPINNING, engine_active_ratio={})).hung_since == 1000.0


@pytest.mark.parametrize(
    "change",
    [
        {"utilization_ratio": 0.5},
        {"power_watts": 500.0},
        {"pcie_bytes_per_second": {"tx": 0.0, "rx": 5e9}},
        {"engine_active_ratio": {"dram": 0.4}},
        {"power_watts": ABSENT},
        {"power_limit_watts": {}},
        {"pcie_bytes_per_second": {}},
    ],
)
def test_a_gpu_that_computes_transfers_or_is_not_known_does_not_hang(change: Keywords) -> None:
    assert trend_of(SPINNING, replace(SPINNING, **change)).hung_since is ABSENT


def test_nvlink_traffic_means_that_it_does_not_hang() -> None:
    moving = [replace(SPINNING, link_bytes={"tx": second * 1e9}) for second in range(3)]
    still = [replace(SPINNING, link_bytes={"tx": 1e9}) for _ in range(3)]
    assert trend_of(*moving).hung_since is ABSENT
    assert trend_of(*still).hung_since == 1000.0


def test_means_need_a_sixth_of_the_minute() -> None:
    counters = tuple(Counters(busy_seconds=0.25 * n, energy_joules=300.0 * n) for n in range(12))
    devices = (SPINNING,) * 12
    assert trend_of(*devices[:5], counters=counters).utilization_minute_ratio is ABSENT
    trend = trend_of(*devices, counters=counters)
    assert (trend.utilization_minute_ratio, trend.power_minute_watts) == (0.25, 300.0)


def test_durations_do_not_change_when_the_clock_is_set() -> None:
    """An hour forward, then two back."""
    trends, clock = GpuTrends(), [1000.0, 1001.0, 4602.0, -2597.0]
    found = {}
    for second, now in enumerate(clock):
        found = trends.advance([SPINNING], {}, (), (), now=now, monotonic=float(second))
    assert (found[UUID].hung_seconds, found[UUID].free_seconds) == (3.0, 3.0)


def test_a_gpu_that_computes_has_hung_for_0_seconds_and_an_unknown_one_for_none() -> None:
    assert trend_of(SPINNING, replace(SPINNING, power_watts=500.0)).hung_seconds == 0.0
    assert trend_of(SPINNING, replace(SPINNING, power_watts=ABSENT)).hung_seconds is ABSENT


def test_a_held_gpu_is_free_for_0_seconds_and_one_with_unknown_processes_for_none() -> None:
    trends = GpuTrends()
    process = Process(pid=Pid(7), gpu_uuid=UUID)

    def free_seconds(processes: Maybe[tuple[Process, ...]], at: float, **more: Any) -> Maybe[float]:
        device = replace(SPINNING, **more)
        return trends.advance([device], {}, processes, (), now=at, monotonic=at)[UUID].free_seconds

    assert [free_seconds((), at) for at in (1.0, 2.5)] == [0.0, 1.0]
    assert free_seconds((process,), 3.0) == 0.0
    assert free_seconds((), 4.0) == 0.0
    assert free_seconds(ABSENT, 5.0) is ABSENT
    assert free_seconds((), 6.0, processes_known=False) is ABSENT


def test_after_a_gap_without_readings_durations_start_again() -> None:
    trends = GpuTrends()
    for at in (1.0, 2.0, 2.0 + MAX_SECONDS + 1):
        found = trends.advance([SPINNING], {}, (), (), now=at, monotonic=at)
    assert (found[UUID].hung_seconds, found[UUID].free_seconds) == (0.0, 0.0)
