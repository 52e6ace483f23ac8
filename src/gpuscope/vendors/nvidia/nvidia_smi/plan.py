"""When nvidia-smi is run, and its settings: with `--source auto` only while NVML does not answer."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.base.setting_values import parse_duration, parse_interval, setting
from gpuscope.base.source_plan import SourcePlan, is_down


@dataclass(frozen=True, kw_only=True)
class NvidiaSmiSettings:
    nvidia_smi_command: str = setting(
        "nvidia-smi", str, "command that runs nvidia-smi, for example with ssh, sudo or docker exec", "COMMAND"
    )
    nvidia_smi_interval: float = setting(5.0, parse_interval, "interval between runs of nvidia-smi", "5s")
    nvidia_smi_timeout: float = setting(10.0, parse_duration, "timeout of a run of nvidia-smi", "10s")


PLAN = SourcePlan(
    trust=30,
    settings=NvidiaSmiSettings,
    selectable=True,
    in_auto=lambda settings: True,
    wanted=lambda states: is_down("nvml", states),
    why="NVML does not answer",
)
