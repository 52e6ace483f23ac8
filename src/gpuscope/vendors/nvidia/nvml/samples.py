"""Utilisation of a GPU since the last reading, from the driver's sample buffer.

The driver writes about six samples a second and keeps about a hundred. A sample is the busy percentage of the
period that ends at its timestamp, so the time between two timestamps has the later sample's value. Timestamps
are wall-clock microseconds and jump with the wall clock.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.nvidia.nvml.clocks import SYSTEM, Clocks
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls
from gpuscope.vendors.nvidia.nvml.library import plain

CALL: Final = "nvmlDeviceGetSamples"
GPU_UTILIZATION: Final = 1
MAX_PERIOD_US: Final = 1_000_000  # NVIDIA: between 1/6 s and 1 s; a longer period is a gap in the buffer
STALE_SECONDS: Final = 3.0  # after this time without a sample the last mean is stale

Sample = tuple[int, int]
"""Timestamp in microseconds and busy percentage."""


@dataclass(frozen=True, slots=True)
class Busy:
    """The time that samples cover, and that time multiplied by the busy percentage."""

    percent_us: int
    covered_us: int
    last_us: int


def weigh(samples: Sequence[Sample], since_us: int) -> Maybe[Busy]:
    """Sums samples newer than `since_us`; ABSENT if there are none. `since_us` 0 takes only the newest."""
    fresh = sorted(sample for sample in samples if sample[0] > since_us)
    if not fresh:
        return ABSENT
    if not since_us:
        at, percent = fresh[-1]
        return Busy(percent, 1, at)
    busy, covered, before = 0, 0, since_us
    for at, percent in fresh:
        period = min(at - before, MAX_PERIOD_US)
        busy += percent * period
        covered += period
        before = at
    return Busy(busy, covered, before)


class UtilizationSamples:
    """One GPU's mean utilisation since the last reading, and busy seconds since the first."""

    def __init__(self, calls: DriverCalls, clocks: Clocks = SYSTEM) -> None:
        self._calls = calls
        self._clocks = clocks
        self._last_us = 0
        self._last_found = 0.0
        self._mean: Maybe[float] = ABSENT
        self._busy_seconds: Maybe[float] = ABSENT
        self._type = ctypes.c_uint()
        self._count = ctypes.c_uint()
        self._buffer = (plain(calls.library.nvml.c_nvmlSample_t) * 0)()

    def continue_from(self, previous: UtilizationSamples) -> None:
        """Continues from the previous session's last sample: the driver's buffer outlives a session."""
        self._last_us, self._last_found = previous._last_us, previous._last_found
        self._mean, self._busy_seconds = previous._mean, previous._busy_seconds

    def read(self) -> tuple[Maybe[float], Maybe[float]]:
        """The mean ratio since the last call and the total busy seconds."""
        now = self._clocks.monotonic()
        if self._last_us > self._clocks.now_us() + MAX_PERIOD_US:
            self._last_us = 0  # the clock was set back to before the last timestamp
        found = weigh(self._samples(), self._last_us)
        if found is not ABSENT:
            self._mean = found.percent_us / found.covered_us / 100
            before = 0.0 if self._busy_seconds is ABSENT else self._busy_seconds
            self._busy_seconds = before + (found.percent_us / 1e8 if self._last_us else 0.0)
            self._last_us, self._last_found = found.last_us, now
        elif self._calls.is_unavailable(CALL) or now - self._last_found > STALE_SECONDS:
            # The driver stopped sampling.
            self._mean, self._busy_seconds, self._last_us = ABSENT, ABSENT, 0
        return self._mean, self._busy_seconds

    def _samples(self) -> list[Sample]:
        if not len(self._buffer) and not self._make_room():
            return []
        self._count.value = len(self._buffer)
        if not self._call(self._buffer):
            return []
        return [
            (sample.timeStamp, sample.sampleValue.uiVal)
            for sample in self._buffer[: self._count.value]
            if sample.sampleValue.uiVal <= 100
        ]

    def _make_room(self) -> bool:
        self._count.value = 0
        if self._call(None) and self._count.value:
            self._buffer = (plain(self._calls.library.nvml.c_nvmlSample_t) * self._count.value)()
        return len(self._buffer) > 0

    def _call(self, buffer: object) -> bool:
        return self._calls.run(
            CALL,
            self._calls.handle,
            ctypes.c_uint(GPU_UTILIZATION),
            ctypes.c_ulonglong(self._last_us),
            ctypes.byref(self._type),
            ctypes.byref(self._count),
            buffer,
        )
