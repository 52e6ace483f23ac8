"""What the load did against what the monitor showed, metric by metric.

The load knows its own busy time; the kind says which share of it each metric should show. Means are taken over
the steady seconds: the first ones hold the start, and a driver reports up to a second late, so the last one is
left out too. A metric the monitor never reported is no disagreement: it is listed as not reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from gpuscope.load.duty_cycle import Progress
from gpuscope.load.kinds import Kind
from gpuscope.readings import ABSENT, Device, Maybe, MigInstance

SETTLING_SECONDS: Final = 3.0
TOLERANCE: Final = 0.05
"""Five points: what rounding, sampling periods and their phase add up to."""

UTILIZATION: Final = "utilization_ratio"


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

    @property
    def verdict(self) -> Agreement:
        if self.seen is ABSENT:
            return Agreement.NOT_REPORTED
        agrees = self.low - TOLERANCE <= self.seen <= self.high + TOLERANCE
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
    samples: list[tuple[float, Device | MigInstance]] = field(default_factory=list)
    """(seconds since the load began, what the monitor read)."""
    error: str = ""

    def rate(self) -> Maybe[float]:
        """Operations or bytes a second over the whole load."""
        if not self.progress or self.progress[-1].elapsed <= 0:
            return ABSENT
        return self.progress[-1].amount / self.progress[-1].elapsed

    def busy_ratio(self) -> Maybe[float]:
        """The share of the steady time in which the GPU was busy, by its own events."""
        steady = [one for one in self.progress if one.elapsed >= SETTLING_SECONDS]
        if len(steady) < 2:
            return ABSENT
        elapsed = steady[-1].elapsed - steady[0].elapsed
        return (steady[-1].busy_seconds - steady[0].busy_seconds) / elapsed if elapsed > 0 else ABSENT


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
    return [Compared(name, low, high, _mean(steady, name)) for name, (low, high) in ranges.items()]


def _mean(devices: Sequence[Device | MigInstance], name: str) -> Maybe[float]:
    values = [value for device in devices if (value := getattr(device, name, ABSENT)) is not ABSENT]
    return sum(values) / len(values) if values else ABSENT
