"""Profiling by GPM, on Hopper and newer: what the units of a GPU or a MIG instance did between two samples.

In go two samples that the driver takes, out come ratios and bytes per second for the time between them; the
first reading therefore has none. Samples are memory of the driver's: two per GPU, taken in turn, and freed.
"""

from __future__ import annotations

import ctypes
import math
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from gpuscope.readings import ABSENT
from gpuscope.sources.nvml import codes
from gpuscope.sources.nvml.call_table import Convert, Label, percent, put, times
from gpuscope.sources.nvml.clocks import SYSTEM, Clocks
from gpuscope.sources.nvml.driver_calls import Gate
from gpuscope.sources.nvml.library import Library, plain

SHORTEST_WINDOW_SECONDS: Final = 0.1  # NVIDIA's own lower limit
LONGEST_WINDOW_SECONDS: Final = 600.0  # a longer mean would hide what happened; start anew
mebibytes: Final = times(1 << 20)


@dataclass(frozen=True, slots=True)
class Metric:
    id: int
    field: str
    label: Label = None
    convert: Convert = percent


METRICS: Final = (
    Metric(1, "graphics_engine_active_ratio"),
    Metric(2, "sm_active_ratio"),
    Metric(3, "sm_occupancy_ratio"),
    Metric(4, "integer_active_ratio"),
    Metric(5, "tensor_active_ratio"),
    Metric(6, "tensor_pipe_active_ratio", "dfma"),
    Metric(7, "tensor_pipe_active_ratio", "hmma"),
    Metric(9, "tensor_pipe_active_ratio", "imma"),
    Metric(10, "dram_active_ratio"),
    Metric(11, "fp64_active_ratio"),
    Metric(12, "fp32_active_ratio"),
    Metric(13, "fp16_active_ratio"),
    Metric(20, "profiled_pcie_bytes_per_second", "tx", mebibytes),
    Metric(21, "profiled_pcie_bytes_per_second", "rx", mebibytes),
    Metric(60, "profiled_nvlink_bytes_per_second", "rx", mebibytes),
    Metric(61, "profiled_nvlink_bytes_per_second", "tx", mebibytes),
)

LINK_METRICS: Final = tuple(
    Metric(62 + 2 * link + place, "profiled_nvlink_link_bytes_per_second", (str(link), direction), mebibytes)
    for link in range(18)
    for place, direction in enumerate(("rx", "tx"))
)
"""Read only on request: 36 numbers a GPU that the driver also counts without profiling."""


def supports_gpm(gate: Gate) -> bool:
    answer = gate.answer(("nvmlGpmQueryDeviceSupport", ()))
    return answer is not ABSENT and bool(answer.isSupportedDevice)


class Gpm:
    """The request for all metrics, made once per GPU: it is 20 kB large, and a stuck call keeps its own."""

    def __init__(self, library: Library) -> None:
        self._metrics = METRICS + (LINK_METRICS if library.tier_plan.profiles_links else ())
        self._request = plain(library.nvml.c_nvmlGpmMetricsGet_t)()
        self._request.version = library.nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(self._metrics)
        self._slots = [self._request.metrics[place] for place in range(len(self._metrics))]
        for metric, slot in zip(self._metrics, self._slots, strict=True):
            slot.metricId = metric.id

    def between(self, gate: Gate, earlier: Any, later: Any) -> dict[str, Any]:
        self._request.sample1, self._request.sample2 = earlier, later
        values: dict[str, Any] = {}
        if gate.run("nvmlGpmMetricsGet", ctypes.byref(self._request)):
            for metric, slot in zip(self._metrics, self._slots, strict=True):
                if slot.nvmlReturn == codes.SUCCESS and math.isfinite(slot.value):
                    put(values, metric.field, metric.label, metric.convert(slot.value))
        return values


class Profiler:
    """The two samples of one GPU, or of one of its GPU instances."""

    def __init__(
        self,
        gate: Gate,
        gpm: Gpm,
        gpu_instance: int | None = None,
        clocks: Clocks = SYSTEM,
    ) -> None:
        self._gate = gate
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
        if self._earlier is not None and window < SHORTEST_WINDOW_SECONDS:
            return self._values
        later = self._take()
        earlier, self._earlier, self._taken_at = self._earlier, later, now
        self._values = {}
        if earlier is not None and later is not None and window <= LONGEST_WINDOW_SECONDS:
            self._values = self._gpm.between(self._gate, earlier, later)
        if earlier is not None:
            self._keep_or_free(earlier)
        return self._values

    def _take(self) -> Any:
        """A new sample, or None; into the spare one's memory if there is one."""
        sample, self._spare = self._spare, None
        if sample is None:
            sample = self._gate.library.nvml.c_nvmlGpmSample_t()
            if not self._gate.run("nvmlGpmSampleAlloc", ctypes.byref(sample)):
                return None
        if self._gpu_instance is None:
            taken = self._gate.run("nvmlGpmSampleGet", self._gate.handle, sample)
        else:
            instance = self._gpu_instance
            taken = self._gate.run(
                "nvmlGpmMigSampleGet", self._gate.handle, ctypes.c_uint(instance), sample, about=instance
            )
        if taken:
            return sample
        self._keep_or_free(sample)
        return None

    def _keep_or_free(self, sample: Any) -> None:
        if self._spare is None:
            self._spare = sample
        else:
            _free(self._gate, sample)

    def close(self) -> None:
        for sample in (self._earlier, self._spare):
            if sample is not None:
                _free(self._gate, sample)
        self._earlier = self._spare = None
        self._values = {}


def _free(gate: Gate, sample: Any) -> None:
    if gate.lane.has_stuck_calls:
        return  # one of them may be about this sample: a little memory of the driver's is the lesser loss
    with suppress(gate.library.nvml.NVMLError):  # the session may have ended before
        gate.call("free", "nvmlGpmSampleFree", gate.library.raw("nvmlGpmSampleFree"), sample)
