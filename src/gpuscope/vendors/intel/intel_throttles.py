"""Why an Intel GPU's clocks are held back: which reasons hinder work, and what to do.

The names are those of the kernel's files `reason_*` (xe) and `throttle_reason_*` (i915). PL1, PL2 and PL4 are
limits of power over seconds, milliseconds and at once.
"""

from __future__ import annotations

from typing import Final

from gpuscope.model.vendor import ThrottleReason

_COOLING: Final = "check fans, airflow and dust; compare with the other GPUs of the node"
_SUPPLY: Final = "check power supplies, cables and the rack's feed"

INTEL_THROTTLES: Final = (
    ThrottleReason(
        "prochot",
        True,
        "The machine told the GPU to slow down (PROCHOT).",
        "check power supplies, fans and the board's management controller",
    ),
    ThrottleReason("psys_crit", True, "The power of the whole machine is critical.", _SUPPLY),
    ThrottleReason("thermal", True, "The GPU is too hot and lowers its clocks.", _COOLING),
    ThrottleReason("soc_thermal", True, "The chip is too hot and lowers its clocks.", _COOLING),
    ThrottleReason("soc_avg_thermal", True, "The chip was too hot for a while.", _COOLING),
    ThrottleReason("mem_thermal", True, "The GPU's memory is too hot.", _COOLING),
    ThrottleReason(
        "vr_thermalert",
        True,
        "The voltage regulators of the board are too hot.",
        "check the airflow over the board",
    ),
    ThrottleReason("ratl", True, "The temperature, averaged over a while, is at its limit (RATL).", _COOLING),
    ThrottleReason("psys_pl1", True, "The whole machine draws as much power as it is allowed to.", _SUPPLY),
    ThrottleReason("psys_pl2", True, "The whole machine draws as much power as it is allowed to.", _SUPPLY),
    ThrottleReason(
        "vr_tdc",
        False,
        "The current of a voltage regulator is at its limit: normal under some loads.",
        "nothing",
    ),
    ThrottleReason("iccmax", False, "The current is at its limit: normal under some loads.", "nothing"),
    ThrottleReason("fastvmode", False, "A voltage regulator limits the current at once.", "nothing"),
    ThrottleReason(
        "pl4", False, "A peak of power or current is at its limit: normal under some loads.", "nothing"
    ),
    ThrottleReason("pl2", False, "The power over milliseconds is at its limit: normal under load.", "nothing"),
    ThrottleReason(
        "pl1",
        False,
        "The GPU draws as much power as it is allowed to: normal under load.",
        "raise hwmon's power1_max if power and cooling allow",
    ),
    ThrottleReason("p0_freq", False, "The clock is at its highest.", "nothing"),
)
"""Worst first."""
