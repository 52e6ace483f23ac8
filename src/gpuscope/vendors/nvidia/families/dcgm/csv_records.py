"""Parses CSV like Go's encoding/csv, which dcgm-exporter uses for counters files.

Differences from Python's csv: a line that starts with `#` is a comment, a quoted field must start with the
quote, and a quote inside an unquoted field is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


class CsvError(ValueError):
    """`line` is the line with the error, counted from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class CsvRecord:
    line: int  # the first line, counted from 1
    fields: tuple[str, ...]


def read_records(text: str) -> Iterator[CsvRecord]:
    lines = text.replace("\r\n", "\n").split("\n")
    number = 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if not line or line.startswith("#"):
            continue
        started = number
        fields: list[str] = []
        rest: str | None = line
        while rest is not None:
            if rest.startswith('"'):
                value, rest, number = _quoted_field(rest[1:], lines, number, started)
            else:
                value, rest = _plain_field(rest, number)
            fields.append(value)
        yield CsvRecord(started, tuple(fields))


def _plain_field(text: str, number: int) -> tuple[str, str | None]:
    value, comma, rest = text.partition(",")
    if '"' in value:
        raise CsvError(number, 'has a " in a field that does not start with one')
    return value, rest if comma else None


def _quoted_field(text: str, lines: list[str], number: int, started: int) -> tuple[str, str | None, int]:
    """The field after its opening quote, the text after its comma, and the number of its last line."""
    value = ""
    while True:
        inside, quote, rest = text.partition('"')
        value += inside
        if not quote:  # the field continues in the next line
            if number >= len(lines):
                raise CsvError(started, 'has a " that is never closed')
            value += "\n"
            text = lines[number]
            number += 1
        elif rest.startswith('"'):
            value += '"'
            text = rest[1:]
        elif rest == "":
            return value, None, number
        elif rest.startswith(","):
            return value, rest[1:], number
        else:
            raise CsvError(number, 'has text after a closing "')
