"""Functions that Prometheus and Alertmanager share: regular expressions, titles, hosts, JSON, number formats.

Regular expressions are RE2's, which take linear time on any pattern. Numbers are given as numbers or as texts
(`1.235M`, `1.177Mi`, `2d 3h 4m 5s`, `12.35%`, times).
"""

from __future__ import annotations

import ipaddress
import json
import math
import re
import unicodedata
from functools import lru_cache
from typing import Any

import re2

from gpuscope.base.time_text import parse_prometheus_duration
from gpuscope.judge.rules.templates.builtin_functions import query_escape
from gpuscope.judge.rules.templates.go_format import DEFAULT_MAX_LENGTH, Room, float_text
from gpuscope.judge.rules.templates.go_time import SECOND, GoDuration, GoTime
from gpuscope.judge.rules.templates.template_nodes import parse_go_float
from gpuscope.judge.rules.templates.template_values import FunctionFailed, GoStruct, GoValue, go_type

_GO_REASONS = {
    "missing )": "missing closing )",
    "missing ]": "missing closing ]",
    "invalid repetition size": "invalid repeat count",
    "bad repetition operator": "invalid nested repetition operator",
    "invalid named capture group": "invalid named capture",
    "invalid perl operator": "invalid or unsupported Perl syntax",
    "no argument for repetition operator": "missing argument to repetition operator",
}
"""From RE2's words for a mistake to those of Go's regexp package."""
_GROUP = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})", re.ASCII)
_WORD_JOINERS = frozenset("'’.·:")
"""Inside of a word, before a letter or digit, these do not end a word (Unicode's word boundaries)."""
MAX_NESTING = 100
_SAFE = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
    "\x7f": "\x7f",
}
_SMALL = ("m", "u", "n", "p", "f", "a", "z", "y")
_MAX_INT64 = 1 << 63


@lru_cache(maxsize=256)
def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except (re2.error, UnicodeEncodeError) as error:
        reason = error.args[0] if error.args else "not valid"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        name, colon, part = text.partition(": ")
        shown = f"{_GO_REASONS.get(name, name)}: `{part}`" if colon else _GO_REASONS.get(name, name)
        raise FunctionFailed(f"error parsing regexp: {shown}") from None


def matches(pattern: str, text: str) -> bool:
    return _compile(pattern).search(text) is not None


def _expand(template: str, match: Any) -> str:
    def group(reference: re.Match[str]) -> str:
        name = reference[1] or reference[2]
        if name is None:
            return "$"
        try:
            return match.group(int(name) if name.isdigit() else name) or ""
        except (IndexError, KeyError, re2.error):
            return ""

    return _GROUP.sub(group, template)


def replace_all(pattern: str, replacement: str, text: str, max_length: int) -> str:
    """Go's `ReplaceAllString`: `$1`, `${name}`; the longest name counts, so `$1x` is the group `1x`."""
    output: list[str] = []
    done = size = 0
    try:
        expression, fixed = _compile(pattern), "$" not in replacement
    except FunctionFailed as failure:
        raise FunctionFailed(f"regexp: Compile(`{pattern}`): {failure}") from None
    for match in expression.finditer(text):
        if match.end() == match.start() and done == match.start() and done > 0 and output:
            # Go allows no empty match right after a match.
            continue
        piece = replacement if fixed else _expand(replacement, match)
        size += match.start() - done + len(piece)
        if size > max_length:
            raise FunctionFailed(f"the text is longer than {max_length} characters")
        output += [text[done : match.start()], piece]
        done = match.end()
    return "".join([*output, text[done:]])


def title_case(text: str, *, lower_rest: bool) -> str:
    """The first letter of each word in upper case; digits and `_` belong to a word, but are no letters."""
    output, had_letter = [], False
    for position, character in enumerate(text):
        if character.isalpha():
            rest = to_lower(character) if lower_rest else character
            output.append(rest if had_letter else to_title(character))
            had_letter = True
            continue
        output.append(character)
        is_part = character == "_" or character.isdecimal() or unicodedata.category(character)[0] == "M"
        had_letter = had_letter and (is_part or _joins(text, position))
    return "".join(output)


def _joins(text: str, position: int) -> bool:
    return text[position] in _WORD_JOINERS and text[position + 1 : position + 2].isalnum()


def to_title(character: str) -> str:
    """One letter may become two: `ß` is `Ss`."""
    return character.title()


def to_upper(text: str) -> str:
    """Character by character, as Go: no character becomes two."""
    return "".join(upper if len(upper := character.upper()) == 1 else character for character in text)


def to_lower(text: str) -> str:
    return "".join(character.lower()[0] for character in text)


def split_host_port(text: str) -> tuple[str, str] | None:
    """As Go's `net.SplitHostPort`; None where it returns an error."""
    host, colon, port = text.rpartition(":")
    if not colon:
        return None
    if host.startswith("["):
        if not host.endswith("]") or "[" in host[1:] or "]" in host[1:-1]:
            return None
        return host[1:-1], port
    if ":" in host or "[" in text or "]" in text:
        return None
    return host, port


def strip_port(text: str) -> str:
    parts = split_host_port(text)
    return text if parts is None else parts[0]


def strip_domain(text: str) -> str:
    parts = split_host_port(text)
    host, port = (text, "") if parts is None else parts
    try:
        ipaddress.ip_address(host)
        return text
    except ValueError:
        pass
    host = host.split(".")[0]
    return (f"[{host}]:{port}" if ":" in host else f"{host}:{port}") if port else host


def graph_link(expression: str, tab: int) -> str:
    return f"/graph?g0.expr={query_escape(expression)}&g0.tab={tab}"


def _string(text: str) -> str:
    quoted = json.dumps(str(text), ensure_ascii=False)
    return "".join(_SAFE.get(character, character) for character in quoted)


def _float(value: float) -> str:
    if value != value or value in (float("inf"), float("-inf")):
        raise FunctionFailed(f"json: unsupported value: {float_text(value, 'g', None)}")
    size = abs(value)
    if size != 0 and (size < 1e-6 or size >= 1e21):
        text = float_text(value, "e", None)
        # e-09 becomes e-9
        return text[:-2] + text[-1] if len(text) >= 4 and text[-4:-2] == "e-" and text[-2] == "0" else text
    return float_text(value, "f", None)


def to_json(value: GoValue, max_length: int = DEFAULT_MAX_LENGTH) -> str:
    return _to_json(value, 0, Room(max_length))


def _to_json(value: GoValue, depth: int, room: Room) -> str:
    if isinstance(value, (list, dict, GoStruct)):
        room.take("")  # its elements are counted
        return _encode(value, depth, room)
    return room.take(_encode(value, depth, room))


def _encode(value: GoValue, depth: int, room: Room) -> str:
    if depth > MAX_NESTING:
        raise FunctionFailed("json: value is nested too deeply")
    if value is None or isinstance(value, bool):
        return "null" if value is None else str(value).lower()
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return _float(value)
    if isinstance(value, GoTime):
        return _string(value.format("2006-01-02T15:04:05.999999999Z07:00"))
    if isinstance(value, GoDuration):
        return str(value.nanoseconds)
    if isinstance(value, list):
        return f"[{','.join(_to_json(item, depth + 1, room) for item in value)}]"
    if isinstance(value, dict):
        pairs = (f"{_string(key)}:{_to_json(value[key], depth + 1, room)}" for key in sorted(value))
        return f"{{{','.join(pairs)}}}"
    if isinstance(value, GoStruct):
        names = getattr(value, "JSON_NAMES", tuple(value.FIELDS))
        fields = zip(names, value.go_fields(), strict=True)
        return f"{{{','.join(f'{_string(name)}:{_to_json(item, depth + 1, room)}' for name, item in fields)}}}"
    raise FunctionFailed(f"json: unsupported type: {go_type(value)}")


def to_float(value: GoValue) -> float:
    if go_type(value) in ("float64", "int", "int64"):
        return float(value)
    if isinstance(value, str) and type(value) is str:
        return parse_go_float(value)
    if isinstance(value, GoDuration) and go_type(value) == "time.Duration":
        return value.nanoseconds / SECOND
    raise FunctionFailed(f"can't convert {go_type(value)} to float")


def _digits(value: float) -> str:
    return float_text(value, "g", 4)


def _is_special(value: float) -> bool:
    return math.isnan(value) or math.isinf(value)


def _shrink(value: float, base: float, prefixes: tuple[str, ...]) -> str:
    prefix = ""
    for larger in prefixes:
        if abs(value) < base:
            break
        prefix = larger
        value /= base
    return _digits(value) + prefix


def _grow(value: float, unit: str = "") -> str:
    prefix = ""
    for smaller in _SMALL:
        if abs(value) >= 1:
            break
        prefix = smaller
        value *= 1000
    return _digits(value) + prefix + unit


def humanize(value: GoValue) -> str:
    number = to_float(value)
    if number == 0 or _is_special(number):
        return _digits(number)
    if abs(number) >= 1:
        return _shrink(number, 1000, ("k", "M", "G", "T", "P", "E", "Z", "Y"))
    return _grow(number)


def humanize1024(value: GoValue) -> str:
    number = to_float(value)
    if abs(number) <= 1 or _is_special(number):
        return _digits(number)
    return _shrink(number, 1024, ("ki", "Mi", "Gi", "Ti", "Pi", "Ei", "Zi", "Yi"))


def humanize_percentage(value: GoValue) -> str:
    return _digits(to_float(value) * 100) + "%"


def humanize_duration(value: GoValue) -> str:
    number = to_float(value)
    if _is_special(number):
        return _digits(number)
    if number == 0:
        return _digits(number) + "s"
    if abs(number) < 1:
        return _grow(number, "s")
    sign, number = ("-" if number < 0 else ""), abs(number)
    # Go converts to int64, which on amd64 makes a number outside of its range the smallest one.
    whole = int(number) if number < _MAX_INT64 else -_MAX_INT64
    seconds, minutes = _remainder(whole, 60), _remainder(_quotient(whole, 60), 60)
    hours, days = _remainder(_quotient(whole, 3600), 24), _quotient(whole, 86400)
    if days:
        return f"{sign}{days}d {hours}h {minutes}m {seconds}s"
    if hours:
        return f"{sign}{hours}h {minutes}m {seconds}s"
    return f"{sign}{minutes}m {seconds}s" if minutes else f"{sign}{_digits(number)}s"


def _quotient(number: int, divisor: int) -> int:
    return number // divisor if number >= 0 else -(-number // divisor)


def _remainder(number: int, divisor: int) -> int:
    return number - _quotient(number, divisor) * divisor


def to_time(value: GoValue) -> GoTime:
    number = to_float(value)
    if _is_special(number):
        raise FunctionFailed("value is NaN or Inf")
    nanoseconds = number * 1e9
    if nanoseconds > _MAX_INT64 or nanoseconds < -_MAX_INT64:
        shown = float_text(number, "g", None)
        raise FunctionFailed(
            f"{shown} cannot be represented as a nanoseconds timestamp since it overflows int64"
        )
    # Prometheus' time has milliseconds.
    return GoTime(_quotient(int(nanoseconds), 1_000_000) * 1_000_000, GO_TYPE="*time.Time")


def humanize_timestamp(value: GoValue) -> str:
    number = to_float(value)
    return _digits(number) if _is_special(number) else to_time(number).go_string()


def to_duration(value: GoValue) -> GoDuration:
    nanoseconds = to_float(value) * SECOND
    in_range = not math.isnan(nanoseconds) and abs(nanoseconds) < _MAX_INT64
    return GoDuration(int(nanoseconds) if in_range else -_MAX_INT64, GO_TYPE="*time.Duration")


def parse_duration_seconds(text: str) -> float:
    """Prometheus' durations (`1d12h`), with a sign."""
    is_negative = text.startswith("-")
    try:
        seconds = parse_prometheus_duration(text.removeprefix("-")) / 1000
    except ValueError as error:
        raise FunctionFailed(str(error)) from None
    return -seconds if is_negative else seconds
