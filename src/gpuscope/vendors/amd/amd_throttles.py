"""Why an AMD GPU's clocks are held back: which reasons hinder work, and what to do.

AMD's drivers know some thirty limiters; `amdgpu/throttle_times.py` puts them together to these. The names are
those of AMD's device-metrics-exporter where it has one.
"""

from __future__ import annotations

from typing import Final

from gpuscope.model.vendor import ThrottleReason

AMD_THROTTLES: Final = (
    ThrottleReason(
        "processor_hot",
        True,
        "The machine told the GPU to slow down (PROCHOT).",
        "check power supplies, fans and the board's management controller",
    ),
    ThrottleReason(
        "socket_thermal",
        True,
        "The GPU is too hot and lowers its clocks.",
        "check fans, airflow and dust; compare with the other GPUs of the node",
    ),
    ThrottleReason(
        "memory_thermal",
        True,
        "The GPU's memory is too hot (hbm_thermal in AMD's exporter).",
        "check fans, airflow and dust; compare with the other GPUs of the node",
    ),
    ThrottleReason(
        "vr_thermal",
        True,
        "The voltage regulators of the board are too hot.",
        "check the airflow over the board",
    ),
    ThrottleReason(
        "liquid_thermal",
        True,
        "The coolant is too hot.",
        "check pump, flow and the temperature of the coolant",
    ),
    ThrottleReason(
        "tdc",
        False,
        "The current of a voltage rail is at its limit: normal under some loads.",
        "nothing",
    ),
    ThrottleReason(
        "ppt",
        False,
        "The GPU draws as much power as it is allowed to: normal under load.",
        "raise the limit with amd-smi set --power-cap if power and cooling allow",
    ),
    ThrottleReason(
        "reliability",
        False,
        "The firmware keeps the voltage low so that the chip lasts (FIT).",
        "nothing",
    ),
)
"""Worst first."""
