"""Converts a CSV header of nvidia-smi to a metric name and a multiplier.

The rules are nvidia_gpu_exporter's. Names are a compatibility contract, so its quirks (camel case split at
digits, an unknown unit in the name) are kept. A field never gets a name that the exporter uses for itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Final, NamedTuple

PREFIX: Final = "nvidia_smi_"

_UNITS: Final = (
    (" [W]", "_watts", 1.0),
    (" [MHz]", "_clock_hz", 1e6),
    (" [MiB]", "_bytes", 1048576.0),
    (" [%]", "_ratio", 0.01),
    (" [us]", "_seconds", 1e-6),
    (" [ms]", "_seconds", 1e-3),
    (" [seconds]", "_seconds", 1.0),
    (" [W/s]", "_watts_per_second", 1.0),
)
_WORD_START = re.compile(r"(.)([A-Z][a-z]+)")
_CAPITAL = re.compile(r"([a-z0-9])([A-Z])")
_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_:]+")

_MIG_NUMBERS = (
    *(f"memory_{kind}_bytes" for kind in ("total", "used", "free", "reserved")),
    *(f"{what}_ratio" for what in ("graphics_activity", "sm_activity", "sm_occupancy", "tensor_activity")),
    *("pcie_throughput_tx_bytes_per_second", "pcie_throughput_rx_bytes_per_second"),
)
RESERVED: Final = frozenset(
    PREFIX + name
    for name in (
        *("failed_scrapes_total", "command_exit_code", "nvml_return_code", "gpu_info"),
        *("last_collect_success", "last_collect_success_timestamp_seconds", "last_collect_duration_seconds"),
        *("compute_app_info", "compute_app_used_memory_bytes", "compute_apps"),
        *("compute_apps_last_collect_success", "energy_joules_total", "mig_info"),
        *("pcie_throughput_tx_bytes_per_second", "pcie_throughput_rx_bytes_per_second"),
        *("xid_errors_total", "xid_last_timestamp_seconds"),
        *(f"mig_{number}" for number in _MIG_NUMBERS),
    )
)


class MetricName(NamedTuple):
    name: str
    multiplier: float


@lru_cache(maxsize=1024)
def to_metric_name(header: str) -> MetricName:
    name, multiplier = header, 1.0
    for suffix, ending, factor in _UNITS:
        if header.endswith(suffix):
            name, multiplier = header.split(" ")[0] + ending, factor
            break
    name = name.replace(".", "_")
    name = _CAPITAL.sub(r"\1_\2", _WORD_START.sub(r"\1_\2", name)).lower()
    name = name.replace(" [", "_").replace("]", "")
    return MetricName(PREFIX + _NOT_IN_A_NAME.sub("_", name), multiplier)


def usable_names(headers: Iterable[str]) -> dict[str, MetricName]:
    """Names by header. If two headers have the same name, neither is exported: one would have a wrong value."""
    names = {header: to_metric_name(header) for header in headers if header}
    claims: dict[str, int] = {}
    for name in names.values():
        claims[name.name] = claims.get(name.name, 0) + 1
    return {
        header: name
        for header, name in names.items()
        if claims[name.name] == 1 and name.name not in RESERVED and name.name != PREFIX
    }
