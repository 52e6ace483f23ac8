"""Parses scrapes: Prometheus text 0.0.4 and 1.0.0, and OpenMetrics 1.0.

Most lines of a scrape are series of the previous scrape with a new value. `SeriesCache` maps the raw text of a
series to its id, so that such a line takes one split, one lookup and one float. Only text that was fully parsed
before is looked up; other lines take the slow, strict path. An error refuses the whole scrape, as in
Prometheus. A text is parsed in pieces, so that no single call blocks other threads and limits are checked
before memory is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import compress
from operator import length_hint, ne

import cramjam
import numpy as np
from numpy.typing import NDArray

from gpuscope.model.exposition.series_text import (
    LimitError,
    Pairs,
    ParseError,
    TextLimits,
    normalise_numbers,
    openmetrics_milliseconds,
    parse_comment,
    parse_line,
    parse_number,
    parse_numbers,
    text_milliseconds,
)

__all__ = [
    "Exposition",
    "LimitError",
    "Metadata",
    "Pairs",
    "ParseError",
    "SeriesCache",
    "TextLimits",
    "parse_once",
]

Resolve = Callable[[Pairs], int | None]
"""Maps labels (`__name__` first) to a series id; None for a series that is dropped."""
METADATA_ENTRY_BYTES = 100
"""Added to the length of each metric's texts."""
PIECE_BYTES = 256 << 10
"""Splitting this much text into lines blocks other threads for 2 to 7 ms."""
MAX_SHARED_CHARACTERS = 500
"""Of a comment that is kept for all targets: exporters of one kind have the same comments."""
_UNKNOWN = -1
_BLANK = ("", " ", "\t")


@dataclass(frozen=True, slots=True)
class Metadata:
    type: str = "unknown"
    help: str = ""
    unit: str = ""


_shared_comment = lru_cache(4096)(parse_comment)
_shared_metadata = lru_cache(4096)(Metadata)


@dataclass(slots=True)
class Exposition:
    """A parsed scrape: parallel lists of series ids and values; samples with their own time are in `timed`."""

    ids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    timed: list[tuple[int, int, float]] = field(default_factory=list)  # (id, milliseconds, value)
    metadata: dict[str, Metadata] = field(default_factory=dict)
    metadata_bytes: int = 0
    metadata_cut: bool = False  # metadata above the limit was left out
    samples: int = 0  # lines with a value, including dropped series


class SeriesCache:
    """The series ids of one target by raw text. Not thread-safe."""

    def __init__(self, resolve: Resolve, *, keep_empty: bool = False, limits: TextLimits | None = None) -> None:
        """`keep_empty` keeps labels with an empty value: with honor_labels they remove the target's label."""
        self._resolve = resolve
        self._keep_empty = keep_empty
        self._limits = limits or TextLimits()
        self._known: dict[str, int | None] = {}
        self._known_bytes = 0
        self._metadata: dict[str, dict[str, str]] = {}
        self._openmetrics = False
        self._type = "unknown"
        self._ended = False

    def forget_all_but(self, series: int, text_bytes: int) -> None:
        """Clears the cache above this many series or bytes of text, so that churn does not fill the memory."""
        if len(self._known) > series or self._known_bytes > text_bytes:
            self.clear()

    def clear(self) -> None:
        self._known.clear()
        self._known_bytes = 0

    def find(self, text: str) -> int | None:
        """Returns the id of a known series, None if it is dropped; raises KeyError if the text is not known."""
        return self._known[text]

    def learn(self, texts: Iterable[tuple[str, int | None]]) -> None:
        """Adds series that were parsed before, and their ids."""
        self._known.update(texts)
        self._known_bytes = sum(map(len, self._known))

    def parse(self, body: bytes | str, *, openmetrics: bool = False) -> Exposition:
        """Raises ParseError or LimitError."""
        if isinstance(body, str):
            body = body.encode()
        if (
            openmetrics != self._openmetrics
        ):  # OpenMetrics does not allow everything that the text format allows
            self.clear()
        self._openmetrics, self._type, self._ended = openmetrics, "unknown", False
        self._metadata = {}
        found = Exposition()
        number = 1
        for piece in _slices(body, self._limits.line_bytes):
            lines = piece.split("\n")
            self._slice(lines, number, found)
            number += len(lines)
        if openmetrics and not self._ended and body:  # an empty response is valid
            raise ParseError("the text does not end with # EOF: it is truncated or not OpenMetrics")
        found.metadata = {name: _to_metadata(texts) for name, texts in self._metadata.items()}
        self._metadata = {}
        return found

    def _slice(self, lines: list[str], first: int, found: Exposition) -> None:
        ids: list[int | None] = []
        texts: list[str] = []
        get, begun = self._known.get, (self._type, len(found.timed), found.samples)
        waiting = iter(lines)
        try:
            for line in waiting:
                series, _, rest = line.rpartition(" ")
                series_id = get(series, _UNKNOWN)
                if series_id != _UNKNOWN:
                    ids.append(series_id)
                    texts.append(rest)
                else:
                    self._line(line, ids, texts, found)
            try:
                values = parse_numbers(texts) if texts else []
            except ValueError:  # an error or an unusual line: parse line by line
                self._type, timed, found.samples = begun
                self._ended = False
                del found.timed[timed:]
                ids, texts, waiting = [], [], iter(lines)
                for line in waiting:
                    self._line(line, ids, texts, found)
                values = list(map(parse_number, texts))
        except LimitError as error:
            raise LimitError(error.limit, _placed(error, lines, waiting, first)) from None
        except ValueError as error:  # ParseError is one
            raise ParseError(_placed(error, lines, waiting, first)) from None
        found.samples += len(ids)
        if None in ids:
            kept = [(one, value) for one, value in zip(ids, values, strict=True) if one is not None]
            found.ids += [one for one, _ in kept]
            found.values += [value for _, value in kept]
        else:
            found.ids += ids  # type: ignore[arg-type]  # no None in it
            found.values += values

    def _line(self, line: str, ids: list[int | None], texts: list[str], found: Exposition) -> None:
        if self._ended:
            raise ParseError("unexpected data after # EOF")
        start = line[:1]
        if not self._openmetrics and start in _BLANK:
            line = line.lstrip(" \t")
            start = line[:1]
            if not line:
                return
        if start == "#":
            if self._openmetrics and line == "# EOF":
                self._ended = True
            else:
                self._comment(line, found)
        elif not self._known_with_time(line, found):
            self._sample(line, ids, texts, found)

    def _sample(self, line: str, ids: list[int | None], texts: list[str], found: Exposition) -> None:
        _require_utf8(line)
        read = parse_line(line, self._openmetrics, self._limits, keep_empty=self._keep_empty)
        key = line[: read.end]
        series_id = self._known.get(key, _UNKNOWN)
        if series_id == _UNKNOWN:
            series_id = self._resolve(normalise_numbers(read.pairs, self._type))
            self._known[key] = series_id
            self._known_bytes += len(key)
        if read.at_ms is None:
            ids.append(series_id)
            texts.append(read.value)
        else:
            found.samples += 1
            if series_id is not None:
                found.timed.append((series_id, read.at_ms, parse_number(read.value)))

    def _known_with_time(self, line: str, found: Exposition) -> bool:
        """A known series with a value and a time, as in every line of /federate and cAdvisor."""
        rest, _, time = line.rpartition(" ")
        series, _, value = rest.rpartition(" ")
        series_id = self._known.get(series, _UNKNOWN)
        if series_id == _UNKNOWN:
            return False
        try:
            number = parse_number(value)
            at_ms = openmetrics_milliseconds(time) if self._openmetrics else text_milliseconds(time)
        except ValueError:
            return False  # the strict path raises the error
        found.samples += 1
        if series_id is not None:
            found.timed.append((series_id, at_ms, number))
        return True

    def _comment(self, line: str, found: Exposition) -> None:
        parse = _shared_comment if len(line) <= MAX_SHARED_CHARACTERS else parse_comment
        comment = parse(line, self._openmetrics)
        if comment is None:
            return
        _require_utf8(line)
        if comment.kind == "TYPE":
            self._type = comment.text
        entry = self._metadata.get(comment.family)
        added = len(comment.text) + (len(comment.family) + METADATA_ENTRY_BYTES if entry is None else 0)
        found.metadata_bytes += added
        if found.metadata_bytes > self._limits.metadata_bytes:
            found.metadata_cut = True
            return
        if entry is None:
            entry = self._metadata[comment.family] = {}
        entry[comment.kind.lower()] = comment.text


def _to_metadata(texts: dict[str, str]) -> Metadata:
    """Targets of one kind share the objects: a thousand targets have 50,000 entries."""
    is_short = sum(map(len, texts.values())) <= MAX_SHARED_CHARACTERS
    return _shared_metadata(**texts) if is_short else Metadata(**texts)


def _placed(error: ValueError, lines: list[str], waiting: Iterator[str], first: int) -> str:
    """The error message with the line number: the last line taken from `waiting`."""
    at = len(lines) - length_hint(waiting) - 1
    return f"line {first + at}: {error}: {lines[at][:120]!r}"


def _slices(body: bytes, line_bytes: int) -> Iterator[str]:
    """Pieces of whole lines without the last line break; a line has at most `line_bytes`."""
    at = 0
    while at < len(body):
        end = body.rfind(b"\n", at, at + min(PIECE_BYTES, line_bytes) + 1)
        if end < 0:
            end = body.find(b"\n", at, at + line_bytes + 1)
        if end < 0:
            end = len(body)
            if end - at > line_bytes:
                raise LimitError("scrape_max_line_bytes", f"a line of more than {line_bytes} bytes")
        # Bytes that are not UTF-8 are refused later, except in comments.
        yield body[at:end].decode("utf-8", "surrogateescape")
        at = end + 1


def _require_utf8(line: str) -> None:
    if not line.isascii():
        try:
            line.encode()
        except UnicodeEncodeError:
            raise ParseError("not UTF-8 text") from None


def parse_once(text: str, *, openmetrics: bool = False) -> Iterator[tuple[Pairs, int | None, float]]:
    """Every sample as (labels, time or None, value), for a text that is parsed once."""
    names: list[Pairs] = []

    def resolve(pairs: Pairs) -> int:
        names.append(pairs)
        return len(names) - 1

    found = SeriesCache(resolve).parse(text, openmetrics=openmetrics)
    for series_id, value in zip(found.ids, found.values, strict=True):
        yield names[series_id], None, value
    for series_id, at, value in found.timed:
        yield names[series_id], at, value


# Reads a scrape by its difference from the last one, because most scrapes differ only in values.
#
# `LastScrape` keeps the text of a scrape and the place of each line's value. `read_values` parses only the
# values of lines that changed. It returns None for a text with any other difference; the caller then parses
# all of it. The text is kept compressed: an eighth of the memory for 0.07 ms of a scrape with 90 kB.

NO_VALUE = -1
"""Place of a comment or an empty line."""
DROPPED = -2
"""Place of a series that relabelling drops: its value is checked and not used."""


@dataclass(slots=True)
class LastScrape:
    """See the module docstring."""

    packed: bytes
    """The text, compressed with Snappy."""
    places: NDArray[np.int32]
    """For each line the index of its value in `values`, `NO_VALUE` or `DROPPED`."""
    values: NDArray[np.float64]
    max_line_bytes: int

    @staticmethod
    def of(body: bytes, parsed: Exposition, cache: SeriesCache, max_line_bytes: int) -> LastScrape | None:
        """Return a scrape that `cache` has parsed; None if a line is more than a series and a value."""
        places: list[int] = []
        count = 0
        for line in body.decode("utf-8", "surrogateescape").split("\n"):
            if not line or line.startswith("#"):
                places.append(NO_VALUE)
                continue
            try:
                is_kept = cache.find(line.rpartition(" ")[0]) is not None
            except KeyError:  # with a time, an exemplar or unusual blanks
                return None
            places.append(count if is_kept else DROPPED)
            count += is_kept
        if parsed.timed or count != len(parsed.ids):
            return None
        values = np.array(parsed.values, np.float64)
        return LastScrape(_pack(body), np.array(places, np.int32), values, max_line_bytes)

    def read_values(self, body: bytes) -> NDArray[np.float64] | None:
        """Return the values of a new text; None if it differs in more than values."""
        lines, before = body.split(b"\n"), self._text().split(b"\n")
        if len(lines) != len(before):
            return None
        changed = list(compress(range(len(lines)), map(ne, lines, before)))
        places = self.places[changed]
        if (places == NO_VALUE).any():
            return None
        texts: list[bytes] = []
        for number in changed:
            series, _, text = lines[number].rpartition(b" ")
            if before[number].rpartition(b" ")[0] != series or len(text) > self.max_line_bytes - len(series):
                return None
            texts.append(text)
        try:
            numbers = parse_numbers(b" ".join(texts).decode("ascii").split(" ")) if texts else []
        except ValueError:  # not numbers: the parser of whole texts finds the error
            return None
        values = self.values.copy()
        kept = places >= 0
        values[places[kept]] = np.array(numbers)[kept]
        return values

    def replace(self, body: bytes, values: NDArray[np.float64]) -> None:
        """Keep a newer text, whose values `read_values` returned."""
        self.packed, self.values = _pack(body), values

    def series_texts(self) -> Iterator[tuple[str, int]]:
        """Yield the text of each series, and its place."""
        lines = self._text().decode("utf-8", "surrogateescape").split("\n")
        for line, place in zip(lines, self.places.tolist(), strict=True):
            if place != NO_VALUE:
                yield line.rpartition(" ")[0], place

    def _text(self) -> bytes:
        return bytes(cramjam.snappy.decompress_raw(self.packed))


def _pack(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))
