"""Parses the table of `dcgmi dmon`. Input: lines; output: one row per entity, cells by the offsets of the
header.

Columns map to the requested ids by position, because short names repeat and change between versions. Cells
without a value (N/A, blank markers, a cell truncated to `…...`) are left out. A line that does not fit its
header exactly is rejected: DCGM 3 prints nothing for a missing cell, so every later number would belong to
another field.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from gpuscope.base.errors import SourceError
from gpuscope.vendors.nvidia.dcgm_fields import is_blank, kind_of

Value = int | float | str

MAX_SHIFT = 512  # limits the search for ways to split a row

_WORD = re.compile(r"\S+")
_LOOKS_LIKE_A_ROW = re.compile(r"\s*(?:[A-Za-z][A-Za-z-]*(?: Core)?\s+)?\d")
_ENTITY = re.compile(r"\s*(?:([A-Za-z][A-Za-z-]*(?: Core)?)\s+)?(\d+)(?= |\Z)")
_WHOLE = re.compile(r"-?\d{1,20}\Z")
_DECIMAL = re.compile(r"-?\d{1,40}\.\d{1,20}\Z")


@dataclass(frozen=True, slots=True)
class DmonEntity:
    """`kind` is dmon's word: GPU, GPU-I, GPU-CI, …; DCGM 1.x prints only a number, which is a GPU."""

    kind: str
    id: int


@dataclass(frozen=True, slots=True)
class DmonRow:
    entity: DmonEntity
    values: Mapping[int, Value]  # by field id


class DmonTable:
    """Parses one stream. `rejected` counts lines that look like rows but do not fit the header."""

    def __init__(self, field_ids: Sequence[int]) -> None:
        self._ids = tuple(field_ids)
        self._kinds = tuple(kind_of(field_id) for field_id in self._ids)
        self._layout: _LeftAligned | _RightAligned | None = None
        self.rejected = 0

    def feed(self, line: str) -> DmonRow | None:
        """The row in this line; None for headers, blank lines, messages and rejected lines."""
        line = line.rstrip("\r\n")
        if line.startswith("#"):
            self._layout = self._read_header(line)
            return None
        if self._layout is None or not _LOOKS_LIKE_A_ROW.match(line):
            return None  # the line of units, a blank line, `dmon was stopped …`
        split = self._layout.split(line)
        if split is None:
            self.rejected += 1
            return None
        entity, cells = split
        values = {
            field_id: value
            for field_id, kind, cell in zip(self._ids, self._kinds, cells, strict=True)
            if (value := _to_value(cell, kind)) is not None
        }
        return DmonRow(DmonEntity(entity[1] or "GPU", int(entity[2])), values)

    def _read_header(self, line: str) -> _LeftAligned | _RightAligned:
        right_aligned = line.startswith("# ")  # `# Entity` up to DCGM 2.3, `#Entity` after
        words = list(_WORD.finditer(line))[1 if right_aligned else 0 :]
        if len(words) != len(self._ids) + 1:
            raise SourceError(f"dcgmi dmon printed {len(words) - 1} columns for {len(self._ids)} fields")
        if right_aligned:
            widths = [end.end() - before.end() for before, end in pairwise(words)]
            return _RightAligned(tuple(widths), self._kinds)
        starts = [word.start() for word in words[1:]]
        return _LeftAligned(tuple(pairwise([*starts, len(line)])), len(line))


Split = tuple[re.Match[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class _LeftAligned:
    """DCGM 2.4 and newer: a cell starts at its header's column, is padded, and is truncated if too long."""

    spans: tuple[tuple[int, int], ...]
    length: int

    def split(self, line: str) -> Split | None:
        entity = _ENTITY.fullmatch(line[: self.spans[0][0]].rstrip())
        if len(line) != self.length or entity is None:
            return None  # also `GPU 0 LINK 1`, which is not GPU 0
        cells = []
        for start, end in self.spans:
            cell = line[start:end].rstrip()
            # Every column has two spaces of padding, so this is the maximum length of a cell.
            is_cut = cell.endswith("...") and len(cell) >= end - start - 2
            cells.append("" if is_cut else cell.lstrip())
        return entity, cells


@dataclass(frozen=True, slots=True)
class _RightAligned:
    """DCGM 1.x to 2.3: a cell ends at its header's column, shifted by the entity's number and longer cells.

    A value as wide as its column gets one space before it and shifts all following cells. Texts contain spaces
    too, so a shifted row can be split in several ways; it is accepted only if exactly one way fits.
    """

    widths: tuple[int, ...]
    kinds: tuple[str, ...]

    def split(self, line: str) -> Split | None:
        entity = _ENTITY.match(line)
        if entity is None:
            return None
        pushed = len(line) - entity.end() - sum(self.widths)
        if not 0 <= pushed <= MAX_SHIFT:
            return None
        ways = self._ways(line, 0, entity.end(), pushed, {})
        return (entity, ways[0]) if len(ways) == 1 else None

    def _ways(
        self, line: str, column: int, at: int, pushed: int, known: dict[tuple[int, int], list[tuple[str, ...]]]
    ) -> list[tuple[str, ...]]:
        """At most two ways to split the rest of the line, which has `pushed` characters too many."""
        if column == len(self.widths):
            return [()] if pushed == 0 else []
        if (column, at) not in known:
            ways: list[tuple[str, ...]] = []
            for push in range(pushed + 1):
                cell = line[at : at + self.widths[column] + push]
                if len(ways) < 2 and self._is_cell(cell, column, push):
                    rest = self._ways(line, column + 1, at + len(cell), pushed - push, known)
                    ways += [(cell.strip(), *cells) for cells in rest]
            known[column, at] = ways[:2]
        return known[column, at]

    def _is_cell(self, cell: str, column: int, push: int) -> bool:
        text = cell.strip()
        if not text:
            return push == 0
        if cell[0] != " " or cell[-1] == " " or (push and cell[1] == " "):
            return False
        return self.kinds[column] == "s" or " " not in text


def _to_value(cell: str, kind: str) -> Value | None:
    if kind == "b" or cell in ("", "N/A"):
        return None
    value: Value
    if kind == "s":
        value = cell
    elif _WHOLE.match(cell):
        value = float(cell) if kind == "d" else int(cell)
    elif _DECIMAL.match(cell):
        value = float(cell)
    else:
        return None
    return None if is_blank(value) else value
