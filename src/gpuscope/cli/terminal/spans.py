"""Styled lines: a line is a list of spans, a span is text and the name of a style.

`to_ansi` gives the line for a terminal (16 colours, as every terminal has them) or without colour. Bars and
sparklines have an ASCII form for terminals without Unicode.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Generic, NamedTuple, TypeVar

# Text for a terminal: escapes untrusted text, measures width in cells, and formats numbers.
#
# Text from a server, a scrape target or a process goes through `printable` (one line, shortened),
# `escape_controls` (complete) or `csv_cell` before it is printed.

ELLIPSIS = "…"


def printable(text: str, width: int = 200) -> str:
    """One line of safe text: control and direction characters become `?`; long text is shortened."""
    safe = text if text.isprintable() else "".join("?" if is_control(c) else c for c in text)
    return safe if len(safe) <= width else safe[: width - 1] + ELLIPSIS


def escape_controls(text: str, keep: str = "") -> str:
    """The complete text with control and direction characters as `\\x1b`, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if c not in keep and is_control(c) else c for c in text)


def csv_cell(value: object) -> str:
    """A CSV cell that neither a spreadsheet nor a terminal interprets (OWASP: CSV injection)."""
    text = escape_controls(str(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def cell_width(text: str) -> int:
    """Cells of a terminal that the text takes: East Asian wide characters take two, combining ones none."""
    if text.isascii():
        return len(text)
    return sum(_character_width(c) for c in text)


def _character_width(c: str) -> int:
    if unicodedata.combining(c):
        return 0
    return 2 if unicodedata.east_asian_width(c) in "WF" else 1


def fit(text: str, width: int, *, right: bool = False) -> str:
    """Exactly `width` cells: shortened with `…`, or padded with spaces (before the text if `right`)."""
    taken = cell_width(text)
    if taken > width:
        text, taken = _shorten(text, width)
    padding = " " * (width - taken)
    return padding + text if right else text + padding


def _shorten(text: str, width: int) -> tuple[str, int]:
    if width <= 0:
        return "", 0
    kept, taken = [], 0
    for c in text:
        cells = _character_width(c)
        if taken + cells > width - 1:
            break
        kept.append(c)
        taken += cells
    return "".join(kept) + ELLIPSIS, taken + 1


def bytes_text(count: float) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.1f} {unit}" if count < 100 * size else f"{count / size:.0f} {unit}"
    return f"{count:.0f} B"


def duration_text(seconds: float) -> str:
    """The two largest units: `3d 4h`, `12m 5s`."""
    whole = max(0, int(seconds))
    parts = [(whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "m"), (whole % 60, "s")]
    first = next((i for i, (count, _) in enumerate(parts) if count), 3)
    return " ".join(f"{count}{unit}" for count, unit in parts[first : first + 2] if count or first == 3)


def short_duration(seconds: float) -> str:
    """At most five cells: `45s`, `12m`, `3h20`, `12d`."""
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m"
    if whole < 86400:
        return f"{whole // 3600}h{whole // 60 % 60:02d}"
    return f"{whole // 86400}d"


def short_bytes(count: float) -> str:
    """At most five cells: `812M`, `61.2G`, `1.5T`."""
    for unit, size in (("T", 2**40), ("G", 2**30), ("M", 2**20), ("K", 2**10)):
        if count >= size:
            number = count / size
            return f"{number:.1f}{unit}" if number < 99.95 and unit in "GT" else f"{number:.0f}{unit}"
    return f"{count:.0f}B"


class Style(StrEnum):
    PLAIN = ""
    BOLD = "bold"
    DIM = "dim"
    RED = "red"
    GREEN = "green"
    YELLOW = "yellow"
    MAGENTA = "magenta"
    CYAN = "cyan"
    REVERSE = "reverse"


_ANSI: Final = {
    Style.BOLD: "1", Style.DIM: "2", Style.RED: "31", Style.GREEN: "32", Style.YELLOW: "33",
    Style.MAGENTA: "35", Style.CYAN: "36", Style.REVERSE: "7",
}  # fmt: skip


class Span(NamedTuple):
    text: str
    style: Style = Style.PLAIN


Line = list[Span]


@dataclass(frozen=True, slots=True)
class Look:
    """What the terminal can show."""

    width: int = 80
    colour: bool = True
    unicode: bool = True


def to_ansi(line: Iterable[Span], colour: bool) -> str:
    return "".join(
        f"\x1b[{_ANSI[style]}m{text}\x1b[0m" if colour and style and text else text for text, style in line
    ).rstrip()


def to_text(line: Iterable[Span]) -> str:
    return "".join(span.text for span in line)


def fit_line(line: Iterable[Span], width: int) -> Line:
    """At most `width` cells."""
    fitted: Line = []
    left = width
    for span in line:
        taken = cell_width(span.text)
        if taken > left:
            fitted.append(Span(fit(span.text, left), span.style))
            break
        fitted.append(span)
        left -= taken
    return fitted


def to_ascii(line: Iterable[Span]) -> Line:
    """For terminals without Unicode; other characters become `?`."""
    return [Span(ascii_text(span.text), span.style) for span in line]


def ascii_text(text: str) -> str:
    if text.isascii():
        return text
    shown = text.replace(ELLIPSIS, "~").replace("°", " ").replace("→", ">").replace("–", "-")
    return "".join(c if c.isascii() else "?" * cell_width(c) for c in shown)


_EIGHTHS: Final = " ▏▎▍▌▋▊▉█"
_LEVELS: Final = "▁▂▃▄▅▆▇█"
_ASCII_LEVELS: Final = "_.-=+*%#"


def bar(ratio: float | None, width: int, unicode: bool) -> str:
    """A bar of exactly `width` cells; an absent number has dots, so that it is not taken for 0."""
    if width <= 0:
        return ""
    if ratio is None:
        return ("·" if unicode else ".") * width
    share = min(1.0, max(0.0, ratio)) * width
    if not unicode:
        full = round(share)
        return "#" * full + "-" * (width - full)
    eighths = round(share * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width)


def sparkline(ratios: Iterable[float | None], width: int, unicode: bool) -> str:
    """The newest `width` values, newest last; a gap is a space."""
    if width <= 0:
        return ""
    levels = _LEVELS if unicode else _ASCII_LEVELS
    shown = list(ratios)[-width:]
    text = "".join(
        " " if ratio is None else levels[min(7, int(min(1.0, max(0.0, ratio)) * 8))] for ratio in shown
    )
    return text.rjust(width)


# A table that fits a width: columns shrink, and the least important ones are left out.
#
# `lay_out` decides once for all rows which columns are shown and how wide; `draw_row` then draws any row. A
# column whose cells are all empty takes no space.

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
