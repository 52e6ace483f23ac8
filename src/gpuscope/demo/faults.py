"""Faults of a simulated GPU, each with its start time; infinity means never. Scenarios set them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf

_ORPHANED_SHARE = 0.5


@dataclass(slots=True)
class Faults:
    lost_at: float = inf
    hot_at: float = inf  # no airflow: it heats up until the driver lowers its clocks
    narrow_at: float = inf  # its PCIe link has eight lanes, and packets are replayed
    ecc_at: float = inf  # memory errors, more every second
    orphaned_at: float = inf  # a program died, and a part of its memory is still taken
    xids: list[tuple[float, int]] = field(default_factory=list)

    def orphaned_share(self, at: float) -> float:
        """Of the GPU's memory."""
        return _ORPHANED_SHARE if at >= self.orphaned_at else 0.0

    def replays(self, at: float) -> int:
        return int(max(0.0, at - self.narrow_at) * 0.8)

    def corrected(self, at: float) -> int:
        return int(max(0.0, at - self.ecc_at) * 12)

    def uncorrected(self, at: float) -> int:
        """One per minute, the first one at `ecc_at`."""
        return int((at - self.ecc_at) // 60) + 1 if at >= self.ecc_at else 0
