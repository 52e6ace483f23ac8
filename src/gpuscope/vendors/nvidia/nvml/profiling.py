"""Profiling by GPM on Hopper and newer: activity of a GPU or a MIG instance between two samples.

Input: two driver samples; output: ratios and bytes per second for the time between them, so the first reading
has none. The driver allocates samples: each GPU uses two in turn and frees them.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.nvidia.nvml import library
from gpuscope.vendors.nvidia.nvml.call_table import Convert, Label, percent, put, times
from gpuscope.vendors.nvidia.nvml.driver_calls import DriverCalls
from gpuscope.vendors.nvidia.nvml.library import Library, plain
from gpuscope.vendors.nvidia.nvml.tiers import SYSTEM, Clocks

# Utilisation of a GPU since the last reading, from the driver's sample buffer.
#
# The driver writes about six samples a second and keeps about a hundred. A sample is the busy percentage of
# the period that ends at its timestamp, so the time between two timestamps has the later sample's value.
# Timestamps are wall-clock microseconds and jump with the wall clock.

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


MIN_WINDOW_SECONDS: Final = 0.1  # NVIDIA's lower limit
MAX_WINDOW_SECONDS: Final = 600.0  # a mean over a longer time is not useful; start again
mebibytes: Final = times(1 << 20)


@dataclass(frozen=True, slots=True)
class GpmMetric:
    id: int
    field: str
    label: Label = None
    convert: Convert = percent


METRICS: Final = (
    GpmMetric(1, "engine_active_ratio", "graphics"),
    GpmMetric(2, "engine_active_ratio", "sm"),
    GpmMetric(3, "sm_occupancy_ratio"),
    GpmMetric(4, "engine_active_ratio", "integer"),
    GpmMetric(5, "engine_active_ratio", "tensor"),
    GpmMetric(6, "tensor_pipe_active_ratio", "dfma"),
    GpmMetric(7, "tensor_pipe_active_ratio", "hmma"),
    GpmMetric(9, "tensor_pipe_active_ratio", "imma"),
    GpmMetric(10, "engine_active_ratio", "dram"),
    GpmMetric(11, "engine_active_ratio", "fp64"),
    GpmMetric(12, "engine_active_ratio", "fp32"),
    GpmMetric(13, "engine_active_ratio", "fp16"),
    GpmMetric(20, "profiled_pcie_bytes_per_second", "tx", mebibytes),
    GpmMetric(21, "profiled_pcie_bytes_per_second", "rx", mebibytes),
    GpmMetric(60, "profiled_nvlink_bytes_per_second", "rx", mebibytes),
    GpmMetric(61, "profiled_nvlink_bytes_per_second", "tx", mebibytes),
)

LINK_METRICS: Final = tuple(
    GpmMetric(62 + 2 * link + place, "profiled_nvlink_link_bytes_per_second", (str(link), direction), mebibytes)
    for link in range(18)
    for place, direction in enumerate(("rx", "tx"))
)
"""Read only on request: 36 numbers per GPU, which the driver also counts without profiling."""


def supports_gpm(calls: DriverCalls) -> bool:
    answer = calls.result(("nvmlGpmQueryDeviceSupport", ()))
    return answer is not ABSENT and bool(answer.isSupportedDevice)


class GpmRequest:
    """The request for all metrics. One per GPU, because it has 20 kB and a stuck call may still use it."""

    def __init__(self, library: Library) -> None:
        self._metrics = METRICS + (LINK_METRICS if library.tier_plan.profiles_links else ())
        self._request = plain(library.nvml.c_nvmlGpmMetricsGet_t)()
        self._request.version = library.nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(self._metrics)
        self._slots = [self._request.metrics[place] for place in range(len(self._metrics))]
        for metric, slot in zip(self._metrics, self._slots, strict=True):
            slot.metricId = metric.id

    def between(self, calls: DriverCalls, earlier: Any, later: Any) -> dict[str, Any]:
        self._request.sample1, self._request.sample2 = earlier, later
        values: dict[str, Any] = {}
        if calls.run("nvmlGpmMetricsGet", ctypes.byref(self._request)):
            for metric, slot in zip(self._metrics, self._slots, strict=True):
                if slot.nvmlReturn == library.SUCCESS and math.isfinite(slot.value):
                    put(values, metric.field, metric.label, metric.convert(slot.value))
        return values


class Profiler:
    """The two samples of one GPU, or of one of its GPU instances."""

    def __init__(
        self,
        calls: DriverCalls,
        gpm: GpmRequest,
        gpu_instance: int | None = None,
        clocks: Clocks = SYSTEM,
    ) -> None:
        self._calls = calls
        self._gpm = gpm
        self._gpu_instance = gpu_instance
        self._clocks = clocks
        self._earlier: Any = None
        self._spare: Any = None
        self._taken_at = 0.0
        self._values: dict[str, Any] = {}

    def read(self) -> dict[str, Any]:
        now = self._clocks.monotonic()
        window = now - self._taken_at
        if self._earlier is not None and window < MIN_WINDOW_SECONDS:
            return self._values
        later = self._take()
        earlier, self._earlier, self._taken_at = self._earlier, later, now
        self._values = {}
        if earlier is not None and later is not None and window <= MAX_WINDOW_SECONDS:
            self._values = self._gpm.between(self._calls, earlier, later)
        if earlier is not None:
            self._keep_or_free(earlier)
        return self._values

    def _take(self) -> Any:
        """Takes a new sample, into the spare sample if there is one; None if that fails."""
        sample, self._spare = self._spare, None
        if sample is None:
            sample = self._calls.library.nvml.c_nvmlGpmSample_t()
            if not self._calls.run("nvmlGpmSampleAlloc", ctypes.byref(sample)):
                return None
        if self._gpu_instance is None:
            taken = self._calls.run("nvmlGpmSampleGet", self._calls.handle, sample)
        else:
            instance = self._gpu_instance
            taken = self._calls.run(
                "nvmlGpmMigSampleGet", self._calls.handle, ctypes.c_uint(instance), sample, qualifier=instance
            )
        if taken:
            return sample
        self._keep_or_free(sample)
        return None

    def _keep_or_free(self, sample: Any) -> None:
        if self._spare is None:
            self._spare = sample
        else:
            _free(self._calls, sample)

    def close(self) -> None:
        for sample in (self._earlier, self._spare):
            if sample is not None:
                _free(self._calls, sample)
        self._earlier = self._spare = None
        self._values = {}


def _free(calls: DriverCalls, sample: Any) -> None:
    if calls.runner.has_stuck_calls:
        return  # a stuck call may use this sample: leak it rather than free it
    with suppress(calls.library.nvml.NVMLError):  # the session may have ended already
        calls.call("free", "nvmlGpmSampleFree", calls.library.raw("nvmlGpmSampleFree"), sample)
