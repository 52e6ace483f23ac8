"""Parses nvidia-smi's CSV: a header line, then one line per GPU or process.

Cells are neither quoted nor escaped, so a line whose number of cells differs from the header is dropped; other
lines are kept. Lines before the header (a login banner of ssh) are skipped. A column whose header occurs twice
is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


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
