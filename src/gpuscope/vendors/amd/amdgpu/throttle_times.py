"""Why a card holds its clocks back, and for how long: from the throttle fields of `gpu_metrics`.

Newer cards (1.6 and later) count, for each reason, the firmware's cycles in which it applied, beside all
cycles: the share of cycles since the last reading is the share of time. Older ones have a bit for each reason,
which is what applies now. AMD's many limiters are put together by what an operator can do about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from gpuscope.model.readings import ABSENT, Maybe
from gpuscope.vendors.amd.amdgpu.gpu_metrics import GpuMetrics

PPT: Final = "ppt"
TDC: Final = "tdc"
PROCESSOR_HOT: Final = "processor_hot"
SOCKET_THERMAL: Final = "socket_thermal"
MEMORY_THERMAL: Final = "memory_thermal"
VR_THERMAL: Final = "vr_thermal"
LIQUID_THERMAL: Final = "liquid_thermal"
RELIABILITY: Final = "reliability"
REASONS: Final = (
    PROCESSOR_HOT, SOCKET_THERMAL, MEMORY_THERMAL, VR_THERMAL, LIQUID_THERMAL, PPT, TDC, RELIABILITY,
)  # fmt: skip
"""Worst first."""

_BITS: Final = {
    **dict.fromkeys(range(8), PPT),  # PPT0 … PPT3, SPL, FPPT, SPPT, SPPT of the APU
    **dict.fromkeys(range(16, 24), TDC),  # currents: TDC of each rail, EDC, APCC
    **dict.fromkeys((32, 33, 35, 36, 37), SOCKET_THERMAL),  # GPU, core, edge, hotspot, SoC
    34: MEMORY_THERMAL,
    **dict.fromkeys((38, 39, 40, 41, 44, 45), VR_THERMAL),
    42: LIQUID_THERMAL,
    43: LIQUID_THERMAL,
    46: PROCESSOR_HOT,
    47: PROCESSOR_HOT,
    56: PPT,  # PPM, peak power management
    57: RELIABILITY,  # FIT
}
"""Of `indep_throttle_status`, which has the same bits on all cards."""

_MI300_BITS: Final = {0: PROCESSOR_HOT, 1: PPT, 2: SOCKET_THERMAL, 3: VR_THERMAL, 4: MEMORY_THERMAL}
"""Of `throttle_status` in revisions 1.4 and 1.5, which only the MI300 family has."""

_CYCLES: Final = {
    "prochot_residency_acc": PROCESSOR_HOT,
    "ppt_residency_acc": PPT,
    "socket_thm_residency_acc": SOCKET_THERMAL,
    "vr_thm_residency_acc": VR_THERMAL,
    "hbm_thm_residency_acc": MEMORY_THERMAL,
}
_PROCESSOR_CYCLES: Final = {
    "throttle_residency_prochot": PROCESSOR_HOT,
    "throttle_residency_spl": PPT,
    "throttle_residency_fppt": PPT,
    "throttle_residency_sppt": PPT,
    "throttle_residency_thm_core": SOCKET_THERMAL,
    "throttle_residency_thm_gfx": SOCKET_THERMAL,
    "throttle_residency_thm_soc": SOCKET_THERMAL,
}
"""Of revision 3.0, which does not say how long a cycle is: what grows applies."""

_COUNTER: Final = 1 << 32
"""The counters have 32 bits up to 1.8, and start again at 0."""


@dataclass(frozen=True, slots=True)
class Throttling:
    reasons: Mapping[str, float] = field(default_factory=dict)
    """1 for a reason that applies, 0 for one that does not; empty if the card does not say."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Since the first reading, by reason; only of cards that count."""


NOT_KNOWN: Final = Throttling()


class ThrottleTimes:
    """Call `advance` with each reading of a card."""

    def __init__(self) -> None:
        self._at: float | None = None
        self._cycles: Maybe[int] = ABSENT
        self._counts: dict[str, int] = {}
        self._seconds: dict[str, float] = {}

    def advance(self, metrics: GpuMetrics, at: float) -> Throttling:
        """`at` is a monotonic time in seconds."""
        for names in (_CYCLES, _PROCESSOR_CYCLES):
            counts = {name: count for name in names if (count := metrics.number(name)) is not ABSENT}
            if counts:
                return self._advance_counts(counts, names, metrics.number("accumulation_counter"), at)
        status = metrics.number("indep_throttle_status")
        if status is not ABSENT:
            return Throttling(_applying(status, _BITS))
        status = metrics.number("throttle_status")
        if status is not ABSENT and metrics.revision in ((1, 4), (1, 5)):
            return Throttling(_applying(status, _MI300_BITS))
        return NOT_KNOWN

    def _advance_counts(
        self, counts: dict[str, int], names: Mapping[str, str], cycles: Maybe[int], at: float
    ) -> Throttling:
        before, self._counts = self._counts, counts
        gained: dict[str, int] = {}
        for name in (name for name in counts if name in before):
            # Several counters of one reason may grow together: the longest of them counts.
            more = (counts[name] - before[name]) % _COUNTER
            gained[names[name]] = max(gained.get(names[name], 0), more)
        passed = ABSENT if cycles is ABSENT or self._cycles is ABSENT else (cycles - self._cycles) % _COUNTER
        seconds = 0.0 if self._at is None else at - self._at
        self._cycles, self._at = cycles, at
        if passed is not ABSENT and max(gained.values(), default=0) > passed:
            gained = {}  # the firmware was started again: nothing is known about this time
        if cycles is not ABSENT:
            for reason in dict.fromkeys(names.values()):
                share = gained.get(reason, 0) / passed if passed is not ABSENT and passed else 0.0
                self._seconds[reason] = self._seconds.get(reason, 0.0) + share * seconds
        reasons = {reason: 1.0 if more else 0.0 for reason, more in gained.items()}
        return Throttling(reasons, dict(self._seconds))


def _applying(status: int, bits: Mapping[int, str]) -> dict[str, float]:
    applying = {reason for bit, reason in bits.items() if status >> bit & 1}
    return {reason: 1.0 if reason in applying else 0.0 for reason in dict.fromkeys(bits.values())}
