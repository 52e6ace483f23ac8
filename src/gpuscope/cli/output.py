"""Output of the commands: tables, colour and log lines. Escaping is `terminal.safe_text`'s.

Log lines go through `LineFormatter`.
"""

from __future__ import annotations

import argparse
import logging
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, TextIO

from gpuscope.cli.terminal.spans import (
    bytes_text,
    cell_width,
    csv_cell,
    duration_text,
    escape_controls,
    printable,
)

if TYPE_CHECKING:
    from gpuscope.serve.render import RenderedFile

__all__ = [
    "BOLD", "DIM", "GREEN", "RED", "YELLOW", "LineFormatter", "bytes_text", "csv_cell", "duration_text",
    "escape_controls", "fit_lines", "paint", "printable", "render_table", "wants_colour",
]  # fmt: skip

BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"
MIN_TEXT_WIDTH = 20


def wants_colour(stream: TextIO = sys.stdout) -> bool:
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or stream.isatty()


def paint(text: str, code: str, colour: bool) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if colour else text


class LineFormatter(logging.Formatter):
    """Escapes messages, which may contain client text: one record is one line, except for tracebacks."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - its name in logging
        record.message = escape_controls(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # noqa: N802
        return escape_controls(super().formatException(ei), keep="\n")


def fit_lines(text: str, indent: int, stream: TextIO | None = None) -> list[str]:
    """The text in lines that fit the terminal behind `indent` columns; one line if it is not a terminal."""
    if not (stream or sys.stdout).isatty():
        return [text]
    width = max(MIN_TEXT_WIDTH, shutil.get_terminal_size().columns - indent)
    return wrap(text, width, break_on_hyphens=False) or [""]


def render_table(head: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> list[str]:
    """Lines of a table with aligned columns, head first; columns named in `right` are right-aligned."""
    table = [list(head), *(list(row) for row in rows)]
    widths = [max(cell_width(row[i]) for row in table) for i in range(len(head))]
    lines = []
    for row in table:
        cells = []
        for title, cell, width in zip(head, row, widths, strict=True):
            padding = " " * (width - cell_width(cell))
            cells.append(padding + cell if title in right else cell + padding)
        lines.append("  ".join(cells).rstrip())
    return lines


# The flags --out and --force of `gpuscope render`, and the writing of its files.


def add_out(parser: argparse.ArgumentParser, *, required: bool) -> None:
    parser.add_argument(
        "--out", metavar="DIR", type=Path, required=required, help="folder to write the files to"
    )
    parser.add_argument("--force", action="store_true", help="replace files that have other content")


def write_rendered(args: argparse.Namespace, files: Sequence[RenderedFile]) -> None:
    """Writes to --out and prints the paths."""
    from gpuscope.serve.render import write_files

    for file in write_files(args.out, files, force=args.force):
        print(f"{file.path} (kept as it was)" if file.is_kept else file.path)
