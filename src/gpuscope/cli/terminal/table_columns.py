"""A table that fits a width: columns shrink, and the least important ones are left out.

`lay_out` decides once for all rows which columns are shown and how wide; `draw_row` then draws any row. A
column whose cells are all empty takes no space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuscope.cli.terminal.safe_text import cell_width, fit
from gpuscope.cli.terminal.spans import Line, Span, Style

R = TypeVar("R")
GAP = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Column(Generic[R]):
    """`rank` 0 is always shown; of the others, the highest rank is left out first."""

    title: str
    rank: int
    text: Callable[[R], str] | None = None
    """The cell's text; None for a column that draws by width only (a bar)."""
    draw: Callable[[R, int], Span] | None = None
    """The cell in a given width; without it, `text` in `style`."""
    style: Callable[[R], Style] | None = None
    least: int = 0
    """A column that may shrink does not become narrower than this; 0: it does not shrink."""
    most: int = 24
    grows: bool = False
    """Takes space that is left over, up to `most`."""
    right: bool = False


Layout = list[tuple[Column[R], int]]


def lay_out(columns: Sequence[Column[R]], rows: Sequence[R], width: int) -> Layout[R]:
    wanted = [(column, _natural_width(column, rows)) for column in columns]
    kept = [(column, natural) for column, natural in wanted if natural]
    while len(kept) > 1 and _total(_smallest(column, natural) for column, natural in kept) > width:
        least_important = max(kept, key=lambda pair: pair[0].rank)
        if least_important[0].rank == 0:
            break
        kept.remove(least_important)
    return _share_out(kept, width)


def _natural_width(column: Column[R], rows: Sequence[R]) -> int:
    if column.text is None:
        return column.least if rows else 0
    widest = max((cell_width(column.text(row)) for row in rows), default=0)
    return min(column.most, max(widest, cell_width(column.title))) if widest else 0


def _smallest(column: Column[R], natural: int) -> int:
    return min(natural, column.least) if column.least else natural


def _total(widths: Iterable[int]) -> int:
    listed = list(widths)
    return sum(listed) + GAP * (len(listed) - 1)


def _share_out(kept: Layout[R], width: int) -> Layout[R]:
    widths = [_smallest(column, natural) for column, natural in kept]
    left = width - _total(widths)
    # First every column gets the width of its text, then bars and the like grow.
    for i, (_, natural) in enumerate(kept):
        more = min(left, natural - widths[i])
        widths[i] += max(0, more)
        left -= max(0, more)
    growing = [i for i, (column, _) in enumerate(kept) if column.grows and column.text is None]
    while left > 0 and (able := [i for i in growing if widths[i] < kept[i][0].most]):
        for i in able[:left]:
            widths[i] += 1
        left -= len(able[:left])
    return [(column, each) for (column, _), each in zip(kept, widths, strict=True)]


def draw_head(layout: Layout[R]) -> Line:
    cells = [fit(column.title, width, right=column.right) for column, width in layout]
    return [Span((" " * GAP).join(cells), Style.DIM)]


def draw_row(layout: Layout[R], row: R) -> Line:
    line: Line = []
    for column, width in layout:
        if line:
            line.append(Span(" " * GAP))
        if column.draw is not None:
            line.append(column.draw(row, width))
        elif column.text is not None:
            style = column.style(row) if column.style else Style.PLAIN
            line.append(Span(fit(column.text(row), width, right=column.right), style))
    return line
