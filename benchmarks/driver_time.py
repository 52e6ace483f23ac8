"""Measures the time that the driver library takes in a sampling cycle.

The C calls of one reading are recorded with their arguments and repeated in a plain loop. The fake library is
not a driver, so its time is subtracted to get the agent's own. A ctypes call takes about 0.3 µs here, which
counts as time of the driver.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gpuscope.model.source import Tier
from gpuscope.vendors.nvidia.nvml.nvml_source import NvmlSource
from tests.fake_nvml.driver import FakeDriver

TIERS = {Tier.FAST: 1.0, Tier.MEDIUM: 10.0, Tier.SLOW: 60.0}  # reading intervals in seconds


class _Recorder:
    """Wraps the loaded library and records its calls."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.calls: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._library, name)
        if not name.startswith("nvml"):
            return found

        def call(*arguments: Any) -> Any:
            self.calls.append((found, arguments))
            return found(*arguments)

        return call


@dataclass(frozen=True, slots=True)
class DriverTime:
    calls_per_second: float
    cpu_seconds_per_second: float


def driver_time(driver: FakeDriver, rounds: int = 20) -> DriverTime:
    """Measure the library's time at the agent's reading intervals; loads the library into this process."""
    import pynvml

    driver.attach()
    source = NvmlSource()
    source.read(frozenset(Tier))
    recorder = _Recorder(pynvml.nvmlLib)
    pynvml.nvmlLib = recorder
    pynvml._nvmlGetFunctionPointer_cache.clear()
    known = source.gpus[0].calls.library.functions
    for name in [name for name in known if name.startswith("raw ")]:
        del known[name]
    calls = seconds = 0.0
    try:
        for tier, every in TIERS.items():
            recorder.calls.clear()
            source.read(frozenset({tier}))
            made = list(recorder.calls)
            calls += len(made) / every
            seconds += _again(made, rounds) / every
    finally:
        source.close()
    return DriverTime(calls, seconds)


def _again(calls: list[tuple[Callable[..., Any], tuple[Any, ...]]], rounds: int) -> float:
    best = float("inf")
    for _ in range(rounds):
        before = time.thread_time()
        for function, arguments in calls:
            function(*arguments)
        best = min(best, time.thread_time() - before)
    return best
