"""Why a GPU's clocks are held back, by nvidia-smi's own names: which reasons hinder work, and what to do.

Absent from a card that does not report it. The one thing a newcomer would get wrong: `gpu_idle` and a power
cap under load are normal; heat and the power brake are not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Throttle:
    reason: str
    hinders: bool
    """Whether it is a problem to act on, not the card doing what it was set to do."""
    meaning: str
    next_step: str


_TABLE: Final = (
    Throttle(
        "hw_thermal_slowdown",
        True,
        "The GPU is so hot that its hardware halves the clocks.",
        "check fans, airflow and dust; compare with the other GPUs of the node",
    ),
    Throttle(
        "hw_power_brake_slowdown",
        True,
        "The machine's power supply told the GPU to slow down.",
        "check power supplies, cables and the rack's feed",
    ),
    Throttle(
        "hw_slowdown",
        True,
        "The hardware slows the GPU down because of heat or power.",
        "look at the temperature and at the power brake to see which",
    ),
    Throttle(
        "sw_thermal_slowdown",
        True,
        "The driver lowers the clocks to keep the temperature.",
        "improve the cooling; normal for desktop cards under full load",
    ),
    Throttle(
        "sync_boost",
        True,
        "The clocks follow the slowest GPU of a group.",
        "find the slow GPU of the group, or end the group (nvidia-smi boost-slider)",
    ),
    Throttle(
        "sw_power_cap",
        False,
        "The GPU draws as much power as it is allowed to: normal under load.",
        "raise the limit with nvidia-smi -pl if power and cooling allow",
    ),
    Throttle(
        "applications_clocks_setting",
        False,
        "Somebody set application clocks.",
        "nvidia-smi -rac removes them",
    ),
    Throttle(
        "display_clock_setting",
        False,
        "A display needs these clocks.",
        "nothing",
    ),
    Throttle(
        "gpu_idle",
        False,
        "Nothing runs, so the clocks are low.",
        "nothing",
    ),
)

THROTTLES: Final[dict[str, Throttle]] = {row.reason: row for row in _TABLE}
HINDERING: Final = tuple(row.reason for row in _TABLE if row.hinders)
"""The reasons to act on, worst first."""
