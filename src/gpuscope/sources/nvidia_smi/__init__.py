"""Source `nvidia-smi`: everything through the command, where the library cannot be loaded or is elsewhere.

Two runs a cycle: `--query-gpu` with every field the driver's help lists, and the processes; while a GPU is in
MIG mode `-q` takes the place of the process query, because it alone says which instance a process is on. A
lost GPU makes nvidia-smi fail as a whole: then the others are asked for by UUID. See docs/decisions.
"""

from __future__ import annotations

from gpuscope.settings import Settings
from gpuscope.sources import SourceSpec
from gpuscope.sources.nvidia_smi.command import SmiCommand
from gpuscope.sources.nvidia_smi.plan import NvidiaSmiSettings
from gpuscope.sources.nvidia_smi.source import NvidiaSmi


def _command(settings: Settings) -> SmiCommand:
    own = settings.view(NvidiaSmiSettings)
    return SmiCommand(own.nvidia_smi_command, own.nvidia_smi_timeout)


def _check(settings: Settings) -> None:
    _command(settings)


def _interval_seconds(settings: Settings) -> float:
    return settings.view(NvidiaSmiSettings).nvidia_smi_interval


def _deadline_seconds(settings: Settings) -> float:
    own = settings.view(NvidiaSmiSettings)
    return max(15.0, 3 * own.nvidia_smi_interval, own.nvidia_smi_interval + 2 * own.nvidia_smi_timeout)


def _open(settings: Settings) -> NvidiaSmi:
    return NvidiaSmi.open(_command(settings))


SOURCE = SourceSpec(
    name="nvidia-smi",
    summary="devices, MIG instances and processes from the nvidia-smi command",
    open=_open,
    check=_check,
    interval_seconds=_interval_seconds,
    deadline_seconds=_deadline_seconds,
)
