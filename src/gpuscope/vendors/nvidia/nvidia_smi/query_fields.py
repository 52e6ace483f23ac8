"""The fields to query: all that the driver's help lists.

Input: the text of `--help-query-gpu`; output: query field names. A field with several names (`"name" or
"gpu_name"`) is queried by the first, from which its metric name is derived. Only plain names are accepted,
because they become part of a command line that a remote shell may parse.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_FIELD = re.compile(r'(?:\A|\n)[ \t\r]*\n"([A-Za-z][A-Za-z0-9_.]*)"')
_REFUSED = re.compile(r'Field "([^"\n]+)" is not a valid field to query')

IDENTITY_FIELDS = (
    "uuid",
    "name",
    "driver_model.current",
    "driver_model.pending",
    "vbios_version",
    "driver_version",
    "pci.bus_id",
    "serial",
    "compute_cap",
    "pci.sub_device_id",
    "index",
)

_ALWAYS_KNOWN = """
    timestamp count pci.domain pci.bus pci.device pci.device_id
    pcie.link.gen.current pcie.link.gen.max pcie.link.width.current pcie.link.width.max
    display_active persistence_mode accounting.mode accounting.buffer_size
    inforom.img inforom.oem inforom.ecc inforom.pwr fan.speed pstate
    memory.total memory.reserved memory.used memory.free compute_mode
    utilization.gpu utilization.memory
    encoder.stats.sessionCount encoder.stats.averageFps encoder.stats.averageLatency
    ecc.mode.current ecc.mode.pending mig.mode.current mig.mode.pending
    retired_pages.single_bit_ecc.count retired_pages.double_bit.count retired_pages.pending
    temperature.gpu temperature.memory power.draw power.limit enforced.power.limit
    power.default_limit power.min_limit power.max_limit
    clocks.current.graphics clocks.current.sm clocks.current.memory clocks.current.video
    clocks.max.graphics clocks.max.sm clocks.max.memory
"""
_REASONS = """
    supported active gpu_idle applications_clocks_setting sw_power_cap hw_slowdown hw_thermal_slowdown
    hw_power_brake_slowdown sw_thermal_slowdown sync_boost
"""
_ECC_PLACES = "device_memory dram register_file l1_cache l2_cache texture_memory cbu sram total"

BUILT_IN_FIELDS: tuple[str, ...] = (
    *IDENTITY_FIELDS,
    *_ALWAYS_KNOWN.split(),
    *(f"clocks_event_reasons.{reason}" for reason in _REASONS.split()),
    *(
        f"ecc.errors.{error}.{lifetime}.{place}"
        for error in ("corrected", "uncorrected")
        for lifetime in ("volatile", "aggregate")
        for place in _ECC_PLACES.split()
    ),
)
"""Fields of every driver since 535, used if the help cannot be read."""


def parse_help(text: str) -> tuple[str, ...]:
    """The fields in a help text, plus the identity fields; none if it is not a help text."""
    found = dict.fromkeys(_FIELD.findall(text.replace("\r\n", "\n")))
    if "uuid" not in found:
        return ()
    return tuple(dict.fromkeys((*found, *IDENTITY_FIELDS)))


def without_refused(fields: Sequence[str], complaint: str) -> tuple[str, ...]:
    """`fields` without the field that nvidia-smi refused; unchanged if the error is a different one."""
    match = _REFUSED.search(complaint)
    if match is None or match[1] not in fields:
        return tuple(fields)
    prefix = match[1].partition(".")[0]
    if prefix == "clocks_event_reasons":  # this driver uses the older name for all of them
        return tuple(_with_older_name(field) for field in fields)
    if prefix in ("clocks_event_reasons_counters", "clocks_throttle_reasons"):
        return tuple(field for field in fields if not field.startswith(prefix + "."))
    return tuple(field for field in fields if field != match[1])


def _with_older_name(field: str) -> str:
    prefix, _, rest = field.partition(".")
    return f"clocks_throttle_reasons.{rest}" if prefix == "clocks_event_reasons" else field
