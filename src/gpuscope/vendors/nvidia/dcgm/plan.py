"""When DCGM is read, and its settings: with `--source auto` only for profiling values that NVML lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuscope.base.setting_values import setting
from gpuscope.base.source_plan import SourcePlan, SourceState, is_down

if TYPE_CHECKING:
    from gpuscope.base.settings import Settings
    from gpuscope.model.readings import Device, Maybe, Reading

FIRST_PROFILING_SECONDS = 5.0


@dataclass(frozen=True, kw_only=True)
class DcgmSettings:
    dcgmi_command: str = setting("dcgmi", str, "command that runs dcgmi", "COMMAND")
    dcgm_host: str = setting("", str, "address of the DCGM host engine (default: dcgmi's default)", "HOST:PORT")


def _has_dcgmi(settings: Settings) -> bool:
    import shutil  # here and below: commands that read no GPU load this module too

    return shutil.which(settings.view(DcgmSettings).dcgmi_command.split()[0]) is not None


def _lacks_profiling(states: Sequence[SourceState]) -> bool:
    """Whether NVML has no profiling values for some GPU that answers, or does not answer."""
    from gpuscope.model.readings import ABSENT

    for state in states:
        reading: Maybe[Reading] = state.fresh()
        if state.name == "nvml" and reading is not ABSENT:
            # NVML's profiling needs two readings some time apart. It exists from Hopper on: wait for it there.
            is_early = state.answering_for() < FIRST_PROFILING_SECONDS
            return any(
                "sm" not in device.engine_active_ratio and not (is_early and _has_nvml_profiling(device))
                for device in reading.devices
                if not device.lost
            )
    return is_down("nvml", states)


def _has_nvml_profiling(device: Device) -> bool:
    from gpuscope.model.readings import ABSENT

    capability = device.compute_capability
    return capability is not ABSENT and capability.partition(".")[0] not in ("", *"5678")


PLAN = SourcePlan(
    trust=20,
    settings=DcgmSettings,
    selectable=True,
    in_auto=_has_dcgmi,
    wanted=_lacks_profiling,
    why="the driver gives no profiling numbers for some GPU",
)
