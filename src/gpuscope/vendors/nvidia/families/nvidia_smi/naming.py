"""Converts a CSV header of nvidia-smi to a metric name and a multiplier.

The rules are nvidia_gpu_exporter's. Names are a compatibility contract, so its quirks (camel case split at
digits, an unknown unit in the name) are kept. A field never gets a name that the exporter uses for itself.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, go_float

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


# Converts a cell to a number as nvidia_gpu_exporter does; None if it is not a number.
#
# For compatibility any text with exactly one number is accepted: the model name "NVIDIA L40S" is 40 and the
# driver version "591.86" is 591.86, while "590.48.01" (two numbers) is None.

_NUMBER = re.compile(r"[+-]?(?:[0-9]*[.])?[0-9]+")
_HEX = re.compile(r"0x([0-9a-fA-F]+)\Z")

_WORDS: Final = {
    **dict.fromkeys(("enabled", "yes", "active"), 1.0),
    **dict.fromkeys(("disabled", "no", "not active", "default"), 0.0),
    "exclusive_thread": 1.0,
    "prohibited": 2.0,
    "exclusive_process": 3.0,
}
_STATES: Final = {  # fields with an NVML state: only these words are accepted
    "gpu_recovery_action": {
        "none": 0.0,
        "gpu reset": 1.0,
        "reset": 1.0,
        "node reboot": 2.0,
        "reboot": 2.0,
        "drain p2p": 3.0,
        "drain and reset": 4.0,
    },
    "fabric.state": {"not supported": 0.0, "not started": 1.0, "in progress": 2.0, "completed": 3.0},
}


@lru_cache(maxsize=4096)  # cells repeat between GPUs and cycles
def cell_value(header: str, cell: str, multiplier: float) -> float | None:
    text = cell.strip()
    if header in _STATES:
        return _STATES[header].get(text.lower())
    if text.startswith("0x"):
        return _hex_value(text)
    words = text.lower()
    return _WORDS[words] if words in _WORDS else _only_number(words, multiplier)


def _hex_value(text: str) -> float | None:
    match = _HEX.match(text)
    if match is None:
        return None
    number = int(match[1], 16)
    return float(number) if number < 1 << 64 else None


def _only_number(text: str, multiplier: float) -> float | None:
    found = _NUMBER.findall(text)
    if len(found) != 1:
        return None
    value = float(found[0]) * multiplier
    return value if math.isfinite(value) else None


def plain_uuid(uuid: str) -> str:
    """The UUID in labels: lower case, without `GPU-`."""
    return uuid.strip().lower().removeprefix("gpu-")


# Collects samples and sorts them like Go's client library: families, labels and series alphabetically.


@dataclass(slots=True)
class _Family:
    type: str
    help: str
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


class GoRegistry:
    """Collects samples in any order; the first sample of a series is used."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(
        self,
        name: str,
        help_text: str,
        value: float,
        labels: Iterable[tuple[str, str]] = (),
        kind: str = "gauge",
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(kind, help_text)
        family.samples.setdefault(tuple(sorted(labels)), value)

    def families(self, label_sets: LabelSets) -> list[MetricFamily]:
        return [
            MetricFamily(
                name,
                family.type,
                family.help,
                [Sample(label_sets.of(pairs), value) for pairs, value in sorted(family.samples.items())],
                go_float,
            )
            for name, family in sorted(self._families.items())
        ]


class LabelSets:
    """Returns the same label set for the same labels, so that its text is built once."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, str], ...], LabelSet] = {}

    def of(self, pairs: tuple[tuple[str, str], ...]) -> LabelSet:
        known = self._known.get(pairs)
        if known is None:
            if len(self._known) > 10_000:  # new processes keep appearing
                self._known.clear()
            known = self._known[pairs] = LabelSet(pairs)
        return known
