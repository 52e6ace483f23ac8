"""The control loop on a simulated GPU and a simulated clock: the share is met whatever the GPU's speed."""

from __future__ import annotations

import threading
from ctypes import c_void_p
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscope.vendors.nvidia.load.cuda import CudaDevice
from gpuscope.vendors.nvidia.load.device_process import DutyCycle, Progress


class SimulatedGpu:
    """Device, work and clock in one: a unit takes `seconds_per_unit`, and waiting moves the clock."""

    unit_amount = 1000.0

    def __init__(self, seconds_per_unit: float, launch_seconds: float = 0.0) -> None:
        self.seconds_per_unit = seconds_per_unit
        self.launch_seconds = launch_seconds
        self.time = 100.0
        self.busy_until = 0.0
        self.busy_seconds = 0.0
        self.recorded: dict[int, float] = {}
        self.events = 0
        self.longest_queue = 0.0

    def now(self) -> float:
        return self.time

    def monotonic(self) -> float:
        return self.time

    def stream(self) -> c_void_p:
        return c_void_p(1)

    def event(self) -> c_void_p:
        self.events += 1
        return c_void_p(self.events)

    def record(self, event: c_void_p, stream: c_void_p) -> None:
        self.recorded[event.value or 0] = max(self.busy_until, self.time)

    def start(self, units: int, stream: c_void_p) -> None:
        self.time += self.launch_seconds
        seconds = units * self.seconds_per_unit
        self.busy_until = max(self.busy_until, self.time) + seconds
        self.busy_seconds += seconds
        self.longest_queue = max(self.longest_queue, self.busy_until - self.time)

    def wait(self, event: c_void_p) -> None:
        self.time = max(self.time, self.recorded[event.value or 0])

    def seconds_between(self, start: c_void_p, end: c_void_p) -> float:
        return self.recorded[end.value or 0] - self.recorded[start.value or 0]


class SimulatedStop(threading.Event):
    """Waiting moves the simulated clock instead of sleeping."""

    def __init__(self, gpu: SimulatedGpu, at: float = float("inf")) -> None:
        super().__init__()
        self._gpu = gpu
        self._at = at

    def is_set(self) -> bool:
        return self._gpu.time >= self._at

    def wait(self, timeout: float | None = None) -> bool:
        self._gpu.time += timeout or 0.0
        return self.is_set()


def run(gpu: SimulatedGpu, target: float, duration: float, stop: SimulatedStop | None = None) -> list[Progress]:
    reports: list[Progress] = []
    cycle = DutyCycle(cast(CudaDevice, gpu), cast(Any, gpu), target, gpu, reports.append)
    cycle.run(duration, stop or SimulatedStop(gpu))
    return reports


@given(
    target=st.floats(0.01, 0.99),
    seconds_per_unit=st.floats(1e-7, 1e-3),
    launch_seconds=st.floats(0, 2e-4),
)
def test_the_share_is_met_on_any_gpu(target: float, seconds_per_unit: float, launch_seconds: float) -> None:
    gpu = SimulatedGpu(seconds_per_unit, launch_seconds)
    reports = run(gpu, target, 10.0)
    steady = [one for one in reports if one.elapsed >= 1]
    busy = (steady[-1].busy_seconds - steady[0].busy_seconds) / (steady[-1].elapsed - steady[0].elapsed)
    assert busy == pytest.approx(target, abs=0.05)


@given(seconds_per_unit=st.floats(1e-7, 1e-3), launch_seconds=st.floats(0, 2e-4))
def test_full_load_has_no_pauses(seconds_per_unit: float, launch_seconds: float) -> None:
    reports = run(SimulatedGpu(seconds_per_unit, launch_seconds), 1.0, 10.0)
    assert reports[-1].busy_seconds / reports[-1].elapsed > 0.98


def test_the_amount_is_what_was_done() -> None:
    gpu = SimulatedGpu(1e-5)
    reports = run(gpu, 0.5, 5.0)
    assert reports[-1].amount == pytest.approx(reports[-1].busy_seconds / 1e-5 * gpu.unit_amount, rel=1e-6)
    assert [round(one.elapsed) for one in reports[:4]] == [1, 2, 3, 4], "a report each second"


def test_a_gpu_that_slows_down_keeps_its_share() -> None:
    gpu = SimulatedGpu(1e-5)
    reports: list[Progress] = []

    def report(progress: Progress) -> None:
        reports.append(progress)
        gpu.seconds_per_unit = 4e-5  # as when clocks fall

    DutyCycle(cast(CudaDevice, gpu), cast(Any, gpu), 0.5, gpu, report).run(8.0, SimulatedStop(gpu))
    busy = (reports[-1].busy_seconds - reports[2].busy_seconds) / (reports[-1].elapsed - reports[2].elapsed)
    assert busy == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize("target", [0.3, 1.0])
def test_a_stop_is_seen_at_once(target: float) -> None:
    gpu = SimulatedGpu(1e-5)
    began_at = gpu.time
    run(gpu, target, 3600.0, SimulatedStop(gpu, at=began_at + 2.0))
    assert gpu.time - began_at < 2.5
    assert gpu.longest_queue < 0.5, "nothing long is left on the GPU"
