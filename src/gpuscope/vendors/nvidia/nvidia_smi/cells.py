"""Converts a cell to a number in base units, a switch or a text; ABSENT if it has no value.

Stricter than nvidia_gpu_exporter, whose metrics the `nvidia_smi` family reproduces: a cell is a number only if
it consists of a number and the unit in its header. `[N/A]`, `[Not Supported]`, `[Insufficient Permissions]`,
`[Unknown Error]`, `[GPU is lost]`, `ERR!` and all other texts are absent.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from gpuscope.model.readings import ABSENT, Maybe

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
