"""Converts a cell to a number in base units, a switch or a text; ABSENT if it has no value.

Stricter than nvidia_gpu_exporter, whose metrics the `nvidia_smi` family reproduces: a cell is a number only if
it consists of a number and the unit in its header. `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`,
`[Unknown Error]`, `[GPU is lost]`, `ERR!` and all other texts are absent.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuscope.model.readings import ABSENT, Device, Maybe, Uuid
from gpuscope.vendors.nvidia.nvidia_values import THROTTLE_BITS, make_device

# Parses nvidia-smi's CSV: a header line, then one line per GPU or process.
#
# Cells are neither quoted nor escaped, so a line whose number of cells differs from the header is dropped;
# other lines are kept. Lines before the header (a login banner of ssh) are skipped. A column whose header
# occurs twice is left out.


@dataclass(frozen=True, slots=True)
class Rows:
    rows: tuple[dict[str, str], ...]  # header -> cell
    dropped: int = 0  # lines that did not fit the header


def field_of(header: str) -> str:
    """The query field of a header: `memory.total` of `memory.total [MiB]`."""
    return header.partition(" [")[0]


def unit_of(header: str) -> str:
    _, bracket, unit = header.partition(" [")
    return unit.removesuffix("]") if bracket else ""


def split_line(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def parse_rows(text: str, key_field: str, *, cut_short: bool = False) -> Rows:
    """Rows of the table whose header has `key_field`. `cut_short`: the last line may be incomplete."""
    lines = text.split("\n")
    if cut_short and lines and lines[-1]:
        lines[-1] = ""
    for number, line in enumerate(lines):
        headers = split_line(line)
        if key_field in map(field_of, headers):
            return _rows_below(headers, lines[number + 1 :])
    return Rows(())


def _rows_below(headers: list[str], lines: list[str]) -> Rows:
    repeated = {header for header, count in Counter(headers).items() if count > 1}
    rows, dropped = [], 0
    for line in lines:
        if not line.strip():
            continue
        cells = split_line(line)
        if len(cells) != len(headers):
            dropped += 1
            continue
        rows.append({h: c for h, c in zip(headers, cells, strict=True) if h not in repeated})
    return Rows(tuple(rows), dropped)


GPU_IS_LOST = "[GPU is lost]"

MULTIPLES = {"": 1.0, "W": 1.0, "C": 1.0, "MHz": 1e6, "MiB": 1024.0 * 1024.0}
FRACTIONS = {"%": 100.0, "us": 1e6, "ms": 1e3}  # divisors, because 7 * 0.01 is 0.07000000000000001

_NUMBER = re.compile(r"([+-]?[0-9]{1,20}(?:\.[0-9]{1,20})?)(?: ?([A-Za-z%]+))?\Z")
_MASK = re.compile(r"0x[0-9A-Fa-f]{1,16}\Z")
_PSTATE = re.compile(r"P([0-9]{1,2})\Z")
_SWITCHES = {
    "enabled": 1.0,
    "yes": 1.0,
    "active": 1.0,
    "disabled": 0.0,
    "no": 0.0,
    "not active": 0.0,
}
_COMPUTE_MODES = {"default": 0.0, "exclusive_thread": 1.0, "prohibited": 2.0, "exclusive_process": 3.0}
_NOT_GIVEN = frozenset({"", "n/a", "err!", "unknown error", "not found"})


def to_number(cell: str, unit: str = "") -> Maybe[float]:
    """`98.00 W` in base units. ABSENT if the cell's unit is not the unit of the header."""
    match = _NUMBER.match(cell)
    if match is None or match[2] not in (None, unit):
        return ABSENT
    number = float(match[1])
    if unit in FRACTIONS:
        return number / FRACTIONS[unit]
    return number * MULTIPLES[unit] if unit in MULTIPLES else ABSENT


def to_switch(cell: str) -> Maybe[float]:
    return _SWITCHES.get(cell.lower(), ABSENT)


def to_count_or_switch(cell: str, unit: str = "") -> Maybe[float]:
    """`remapped_rows.pending` is Yes or No on some drivers, 1 or 0 on others."""
    switch = to_switch(cell)
    return to_number(cell, unit) if switch is ABSENT else switch


def to_compute_mode(cell: str) -> Maybe[float]:
    return _COMPUTE_MODES.get(cell.lower(), ABSENT)


def to_performance_state(cell: str) -> Maybe[float]:
    match = _PSTATE.match(cell)
    return ABSENT if match is None else float(match[1])


def to_mask(cell: str) -> Maybe[int]:
    return int(cell, 16) if _MASK.match(cell) else ABSENT


def to_text(cell: str) -> Maybe[str]:
    text = cell.strip()
    return ABSENT if text.startswith("[") or text.lower() in _NOT_GIVEN else text


# Converts one row of `--query-gpu` to a Device: the table of query fields and readings.
#
# The header contains the unit (`memory.total [MiB]`), so the table has none. `smi_cells` keeps the unchanged
# cells. A field that is unknown to the driver or `[N/A]` leaves its reading absent. Drivers before 555 name
# `clocks_event_reasons` `clocks_throttle_reasons`; both are read.

_NUMBERS: Final[dict[str, str]] = {
    "memory.total": "memory_total_bytes",
    "memory.used": "memory_used_bytes",
    "memory.free": "memory_free_bytes",
    "memory.reserved": "memory_reserved_bytes",
    "utilization.gpu": "utilization_ratio",
    "utilization.memory": "memory_utilization_ratio",
    "utilization.encoder": "encoder_utilization_ratio",
    "utilization.decoder": "decoder_utilization_ratio",
    "utilization.jpeg": "jpeg_utilization_ratio",
    "utilization.ofa": "ofa_utilization_ratio",
    "encoder.stats.sessionCount": "encoder_sessions",
    "temperature.gpu": "temperature_celsius.gpu",
    "temperature.memory": "temperature_celsius.memory",
    "temperature.gpu.tlimit": "temperature_margin_celsius",
    "power.draw": "power_watts",
    "power.draw.average": "power_average_watts",
    "power.draw.instant": "power_instant_watts",
    "power.limit": "power_limit_watts.current",
    "enforced.power.limit": "power_limit_watts.enforced",
    "power.default_limit": "power_limit_watts.default",
    "power.min_limit": "power_limit_watts.min",
    "power.max_limit": "power_limit_watts.max",
    **{f"clocks.current.{clock}": f"clock_hertz.{clock}" for clock in ("graphics", "sm", "memory", "video")},
    **{f"clocks.max.{clock}": f"clock_max_hertz.{clock}" for clock in ("graphics", "sm", "memory")},
    **{f"clocks.applications.{clock}": f"clock_application_hertz.{clock}" for clock in ("graphics", "memory")},
    **{f"clocks_event_reasons_counters.{reason}": f"throttled_seconds.{reason}" for reason in THROTTLE_BITS},
    "fan.speed": "fan_speed_ratio.0",
    "pcie.link.gen.current": "pcie_link_generation",
    "pcie.link.gen.max": "pcie_link_generation_max",
    "pcie.link.width.current": "pcie_link_width",
    "pcie.link.width.max": "pcie_link_width_max",
    "retired_pages.single_bit_ecc.count": "retired_pages.single_bit",
    "retired_pages.double_bit.count": "retired_pages.double_bit",
    "remapped_rows.correctable": "remapped_rows.correctable",
    "remapped_rows.uncorrectable": "remapped_rows.uncorrectable",
    **{
        f"remapped_rows.histogram.{availability}": f"row_remap_banks.{availability}"
        for availability in ("max", "high", "partial", "low", "none")
    },
    **{
        f"ecc.errors.{error}.{lifetime}.total": f"ecc_errors.{error}.{lifetime}"
        for error in ("corrected", "uncorrected")
        for lifetime in ("volatile", "aggregate")
    },
    **{
        f"ecc.errors.{error}.{lifetime}.{location}": f"ecc_location_errors.{error}.{lifetime}.{location}"
        for error in ("corrected", "uncorrected")
        for lifetime in ("volatile", "aggregate")
        for location in (
            *("device_memory", "sram", "register_file"),  # "dram" is a second name for device_memory
            *("l1_cache", "l2_cache", "texture_memory", "cbu"),
        )
    },
}

_OTHERS: Final[dict[str, tuple[str, Callable[[str], Maybe[object]]]]] = {
    "name": ("model", to_text),
    "serial": ("serial", to_text),
    "compute_cap": ("compute_capability", to_text),
    "pci.bus_id": ("pci_bus_id", to_text),
    "vbios_version": ("vbios_version", to_text),
    "inforom.img": ("inforom_versions.image", to_text),
    "inforom.oem": ("inforom_versions.oem", to_text),
    "inforom.ecc": ("inforom_versions.ecc", to_text),
    "inforom.pwr": ("inforom_versions.power", to_text),
    "pstate": ("performance_state", to_performance_state),
    "clocks_event_reasons.active": ("throttle_mask", to_mask),
    "clocks_throttle_reasons.active": ("throttle_mask", to_mask),
    "ecc.mode.current": ("ecc_enabled", to_switch),
    "ecc.mode.pending": ("ecc_pending", to_switch),
    "retired_pages.pending": ("retired_pages_pending", to_count_or_switch),
    "remapped_rows.pending": ("row_remap_pending", to_count_or_switch),
    "remapped_rows.failure": ("row_remap_failed", to_count_or_switch),
    "compute_mode": ("compute_mode", to_compute_mode),
    "persistence_mode": ("persistence_mode", to_switch),
    "mig.mode.current": ("mig_enabled", to_switch),
    "mig.mode.pending": ("mig_pending", to_switch),
    "display_active": ("display_active", to_switch),
    "display_attached": ("display_attached", to_switch),
    "accounting.mode": ("accounting_enabled", to_switch),
}


def to_device(cells: Mapping[str, str], position: int) -> Device | None:
    """The GPU of one row; None if the row has no UUID. `position` is the row's number."""
    uuid = cells.get("uuid", "")
    if not uuid.startswith("GPU-"):
        return None
    index = cells.get("index", "")
    identity: dict[str, Any] = {
        "uuid": Uuid(uuid),
        "index": int(index) if index.isascii() and index.isdigit() and len(index) < 10 else position,
    }
    if GPU_IS_LOST in cells.values():
        return make_device(**identity, lost=True, smi_cells=dict(cells))
    return make_device(**identity, **_readings(cells), smi_cells=dict(cells))


def _readings(cells: Mapping[str, str]) -> dict[str, Any]:
    readings: dict[str, Any] = {}
    for header, cell in cells.items():
        field = field_of(header)
        if field in _NUMBERS:
            put(readings, _NUMBERS[field], to_number(cell, unit_of(header)))
        elif field in _OTHERS:
            path, read = _OTHERS[field]
            put(readings, path, read(cell))
    return readings


def put(readings: dict[str, Any], path: str, value: Maybe[object]) -> None:
    """Sets a reading such as `clock_hertz.sm`, unless the value is absent."""
    if value is ABSENT:
        return
    attribute, *keys = path.split(".")
    if not keys:
        readings[attribute] = value
    else:
        readings.setdefault(attribute, {})[keys[0] if len(keys) == 1 else tuple(keys)] = value
