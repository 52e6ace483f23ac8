"""Styled lines: a line is a list of spans, a span is text and the name of a style.

`to_ansi` gives the line for a terminal (16 colours, as every terminal has them) or without colour. Bars and
sparklines have an ASCII form for terminals without Unicode.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from gpuscope.cli.terminal.safe_text import ELLIPSIS, cell_width, fit


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
