"""What the load did against what the monitor showed, metric by metric.

The load knows its own busy time and the bytes it copied; the kind says which share of them each metric
should show. Means are taken over the steady seconds: the first ones hold the start, and a driver reports up to
a second late, so the last one is left out too. A metric the monitor never reported is no disagreement: it is
listed as not reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, sqrt
from statistics import fmean, stdev
from typing import Final

from gpuscope.model.readings import ABSENT, Device, Instance, Maybe
from gpuscope.vendors.nvidia.load.duty_cycle import Progress
from gpuscope.vendors.nvidia.load.kinds import NVLINK_LINK, PCIE_LINK, Kind
from gpuscope.vendors.nvidia.native_metrics import METRICS
from gpuscope.vendors.nvidia.nvidia_values import reader

SETTLING_SECONDS: Final = 3.0
TOLERANCE: Final = 0.05
"""Five points: what rounding, sampling periods and their phase add up to."""

UTILIZATION: Final = "utilization_ratio"
READING_OF: Final = {
    row.name.removeprefix("gpuscope_gpu_"): row.reading.removeprefix("vendor_values.") for row in METRICS
}
"""Paths of readings by name of the native metric."""

TRAFFIC_READINGS: Final = {
    PCIE_LINK: ("profiled_pcie_bytes_per_second", "pcie_bytes_per_second"),
    NVLINK_LINK: ("profiled_nvlink_bytes_per_second",),
}
"""By link: names of native metrics; the first one is the better one."""
SAMPLED_READINGS: Final = (UTILIZATION, "pcie_bytes_per_second")
"""The driver measures them over 1/6 s and 20 ms of each second, so their mean has a sampling error."""
MIN_TRAFFIC, MAX_TRAFFIC = 0.8, 1.4
"""Times the copied bytes: a link also carries packet headers and acknowledgements; counters may count them."""
STANDARD_ERRORS: Final = 3.0
"""Added to the range of a sampled reading on both sides."""


class Agreement(StrEnum):
    AGREES = "agrees"
    DISAGREES = "disagrees"
    NOT_REPORTED = "not reported"


@dataclass(frozen=True, slots=True)
class Compared:
    """One metric; `seen` is the mean the monitor showed."""

    metric: str
    low: float
    high: float
    seen: Maybe[float]
    is_traffic: bool = False
    """Bytes per second; otherwise a share of the time."""

    @property
    def verdict(self) -> Agreement:
        if self.seen is ABSENT:
            return Agreement.NOT_REPORTED
        tolerance = 0.0 if self.is_traffic else TOLERANCE
        agrees = self.low - tolerance <= self.seen <= self.high + tolerance
        return Agreement.AGREES if agrees else Agreement.DISAGREES


@dataclass(slots=True)
class LoadedGpu:
    """One GPU or MIG instance under load, and everything seen of it."""

    gpu: str
    uuid: str
    model: Maybe[str]
    is_shared: bool = False
    """Something else may work on it, too: a metric may then show more than the load."""
    progress: list[Progress] = field(default_factory=list)
    samples: list[tuple[float, Device | Instance]] = field(default_factory=list)
    """(seconds since the load began, what the monitor read)."""
    error: str = ""
    simulated_bytes_per_second: float = 0.0
    """Of a simulated load that copies."""

    def rate(self) -> Maybe[float]:
        """Operations or bytes a second over the whole load."""
        if not self.progress or self.progress[-1].elapsed <= 0:
            return ABSENT
        return self.progress[-1].amount / self.progress[-1].elapsed

    def busy_ratio(self) -> Maybe[float]:
        """The share of the steady time in which the GPU was busy, by its own events."""
        return self._steady_rate(lambda one: one.busy_seconds)

    def steady_amount_rate(self) -> Maybe[float]:
        """Operations or bytes a second over the steady time."""
        return self._steady_rate(lambda one: one.amount)

    def _steady_rate(self, total: Callable[[Progress], float]) -> Maybe[float]:
        steady = [one for one in self.progress if one.elapsed >= SETTLING_SECONDS]
        if len(steady) < 2:
            return ABSENT
        elapsed = steady[-1].elapsed - steady[0].elapsed
        return (total(steady[-1]) - total(steady[0])) / elapsed if elapsed > 0 else ABSENT


def compare(gpu: LoadedGpu, kind: Kind) -> list[Compared]:
    """Nothing if the load was too short to settle."""
    busy = gpu.busy_ratio()
    if busy is ABSENT:
        return []
    last = gpu.progress[-1].elapsed
    steady = [device for at, device in gpu.samples if SETTLING_SECONDS + 1 <= at <= last - 1]
    ranges = {UTILIZATION: (busy, busy)} if kind.kernel is not None else {}
    ranges |= {name: (share.low * busy, share.high * busy) for name, share in kind.expected.items()}
    if gpu.is_shared:
        ranges = {name: (low, 1.0) for name, (low, _) in ranges.items()}
    shares = [_compare(name, low, high, _values(steady, name)) for name, (low, high) in ranges.items()]
    return [*shares, *_compare_traffic(gpu, kind, steady)]


def _compare_traffic(gpu: LoadedGpu, kind: Kind, steady: Sequence[Device | Instance]) -> Iterator[Compared]:
    """Every reading of the link that the monitor has; the best one as not reported if it has none."""
    rate = gpu.steady_amount_rate()
    if rate is ABSENT:
        return
    for part in kind.traffic:
        low = rate * part.share * MIN_TRAFFIC
        high = inf if gpu.is_shared else rate * part.share * MAX_TRAFFIC
        rows = [
            _compare(name, low, high, _values(steady, name, part.direction), part.direction)
            for name in TRAFFIC_READINGS[part.link]
        ]
        yield from [row for row in rows if row.seen is not ABSENT] or rows[:1]


def _compare(name: str, low: float, high: float, values: Sequence[float], direction: str = "") -> Compared:
    """`direction` of a link's traffic; without one it is a share of the time."""
    margin = STANDARD_ERRORS * _standard_error(values) if name in SAMPLED_READINGS else 0.0
    highest = inf if direction else 1.0
    return Compared(
        f"{name}.{direction}" if direction else name,
        max(0.0, low - margin),
        min(highest, high + margin),
        fmean(values) if values else ABSENT,
        is_traffic=bool(direction),
    )


def _standard_error(values: Sequence[float]) -> float:
    """Of the mean."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else 0.0


def _values(devices: Sequence[Device | Instance], name: str, label: str = "") -> list[float]:
    return [value for device in devices if (value := _value(device, name, label)) is not ABSENT]


def _value(device: Device | Instance, name: str, label: str) -> Maybe[float]:
    path = READING_OF.get(name, name)
    return reader(f"{path}.{label}" if label else path)(device)
