"""`dcgmi dmon` tables as each DCGM version prints them, from values to text: the parser's other half.

Written from the recorded layouts: up to 2.3 cells are right-aligned and push the row when they are too long;
from 2.4 on they are left-aligned and cut. `None` is what DCGM prints as N/A.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Value = int | float | str | None


@dataclass(frozen=True)
class Column:
    short: str
    width: int = 10
    unit: str = ""


def text_of(value: Value) -> str:
    if value is None:
        return "N/A"
    return f"{value:.3f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class LeftAligned:
    first: int  # width of the entity column

    def header(self, columns: Sequence[Column]) -> list[str]:
        names = "".join(self._cell(column.short, column) for column in columns)
        units = "".join(self._cell(column.unit[:3], column) for column in columns)
        return [f"{'#Entity':<{self.first}}{names}", f"{'ID':<{self.first}}{units}"]

    def row(self, entity: str, columns: Sequence[Column], values: Sequence[Value]) -> str:
        cells = (self._cell(text_of(value), column) for value, column in zip(values, columns, strict=True))
        return f"{entity:<{self.first}}" + "".join(cells)

    def _cell(self, text: str, column: Column) -> str:
        room = column.width + 6
        if len(text) > room:
            text = text[: room - 3] + "..."
        return f"{text:<{room + 2}}"


@dataclass(frozen=True)
class RightAligned:
    bare: bool = False  # DCGM 1.x prints only the GPU's number

    def header(self, columns: Sequence[Column]) -> list[str]:
        names = "".join(f"{column.short:>{column.width + 2}}" for column in columns)
        units = "".join(f"{column.unit:>{column.width + 2}}" for column in columns)
        return [f"# Entity{names}", f"      Id{units}"]

    def row(self, entity: str, columns: Sequence[Column], values: Sequence[Value]) -> str:
        kind, number = entity.rsplit(" ", 1)
        text = f"{number:>8}" if self.bare else f"{kind + ' ':>8}{number}"
        for value, column in zip(values, columns, strict=True):
            cell, room = text_of(value), column.width + 2
            text += (" " if len(cell) >= room else "") + f"{cell:>{room}}"
        return text


Layout = LeftAligned | RightAligned

LAYOUTS: Mapping[str, Layout] = {
    "1.x": RightAligned(bare=True),
    "2.1": RightAligned(),
    "3.3.9": LeftAligned(10),
    "4.4": LeftAligned(11),
    "4.6": LeftAligned(16),
}
