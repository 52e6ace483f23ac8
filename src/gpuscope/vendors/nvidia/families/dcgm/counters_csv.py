"""Parses dcgm-exporter's counters file: the fields that become metrics or labels, with name, type and help.

Each line has `name, type, help`; `#` starts a comment. Names may be those of DCGM 4.6, older, or of
dcgm-exporter 1.x. Only the first row of a field is used; dcgm-exporter would print duplicate series, which
Prometheus refuses.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from gpuscope.base.errors import UsageError
from gpuscope.base.files import read_regular_text
from gpuscope.vendors.nvidia.dcgm_fields import GPU_LEVELS, dcgm_fields, ids_by_name
from gpuscope.vendors.nvidia.families.dcgm.table import EXPORTER_COUNTERS, SHIPPED_FILES, Counter, counter_id

# Parses CSV like Go's encoding/csv, which dcgm-exporter uses for counters files.
#
# Differences from Python's csv: a line that starts with `#` is a comment, a quoted field must start with the
# quote, and a quote inside an unquoted field is an error.


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


log = logging.getLogger("gpuscope.dcgm")

TYPES = ("gauge", "counter", "histogram", "summary", "label")


class CountersFile:
    """The counters of a file, read again when it changes. After a change with errors the old counters stay."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._version = self._read_version()
        self._counters = load_counters(path)

    def __call__(self) -> tuple[Counter, ...]:
        version = self._read_version()
        if version != self._version:
            self._version = version
            try:
                self._counters = load_counters(self._path)
                log.info("counters file %s changed: %d counters", self._path, len(self._counters))
            except UsageError as error:
                log.warning("%s; the previous counters stay in use", error)
        return self._counters

    def _read_version(self) -> tuple[int, int, int] | None:
        try:
            status = Path(self._path).stat()
        except (OSError, ValueError):
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def load_counters(path: str) -> tuple[Counter, ...]:
    """The file's counters. dcgm-exporter's own files are built in and need not exist."""
    file = Path(path)
    try:
        text = read_regular_text(file, errors="replace")
    except FileNotFoundError:
        if file.name in SHIPPED_FILES and file.parent == Path("/etc/dcgm-exporter"):
            return each_once(SHIPPED_FILES[file.name])
        raise UsageError(f"counters file {path} does not exist; set another with --counters") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"counters file {path} cannot be read: {reason}") from None
    return parse_counters(text, f"counters file {path}")


def parse_counters(text: str, origin: str) -> tuple[Counter, ...]:
    try:
        counters = [_to_counter(record, origin) for record in read_records(text)]
    except CsvError as error:
        raise UsageError(
            f"{origin}, line {error.line} {error}; put the whole field in quotes and double the quotes in it"
        ) from None
    return each_once(counters)


def _to_counter(record: CsvRecord, origin: str) -> Counter:
    where = f"{origin}, line {record.line}"
    fields = tuple(field.strip(" ") for field in record.fields)
    if len(fields) != 3:
        raise UsageError(
            f"{where}: {','.join(record.fields)!r} has {len(fields)} fields, expected 3: name, type, help"
            + (" (put a help text with commas in quotes)" if len(fields) > 3 else "")
        )
    name, kind, help_text = fields
    field_id = counter_id(name)
    if field_id is None:
        raise UsageError(f"{where}: {name!r} is not a DCGM field{_perhaps(name)}; `gpuscope fields` lists them")
    if kind not in TYPES or (kind == "label" and name in EXPORTER_COUNTERS):
        raise UsageError(f"{where}: {kind!r} is not a metric type; use one of {', '.join(TYPES)}")
    return Counter(field_id, name, kind, help_text)


def _perhaps(name: str) -> str:
    near = get_close_matches(name, [*ids_by_name(), *EXPORTER_COUNTERS], 1, 0.8)
    return f" (did you mean {near[0]}?)" if near else ""


def each_once(counters: tuple[Counter, ...] | list[Counter]) -> tuple[Counter, ...]:
    """The first row of each field in output order, without fields that cannot be exported."""
    first: dict[int, Counter] = {}
    for counter in counters:
        first.setdefault(counter.id, counter)
    return tuple(sorted(counter for counter in first.values() if _can_be_exported(counter)))


def _can_be_exported(counter: Counter) -> bool:
    field = dcgm_fields().get(counter.id)
    if field is None or counter.is_exporters_own:
        return True
    if field.level not in GPU_LEVELS:
        log.warning("%s is not a field of GPUs and is not exported", counter.name)
        return False
    if field.kind == "b" or (field.kind == "s" and not counter.is_label):
        # dcgm-exporter prints the text in place of a number, which makes the whole scrape fail.
        hint = "" if field.kind == "b" else "; its type should be label"
        log.warning("%s is not a number and is not exported%s", counter.name, hint)
        return False
    return True
