"""What can be wrong with a simulated GPU, each from a moment on; never, unless a scenario says so."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import inf


@dataclass(slots=True)
class Faults:
    lost_at: float = inf
    hot_at: float = inf  # its air is blocked: it warms until the driver slows it down
    narrow_at: float = inf  # its PCIe link trained at eight lanes, and packets are sent again
    ecc_at: float = inf  # its memory fails, more with every second
    xids: list[tuple[float, int]] = field(default_factory=list)

    def replays(self, at: float) -> int:
        return int(max(0.0, at - self.narrow_at) * 0.8)

    def corrected(self, at: float) -> int:
        return int(max(0.0, at - self.ecc_at) * 12)

    def uncorrected(self, at: float) -> int:
        """One a minute, the first at once."""
        return int((at - self.ecc_at) // 60) + 1 if at >= self.ecc_at else 0
