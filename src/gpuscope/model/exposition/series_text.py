"""Parses one line of the text format or OpenMetrics: series, value and time, or metadata.

Accepts what Prometheus 3 accepts: blanks almost anywhere in the text format, exactly one space in OpenMetrics.
Two intended differences: blanks before a name are not part of the name, and a label value cannot span lines.
All quantifiers are possessive, so that a hostile line takes time and memory in proportion to its length.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from gpuscope.base.limits import Limits
from gpuscope.model.exposition.sample import go_float

Pairs = tuple[tuple[str, str], ...]

_NAME = r"[a-zA-Z_:][a-zA-Z0-9_:]*+"
_LABEL = r"[a-zA-Z_][a-zA-Z0-9_]*+"
_QUOTED = r'"([^"\\]*+(?:\\.[^"\\]*+)*+)"'
_BLANKS = re.compile(r"[ \t]*+")
_METRIC_NAME = re.compile(_NAME)
_TEXT_PAIR = re.compile(
    rf"(?:({_LABEL})|{_QUOTED})[ \t]*+(?:=[ \t]*+{_QUOTED})?+[ \t]*+(,?+)[ \t]*+", re.DOTALL
)
_OPENMETRICS_PAIR = re.compile(rf"(?:({_LABEL})|{_QUOTED})(?:={_QUOTED})?+(,?+)", re.DOTALL)
_TEXT_REST = re.compile(r"[ \t]*+([^{ \t]++)[ \t]*+(?:([0-9]++)[ \t]*+)?+\Z")
_OPENMETRICS_REST = re.compile(r" ([^ ]++)(?: (?!# \{)([^ ]++))?+(?: # \{(.*+))?+\Z", re.DOTALL)
_EXEMPLAR_REST = re.compile(r" ([^ ]++)(?: ([^ ]++))?+\Z")
_TEXT_COMMENT = re.compile(r"#[ \t]++(HELP|TYPE)[ \t]++(.*+)\Z", re.DOTALL)
_OPENMETRICS_COMMENT = re.compile(r"# (HELP|TYPE|UNIT) (.*+)\Z", re.DOTALL)
_FAMILY = re.compile(rf"(?:({_NAME})|{_QUOTED})", re.DOTALL)
_ESCAPE = re.compile(r'\\([\\n"])')
_HELP_ESCAPE = re.compile(r"\\([\\n])")
_NOT_FINITE = re.compile(r"(?i:[+-]?inf(?:inity)?|nan)\Z")
_TEXT_TYPES = ("counter", "gauge", "histogram", "summary", "untyped")
_OPENMETRICS_TYPES = (
    "counter", "gauge", "histogram", "gaugehistogram", "summary", "info", "stateset", "unknown",
)  # fmt: skip
_NUMBER_LABELS = {"histogram": "le", "summary": "quantile"}
_BLANK = (" ", "\t")
OUT_OF_RANGE_MS = -(2**63)
"""A valid time outside 64 bits: the store refuses the sample, but the scrape is accepted."""
_INFINITIES = (float("inf"), float("-inf"))


class ParseError(ValueError):
    """The text is not a valid exposition; the message has the line and the reason."""


class LimitError(ParseError):
    """The text exceeds a limit; `limit` is a field name of `limits.Limits`."""

    def __init__(self, limit: str, message: str) -> None:
        super().__init__(message)
        self.limit = limit


_ROWS = Limits()


@dataclass(frozen=True, slots=True)
class TextLimits:
    """Limits for one text, checked during parsing, before relabelling."""

    labels: int = _ROWS.scrape_max_labels
    label_name_bytes: int = _ROWS.scrape_max_label_name_bytes
    label_value_bytes: int = _ROWS.scrape_max_label_value_bytes
    line_bytes: int = _ROWS.scrape_max_line_bytes
    metadata_bytes: int = _ROWS.scrape_max_metadata_bytes


class Line(NamedTuple):
    pairs: Pairs
    """`__name__` first."""
    end: int
    """The end of the series' text."""
    value: str
    """A number that `parse_number` accepts."""
    at_ms: int | None


class Comment(NamedTuple):
    kind: str
    family: str
    text: str


def parse_number(text: str) -> float:
    """Like Go's ParseFloat without hexadecimal: no underscores, no blanks, no overflow."""
    if "_" in text or not text.isascii() or text.strip() != text:
        raise ValueError(f"not a number: {text[:80]!r}")
    try:
        number = float(text)
    except ValueError:
        raise ValueError(f"not a number: {text[:80]!r}") from None
    if (number != number or number in _INFINITIES) and _NOT_FINITE.match(text) is None:
        raise ValueError(f"not a number, or too large for one: {text[:80]!r}")
    return number


def parse_numbers(texts: list[str]) -> list[float]:
    """Parses many numbers at once; raises ValueError if `parse_number` would refuse one."""
    joined = "".join(texts)
    if "_" in joined or not joined.isascii() or joined.split(None, 1) != [joined]:  # no blank anywhere
        raise ValueError("not numbers")
    numbers = list(map(float, texts))
    # A value that is not finite contains an n (inf, nan), or is too large for a float.
    if "n" in joined or "N" in joined or _INFINITIES[0] in numbers or _INFINITIES[1] in numbers:
        return list(map(parse_number, texts))
    return numbers


def parse_line(line: str, openmetrics: bool, limits: TextLimits, *, keep_empty: bool = False) -> Line:
    """Parses a line that starts with a series, without leading blanks."""
    found = _METRIC_NAME.match(line)
    name, end = (None, 0) if found is None else (found[0], found.end())
    brace = end
    if not openmetrics and line[end : end + 1] in _BLANK:
        brace = _BLANKS.match(line, end).end()  # type: ignore[union-attr]  # matches always
    labels: list[tuple[str, str]] = []
    if line[brace : brace + 1] == "{":
        name, end = _parse_labels(line, brace + 1, name, labels, openmetrics, limits)
    if not name:
        raise ParseError("no metric name")
    table = dict(labels)
    if len(table) < len(labels):
        labels = _without_repeated(labels)
        table = dict(labels)
    if not keep_empty and "" in table.values():
        labels = [pair for pair in labels if pair[1] != ""]
    value, at_ms = (_parse_openmetrics_rest if openmetrics else _parse_text_rest)(line, end, limits)
    return Line((("__name__", name), *labels), end, value, at_ms)


def _without_repeated(labels: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Removes a repeated label if one value is empty, as Prometheus does; raises ParseError otherwise."""
    empty = dict.fromkeys(key for key, value in labels if value == "")
    rest = [(key, value) for key, value in labels if key not in empty]
    if len(dict(rest)) < len(rest):
        raise ParseError("duplicate label")
    return [*rest, *((key, "") for key in empty)]


def _parse_labels(
    line: str,
    at: int,
    name: str | None,
    labels: list[tuple[str, str]],
    openmetrics: bool,
    limits: TextLimits,
) -> tuple[str | None, int]:
    """Parses labels up to the closing brace; returns the name, which may be quoted among them, and the end."""
    pattern = _OPENMETRICS_PAIR if openmetrics else _TEXT_PAIR
    # A character has at most four bytes, so most texts are short enough without encoding.
    short = min(limits.label_name_bytes, limits.label_value_bytes) // 4
    if not openmetrics and line[at : at + 1] in _BLANK:
        at = _BLANKS.match(line, at).end()  # type: ignore[union-attr]
    while line[at : at + 1] != "}":
        pair = pattern.match(line, at)
        if pair is None:
            raise ParseError("the labels cannot be read")
        bare, quoted, value, comma = pair.groups()
        at = pair.end()
        closes = line[at : at + 1] == "}"
        if value is None:  # {"my.metric", a="b"}: a quoted metric name has no value
            if quoted is None or name is not None or not (comma or closes):
                raise ParseError("a label without a value")
            name = unescape(quoted)
            _check_length(name, limits.label_value_bytes, "scrape_max_label_value_bytes", "metric name")
            continue
        if openmetrics and not (comma or closes):
            raise ParseError("no comma between two labels")
        key = unescape(quoted) if bare is None else bare
        if not key:
            raise ParseError("a label without a name")
        if len(key) > short or len(value) > short:
            _check_length(key, limits.label_name_bytes, "scrape_max_label_name_bytes", "label name")
            what = f"value of label {key[:60]!r}"
            _check_length(value, limits.label_value_bytes, "scrape_max_label_value_bytes", what)
        labels.append((key, unescape(value)))
        if len(labels) > limits.labels:
            raise LimitError("scrape_max_labels", f"more than {limits.labels} labels on one series")
    return name, at + 1


def _check_length(text: str, limit: int, row: str, what: str) -> None:
    if len(text.encode("utf-8", "surrogatepass")) > limit:
        raise LimitError(row, f"{what} longer than {limit} bytes")


def _parse_text_rest(line: str, end: int, limits: TextLimits) -> tuple[str, int | None]:
    rest = _TEXT_REST.match(line, end)
    if rest is None:
        raise ParseError("a value and optionally a time must follow the series")
    parse_number(rest[1])
    return rest[1], None if rest[2] is None else text_milliseconds(rest[2])


def _parse_openmetrics_rest(line: str, end: int, limits: TextLimits) -> tuple[str, int | None]:
    rest = _OPENMETRICS_REST.match(line, end)
    if rest is None:
        raise ParseError("one space, a value and optionally a time and an exemplar must follow the series")
    parse_number(rest[1])
    if rest[3] is not None:
        _check_exemplar(line, rest.start(3), limits)
    return rest[1], None if rest[2] is None else openmetrics_milliseconds(rest[2])


def _check_exemplar(line: str, at: int, limits: TextLimits) -> None:
    """Exemplars are not stored, but an invalid exemplar refuses the scrape."""
    name, end = _parse_labels(line, at, None, [], True, limits)
    rest = _EXEMPLAR_REST.match(line, end)
    if name is not None or rest is None:
        raise ParseError("the exemplar cannot be read")
    parse_number(rest[1])
    if rest[2] is not None:
        openmetrics_milliseconds(rest[2])


def text_milliseconds(text: str) -> int:
    """Accepts digits only: the text format has no times before 1970."""
    digits = text.lstrip("0") or "0"
    if len(digits) > 19 or not (text.isascii() and text.isdigit()) or int(digits) >= 2**63:
        raise ValueError(f"not a time in milliseconds: {text[:40]!r}")
    return int(digits)


def openmetrics_milliseconds(text: str) -> int:
    """Converts seconds to milliseconds, truncated as in Prometheus."""
    seconds = parse_number(text)
    if seconds != seconds or seconds in _INFINITIES:
        raise ValueError(f"not a time in seconds: {text[:40]!r}")
    milliseconds = seconds * 1000
    return int(milliseconds) if -(2.0**63) <= milliseconds < 2.0**63 else OUT_OF_RANGE_MS


def parse_comment(line: str, openmetrics: bool) -> Comment | None:
    """Parses metadata; None for a plain comment, which OpenMetrics does not allow."""
    match = (_OPENMETRICS_COMMENT if openmetrics else _TEXT_COMMENT).match(line)
    if match is None:
        if openmetrics:
            raise ParseError("neither HELP, TYPE, UNIT nor EOF")
        return None
    kind, rest = match.groups()
    family = _FAMILY.match(rest)
    if family is None:
        raise ParseError(f"no metric name after {kind}")
    name = family[1] or unescape(family[2])
    separator = rest[family.end() : family.end() + 1]
    if not separator.isascii() or (openmetrics and separator != " "):
        raise ParseError(f"no text after {kind}")
    text = rest[family.end() + 1 :]
    if kind == "TYPE":
        if text not in (_OPENMETRICS_TYPES if openmetrics else _TEXT_TYPES):
            raise ParseError(f"invalid metric type {text[:40]!r}")
        return Comment(kind, name, "unknown" if text == "untyped" else text)
    if kind == "UNIT":
        if text and not name.endswith(f"_{text}"):
            raise ParseError(f"unit {text[:40]!r} is not the end of the name {name[:80]!r}")
        return Comment(kind, name, text)
    if not openmetrics and not text.strip(" \t"):
        text = ""
    return Comment(kind, name, unescape(text) if openmetrics else _unescape_help(text))


def normalise_numbers(pairs: Pairs, metric_type: str) -> Pairs:
    """`le="1"` of a histogram becomes `1.0`, `quantile="0.50"` of a summary `0.5`, as Prometheus 3 stores them.

    `metric_type` is that of the last TYPE line, whatever metric it names, as in Prometheus."""
    label = _NUMBER_LABELS.get(metric_type)
    if label is None:
        return pairs
    return tuple((key, _normalise(value) if key == label else value) for key, value in pairs)


def _normalise(text: str) -> str:
    try:
        number = parse_number(text)
    except ValueError:
        return text
    written = go_float(number)
    return written if number in _INFINITIES or any(c in written for c in ".eN") else f"{written}.0"


def unescape(text: str) -> str:
    return _ESCAPE.sub(_escaped, text) if "\\" in text else text


def _unescape_help(text: str) -> str:
    return _HELP_ESCAPE.sub(_escaped, text) if "\\" in text else text


def _escaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]
