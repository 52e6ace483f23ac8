"""dcgm-exporter's counters file: which fields become metrics or labels, under which name, type and help.

Three fields a line, `name, type, help`, with `#` comments. Names may be of DCGM 4.6, older, or of dcgm-exporter
1.x. The first row of a field counts; dcgm-exporter would print its series twice, which Prometheus refuses.
"""

from __future__ import annotations

import logging
from difflib import get_close_matches
from pathlib import Path

from gpuscope.errors import UsageError
from gpuscope.metrics.families.dcgm.csv_records import CsvError, Record, read_records
from gpuscope.metrics.families.dcgm.table import EXPORTER_COUNTERS, SHIPPED_FILES, Counter, counter_id
from gpuscope.readings.dcgm_fields import GPU_LEVELS, dcgm_fields
from gpuscope.readings.dcgm_names import ids_by_name

log = logging.getLogger("gpuscope.dcgm")

TYPES = ("gauge", "counter", "histogram", "summary", "label")


class CountersFile:
    """The counters of a file, read again when it changes; a change that is wrong is said and not followed."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._version = self._look()
        self._counters = load_counters(path)

    def __call__(self) -> tuple[Counter, ...]:
        version = self._look()
        if version != self._version:
            self._version = version
            try:
                self._counters = load_counters(self._path)
                log.info("counters file %s changed: %d counters", self._path, len(self._counters))
            except UsageError as error:
                log.warning("%s; going on with the counters from before", error)
        return self._counters

    def _look(self) -> tuple[int, int, int] | None:
        try:
            status = Path(self._path).stat()
        except (OSError, ValueError):
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


def load_counters(path: str) -> tuple[Counter, ...]:
    """The file's counters; a file that dcgm-exporter would have installed is known without being there."""
    file = Path(path)
    try:
        text = file.read_text("utf-8", "replace")
    except FileNotFoundError:
        if file.name in SHIPPED_FILES and file.parent == Path("/etc/dcgm-exporter"):
            return each_once(SHIPPED_FILES[file.name])
        raise UsageError(f"counters file {path} is not there; give another with --counters") from None
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


def _to_counter(record: Record, origin: str) -> Counter:
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
        raise UsageError(f"{where}: {name!r} is no DCGM field{_perhaps(name)}; `gpuscope fields` lists them")
    if kind not in TYPES or (kind == "label" and name in EXPORTER_COUNTERS):
        raise UsageError(f"{where}: {kind!r} is not a metric type; write one of {', '.join(TYPES)}")
    return Counter(field_id, name, kind, help_text)


def _perhaps(name: str) -> str:
    near = get_close_matches(name, [*ids_by_name(), *EXPORTER_COUNTERS], 1, 0.8)
    return f" (did you mean {near[0]}?)" if near else ""


def each_once(counters: tuple[Counter, ...] | list[Counter]) -> tuple[Counter, ...]:
    """The first row of each field, in the order of the output, without those that could never be numbers."""
    first: dict[int, Counter] = {}
    for counter in counters:
        first.setdefault(counter.id, counter)
    return tuple(sorted(counter for counter in first.values() if _can_be_exported(counter)))


def _can_be_exported(counter: Counter) -> bool:
    field = dcgm_fields().get(counter.id)
    if field is None or counter.is_exporters_own:
        return True
    if field.level not in GPU_LEVELS:
        log.warning("%s is not about GPUs and is not exported", counter.name)
        return False
    if field.kind == "b" or (field.kind == "s" and not counter.is_label):
        # dcgm-exporter prints the text where the number belongs, and the whole scrape fails.
        hint = "" if field.kind == "b" else "; its type should be label"
        log.warning("%s is not a number and is not exported%s", counter.name, hint)
        return False
    return True
