"""Reads what exporters send: Prometheus text 0.0.4 and 1.0.0, and OpenMetrics 1.0.

Most lines of a scrape are the same series as the last time with another number. `SeriesCache` keeps, by the raw
text of a series, what it was resolved to, so that such a line costs one split, one look-up and one float. A
series is only ever looked up by text that was fully parsed before; anything else takes the slow, strict path.
Wrong text refuses the whole scrape, as Prometheus does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

Pairs = tuple[tuple[str, str], ...]
Resolve = Callable[[Pairs], int | None]
"""Labels (`__name__` first) to a series id; None for a series that is not wanted."""

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*"
_QUOTED = r'"((?:[^"\\\n]|\\.)*)"'
_SERIES_NAME = re.compile(rf"({_NAME})?[ \t]*")
_PAIR = re.compile(rf"[ \t]*(?:([a-zA-Z_][a-zA-Z0-9_]*)|{_QUOTED})[ \t]*(?:=[ \t]*{_QUOTED})?[ \t]*([,}}])")
_ESCAPE = re.compile(r"\\(.)")
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_COMMENT = re.compile(rf"#[ \t]+(HELP|TYPE|UNIT)[ \t]+(?:({_NAME})|{_QUOTED})(?:[ \t]+(.*))?\Z")


class ParseError(ValueError):
    """The text is not an exposition; says which line and why."""


@dataclass(slots=True)
class Metadata:
    type: str = "unknown"
    help: str = ""
    unit: str = ""


@dataclass(slots=True)
class Exposition:
    """A whole scrape: series ids and values side by side; the few samples with a time of their own apart."""

    ids: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    timed: list[tuple[int, int, float]] = field(default_factory=list)  # (id, milliseconds, value)
    metadata: dict[str, Metadata] = field(default_factory=dict)
    samples: int = 0  # lines with a number, also those of series nobody wants


def parse_number(text: str) -> float:
    # float() also takes underscores, spaces and "infinity"; a scrape may not.
    if "_" in text or text.strip() != text:
        raise ValueError(text)
    return float(text)


class SeriesCache:
    """What one target's series were resolved to, by their raw text. Not for several threads at once."""

    def __init__(self, resolve: Resolve, *, keep_empty: bool = False) -> None:
        """`keep_empty` hands over labels without a value too: with honor_labels they say "not the target's"."""
        self._resolve = resolve
        self._keep_empty = keep_empty
        self._known: dict[str, int | None] = {}
        self._comments: dict[str, tuple[str, str, str]] = {}

    def forget_all_but(self, most: int) -> None:
        """Churn must not fill the memory: past `most` texts the cache starts anew."""
        if len(self._known) > most:
            self._known.clear()
        if len(self._comments) > most:
            self._comments.clear()

    def parse(self, text: str, *, openmetrics: bool = False) -> Exposition:
        found = Exposition()
        ids, values, known = found.ids, found.values, self._known
        ended = False
        for number, line in enumerate(text.split("\n"), 1):
            series, _, rest = line.rpartition(" ")
            if series in known:
                found.samples += 1
                try:
                    value = parse_number(rest)
                except ValueError:
                    raise ParseError(f"line {number}: not a number: {rest[:80]!r}") from None
                series_id = known[series]
                if series_id is not None:
                    ids.append(series_id)
                    values.append(value)
            elif not line or line.isspace():
                continue
            elif line.startswith("#"):
                ended = ended or line == "# EOF"
                self._comment(line, found)
            else:
                self._slow(line.rstrip("\r"), number, openmetrics, found)
        if openmetrics and not ended:
            raise ParseError("the text does not end with # EOF: it was cut, or is not OpenMetrics")
        return found

    def _slow(self, line: str, number: int, openmetrics: bool, found: Exposition) -> None:
        if self._known_with_time(line, openmetrics, found):
            return
        try:
            pairs, end = parse_series(line, keep_empty=self._keep_empty)
            words = line[end:].split("#", 1)[0].split() if openmetrics else line[end:].split()
            if not 1 <= len(words) <= 2:
                raise ParseError("a value and perhaps a time must follow the series")
            value = parse_number(words[0])
            at = None if len(words) == 1 else _milliseconds(words[1], openmetrics)
        except (ParseError, ValueError) as error:
            raise ParseError(f"line {number}: {error}: {line[:120]!r}") from None
        found.samples += 1
        series_id = self._resolve(pairs)
        if line == f"{line[:end]} {' '.join(words)}" and not line[:end].endswith((" ", "\t")):
            self._known[line[:end]] = series_id
        if at is None:
            if series_id is not None:
                found.ids.append(series_id)
                found.values.append(value)
        elif series_id is not None:
            found.timed.append((series_id, at, value))

    def _known_with_time(self, line: str, openmetrics: bool, found: Exposition) -> bool:
        """A known series with a value and a time: what /federate and cAdvisor send on every line."""
        rest, _, time = line.rpartition(" ")
        series, _, value = rest.rpartition(" ")
        if series not in self._known:
            return False
        try:
            sample = (parse_number(value), _milliseconds(time, openmetrics))
        except ValueError:
            return False  # the slow way says what is wrong
        found.samples += 1
        series_id = self._known[series]
        if series_id is not None:
            found.timed.append((series_id, sample[1], sample[0]))
        return True

    def _comment(self, line: str, found: Exposition) -> None:
        known = self._comments.get(line)
        if known is None:
            match = _COMMENT.match(line)
            if match is None:
                return
            kind, name, quoted, rest = match.groups()
            known = (kind, name or _unescape(quoted or ""), _unescape(rest or ""))
            self._comments[line] = known
        kind, name, rest = known
        entry = found.metadata.setdefault(name, Metadata())
        if kind == "TYPE":
            entry.type = rest.strip() or "unknown"
        elif kind == "HELP":
            entry.help = rest
        else:
            entry.unit = rest


def parse_series(line: str, *, keep_empty: bool = False) -> tuple[Pairs, int]:
    """The series at the start of a line, as label pairs with the name first, and where it ends."""
    match = _SERIES_NAME.match(line)
    assert match is not None  # noqa: S101 - it matches the empty text too
    name, end = match.group(1), match.end()
    labels: list[tuple[str, str]] = []
    if line[end : end + 1] == "{":
        name, end = _labels(line, end + 1, name, labels)
        if not keep_empty:
            labels = [pair for pair in labels if pair[1] != ""]
    else:
        end = match.end(1) if name else end
    if not name:
        raise ParseError("no metric name")
    if len({key for key, _ in labels}) < len(labels):
        raise ParseError("a label stands twice")
    return (("__name__", name), *labels), end


def _labels(line: str, at: int, name: str | None, labels: list[tuple[str, str]]) -> tuple[str | None, int]:
    if line[at:].lstrip(" \t").startswith("}"):
        return name, line.index("}", at) + 1
    while True:
        pair = _PAIR.match(line, at)
        if pair is None:
            raise ParseError("the labels cannot be read")
        key, quoted_key, value, separator = pair.groups()
        key = _unescape(quoted_key) if key is None else key
        if value is None:  # {"my.metric", a="b"}: a name in quotes stands alone
            if pair.group(1) is not None or name is not None or labels:
                raise ParseError("a label without a value")
            name = key
        else:
            labels.append((key, _unescape(value)))
        at = pair.end()
        if separator == "}" or line[at:].lstrip(" \t").startswith("}"):
            return name, at if separator == "}" else line.index("}", at) + 1


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), text)


def _milliseconds(text: str, openmetrics: bool) -> int:
    if "_" in text or len(text) > 40:
        raise ValueError(text)
    try:
        milliseconds = round(parse_number(text) * 1000) if openmetrics else int(text)
    except OverflowError:  # infinity
        raise ValueError(text) from None
    if not -(2**63) <= milliseconds < 2**63:
        raise ValueError(text)
    return milliseconds


def parse_once(text: str, *, openmetrics: bool = False) -> Iterator[tuple[Pairs, int | None, float]]:
    """Every sample as (labels, its own time or None, value); for reading a text once."""
    names: list[Pairs] = []

    def resolve(pairs: Pairs) -> int:
        names.append(pairs)
        return len(names) - 1

    found = SeriesCache(resolve).parse(text, openmetrics=openmetrics)
    for series_id, value in zip(found.ids, found.values, strict=True):
        yield names[series_id], None, value
    for series_id, at, value in found.timed:
        yield names[series_id], at, value
