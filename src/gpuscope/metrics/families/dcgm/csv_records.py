"""CSV as Go's encoding/csv reads it, because that is what a counters file was written for.

Differs from Python's csv where it matters: a `#` at the very start of a line makes it a comment, a quote counts
only at the very start of a field, and a quote anywhere else in an unquoted field is an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


class CsvError(ValueError):
    """`line` is where the trouble is, counted from 1."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True, slots=True)
class Record:
    line: int  # on which it starts, from 1
    fields: tuple[str, ...]


def read_records(text: str) -> Iterator[Record]:
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
        yield Record(started, tuple(fields))


def _plain_field(text: str, number: int) -> tuple[str, str | None]:
    value, comma, rest = text.partition(",")
    if '"' in value:
        raise CsvError(number, 'has a " in a field that does not start with one')
    return value, rest if comma else None


def _quoted_field(text: str, lines: list[str], number: int, started: int) -> tuple[str, str | None, int]:
    """The field whose opening quote is gone, what follows its comma, and the number of the line it ended on."""
    value = ""
    while True:
        inside, quote, rest = text.partition('"')
        value += inside
        if not quote:  # the field goes on in the next line
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
            raise CsvError(number, 'has text behind a closing "')
