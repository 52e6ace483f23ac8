"""When nvidia-smi is run, and its settings: with `--source auto` only while NVML does not answer."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.setting_values import parse_duration, parse_interval, setting
from gpuscope.source_plan import SourcePlan, is_down


@dataclass(frozen=True, kw_only=True)
class NvidiaSmiSettings:
    nvidia_smi_command: str = setting(
        "nvidia-smi", str, "how to run nvidia-smi: ssh, sudo or docker exec may stand in front", "COMMAND"
    )
    nvidia_smi_interval: float = setting(5.0, parse_interval, "how often nvidia-smi is run", "5s")
    nvidia_smi_timeout: float = setting(10.0, parse_duration, "when a run of nvidia-smi is killed", "10s")


PLAN = SourcePlan(
    trust=30,
    settings=NvidiaSmiSettings,
    selectable=True,
    in_auto=lambda settings: True,
    wanted=lambda states: is_down("nvml", states),
    why="NVML does not answer",
)
