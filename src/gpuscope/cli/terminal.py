"""Terminal output: tables, colour, and escaping of untrusted text.

Text from a server, a scrape target or a process goes through `printable` (one line, shortened),
`escape_controls` (complete) or `csv_cell` before it is printed; log lines go through `LineFormatter`.
"""

from __future__ import annotations

import logging
import os
import sys
import unicodedata
from collections.abc import Sequence
from typing import Any, TextIO

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


def wants_colour(stream: TextIO = sys.stdout) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


def printable(text: str, width: int = 200) -> str:
    """One line of safe text: control and direction characters become `?`; long text is shortened."""
    safe = text if text.isprintable() else "".join("?" if _is_control(c) else c for c in text)
    return safe if len(safe) <= width else safe[: width - 1] + "…"


def escape_controls(text: str, keep: str = "") -> str:
    """The complete text with control and direction characters as `\\x1b`, except those in `keep`."""
    if text.isprintable():
        return text
    return "".join(ascii(c)[1:-1] if c not in keep and _is_control(c) else c for c in text)


def csv_cell(value: object) -> str:
    """A CSV cell that neither a spreadsheet nor a terminal interprets (OWASP: CSV injection)."""
    text = escape_controls(str(value))
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) and not _is_number(text) else text


def _is_control(c: str) -> bool:
    return unicodedata.category(c) in ("Cc", "Cf", "Cs", "Zl", "Zp")


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class LineFormatter(logging.Formatter):
    """Escapes messages, which may contain client text: one record is one line, except for tracebacks."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in logging
        record.message = escape_controls(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return escape_controls(super().formatException(ei), keep="\n")


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Lines of a table with aligned columns, head first; columns named in `right` are right-aligned."""
    table = [list(head), *(list(row) for row in rows)]
    widths = [max(_width(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        cells = []
        for title, cell, width in zip(head, row, widths, strict=True):
            padding = " " * (width - _width(cell))
            cells.append(padding + cell if title in right else cell + padding)
        lines.append("  ".join(cells).rstrip())
    return lines


def _width(text: str) -> int:
    return sum(
        2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in text if not unicodedata.combining(c)
    )


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
