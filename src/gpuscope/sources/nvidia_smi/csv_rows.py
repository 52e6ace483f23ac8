"""The CSV that nvidia-smi prints: a header line, then one line per GPU or process.

Nothing is quoted and cells are not escaped, so a line with more or fewer cells than the header has no
defined meaning: that line is lost, the others are not. Lines before the header (a login banner of ssh) are
skipped. A column whose header stands twice belongs to nobody and is left out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rows:
    rows: tuple[dict[str, str], ...]  # header -> cell
    lost: int = 0  # lines that did not fit the header


def field_of(header: str) -> str:
    """`memory.total [MiB]` is the answer to the query field `memory.total`."""
    return header.partition(" [")[0]


def unit_of(header: str) -> str:
    _, bracket, unit = header.partition(" [")
    return unit.removesuffix("]") if bracket else ""


def split_line(line: str) -> list[str]:
    return [cell.strip() for cell in line.split(",")]


def parse_rows(text: str, key_field: str, *, cut_short: bool = False) -> Rows:
    """Rows of the table whose header has `key_field`. `cut_short`: the last line may be half a line."""
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
    rows, lost = [], 0
    for line in lines:
        if not line.strip():
            continue
        cells = split_line(line)
        if len(cells) != len(headers):
            lost += 1
            continue
        rows.append({h: c for h, c in zip(headers, cells, strict=True) if h not in repeated})
    return Rows(tuple(rows), lost)
