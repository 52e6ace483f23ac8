"""Source `nvidia-smi`: reads through the command where the driver library cannot be loaded or is remote.

Each cycle runs it twice: `--query-gpu` with every field of the driver's help, and the process query. While a
GPU is in MIG mode, `-q` replaces the process query, because only `-q` names the instance of a process. A lost
GPU makes the whole query fail; the other GPUs are then queried by UUID. See docs/decisions.
"""

from __future__ import annotations

from gpuscope.base.settings import Settings
from gpuscope.model.source import SourceSpec
from gpuscope.vendors.nvidia.nvidia_smi.plan import NvidiaSmiSettings
from gpuscope.vendors.nvidia.nvidia_smi.smi_source import NvidiaSmi, SmiCommand


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
