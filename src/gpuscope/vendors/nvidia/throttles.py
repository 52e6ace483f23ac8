"""Why a GPU's clocks are held back, by nvidia-smi's own names: which reasons hinder work, and what to do.

Absent from a card that does not report it. The one thing a newcomer would get wrong: `gpu_idle` and a power
cap under load are normal; heat and the power brake are not.
"""

from __future__ import annotations

from typing import Final

from gpuscope.model.vendor import ThrottleReason

THROTTLES: Final = (
    ThrottleReason(
        "hw_thermal_slowdown",
        True,
        "The GPU is so hot that its hardware halves the clocks.",
        "check fans, airflow and dust; compare with the other GPUs of the node",
    ),
    ThrottleReason(
        "hw_power_brake_slowdown",
        True,
        "The machine's power supply told the GPU to slow down.",
        "check power supplies, cables and the rack's feed",
    ),
    ThrottleReason(
        "hw_slowdown",
        True,
        "The hardware slows the GPU down because of heat or power.",
        "look at the temperature and at the power brake to see which",
    ),
    ThrottleReason(
        "sw_thermal_slowdown",
        True,
        "The driver lowers the clocks to keep the temperature.",
        "improve the cooling; normal for desktop cards under full load",
    ),
    ThrottleReason(
        "sync_boost",
        True,
        "The clocks follow the slowest GPU of a group.",
        "find the slow GPU of the group, or end the group (nvidia-smi boost-slider)",
    ),
    ThrottleReason(
        "sw_power_cap",
        False,
        "The GPU draws as much power as it is allowed to: normal under load.",
        "raise the limit with nvidia-smi -pl if power and cooling allow",
    ),
    ThrottleReason(
        "applications_clocks_setting",
        False,
        "Somebody set application clocks.",
        "nvidia-smi -rac removes them",
    ),
    ThrottleReason(
        "display_clock_setting",
        False,
        "A display needs these clocks.",
        "nothing",
    ),
    ThrottleReason(
        "gpu_idle",
        False,
        "Nothing runs, so the clocks are low.",
        "nothing",
        is_idle=True,
    ),
)
"""Worst first."""
