"""Numbers, times and durations as Go's standard library parses them, because Prometheus' API does.

Python accepts more (` 1 `, `2024-01-01`): what Prometheus refuses is refused here too, or a client that works
with us fails with a Prometheus. `ValueError` has Prometheus' message.
"""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime, timedelta, timezone

from gpuscope.base.time_text import parse_prometheus_duration
from gpuscope.history.promql.labels import quote

_DIGITS, _HEX = r"[0-9]+(?:_[0-9]+)*", r"[0-9a-fA-F]+(?:_[0-9a-fA-F]+)*"
_DECIMAL = re.compile(rf"[+-]?(?:{_DIGITS}\.?|{_DIGITS}\.{_DIGITS}|\.{_DIGITS})(?:[eE][+-]?{_DIGITS})?")
_HEXADECIMAL = re.compile(rf"[+-]?0[xX]_?(?:{_HEX}\.?|{_HEX}\.{_HEX}|\.{_HEX})[pP][+-]?{_DIGITS}")
_INFINITE = re.compile(r"([+-]?)inf(?:inity)?", re.IGNORECASE)
_INTEGER = re.compile(r"[+-]?[0-9]+")
_DATE = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})T([0-9]{2}):([0-9]{2}):([0-9]{2})(?:[.,]([0-9]+))?"
    r"(Z|[+-][0-9]{2}:[0-9]{2})"
)
_LONGEST_NS = 2**63
# Prometheus' own ends of time; its Go client sends them as dates of six-digit years.
_MIN_TIME_MS = (-(2**63 // 1000) + 62_135_596_801) * 1000
_MAX_TIME_MS = ((2**63 - 1) // 1000 - 62_135_596_801) * 1000 + 999
_ENDS_OF_TIME = {
    "-292273086-05-16T16:47:06Z": _MIN_TIME_MS,
    "292277025-08-18T07:12:54.999999999Z": _MAX_TIME_MS,
}


def parse_float(text: str) -> float | None:
    """As `ParseFloat`: nothing for what it refuses, which includes numbers too large for a float."""
    if _DECIMAL.fullmatch(text):
        number = float(text)
    elif _HEXADECIMAL.fullmatch(text):
        try:
            number = float.fromhex(text.replace("_", ""))
        except OverflowError:
            return None
    else:
        infinite = _INFINITE.fullmatch(text)
        if infinite:
            return -math.inf if infinite[1] == "-" else math.inf
        return math.nan if text.lower() == "nan" else None
    return None if math.isinf(number) else number


def parse_int(text: str, bits: int = 64, by: str = "Atoi") -> int:
    """As `Atoi`, or as `ParseInt` does it for fewer bits."""
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"strconv.{by}: parsing {quote(text)}: invalid syntax")
    # Leading zeros are no digits; more than 20 digits need not be converted to be too many.
    digits = text.lstrip("+-").lstrip("0")
    size = int(digits or "0") if len(digits) <= 20 else 1 << 64
    number = -size if text.startswith("-") else size
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise ValueError(f"strconv.{by}: parsing {quote(text)}: value out of range")
    return number


def parse_time_ms(text: str) -> int:
    """Seconds since 1970, or RFC 3339; finer than a millisecond is cut off as Prometheus does it."""
    seconds = parse_float(text)
    if seconds is None:
        milliseconds = _ENDS_OF_TIME.get(text)
        if milliseconds is None:
            milliseconds = _date_ms(text)
    elif math.isfinite(seconds) and abs(seconds) < 2**63:
        fraction, whole = math.modf(seconds)
        milliseconds = int(whole) * 1000 + int(math.copysign(math.floor(abs(fraction) * 1000 + 0.5), fraction))
    else:
        milliseconds = None
    # In Prometheus, times outside its range overflow into other times; here they are an error.
    if milliseconds is None or not _MIN_TIME_MS <= milliseconds <= _MAX_TIME_MS:
        raise ValueError(f"cannot parse {quote(text)} to a valid timestamp")
    return milliseconds


def _date_ms(text: str) -> int | None:
    match = _DATE.fullmatch(text)
    if match is None:
        return None
    *parts, fraction, zone = match.groups()
    try:
        moment = datetime(*map(int, parts), tzinfo=_zone(zone))  # type: ignore[arg-type, misc]
    except ValueError:  # the 30th of February
        return None
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return since // timedelta(seconds=1) * 1000 + int((fraction or "0")[:3].ljust(3, "0"))


def _zone(text: str) -> timezone:
    if text == "Z":
        return UTC
    hours, minutes = int(text[1:3]), int(text[4:])
    if hours > 24 or minutes > 60:
        raise ValueError(text)
    away = timedelta(hours=hours, minutes=minutes)
    return timezone(-away if text[0] == "-" else away)


def parse_duration_ms(text: str) -> int:
    """Seconds, or `1h30m`; finer than a millisecond is cut off."""
    seconds = parse_float(text)
    if seconds is not None:
        if math.isnan(seconds) or not -_LONGEST_NS <= seconds * 1e9 <= _LONGEST_NS:
            raise ValueError(f"cannot parse {quote(text)} to a valid duration. It overflows int64")
        return int(seconds * 1e9 / 1e6)
    try:
        return parse_prometheus_duration(text)
    except ValueError:
        raise ValueError(f"cannot parse {quote(text)} to a valid duration") from None


def parse_bool(text: str) -> bool:
    """As `ParseBool`."""
    if text in ("1", "t", "T", "TRUE", "true", "True"):
        return True
    if text in ("0", "f", "F", "FALSE", "false", "False"):
        return False
    raise ValueError(f"strconv.ParseBool: parsing {quote(text)}: invalid syntax")


def nanosecond_text(time_ns: int | None) -> str:
    """As RFC3339Nano in UTC; None is Go's zero time."""
    if time_ns is None:
        return "0001-01-01T00:00:00Z"
    seconds, rest = divmod(time_ns, 1_000_000_000)
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    fraction = f".{rest:09d}".rstrip("0") if rest else ""
    return f"{text}{fraction}Z"


_UNESCAPE = re.compile(r"__|_([0-9a-fA-F]+)_|_")


def unescape_name(name: str) -> str:
    """`U__a_2e_b` as `a.b`: how a name that is not made of letters and digits stands in a path."""
    if not name.startswith("U__"):
        return name
    characters: list[str] = []
    rest, at = name[3:], 0
    while at < len(rest):
        match = _UNESCAPE.match(rest, at)
        if match is None:
            characters.append(rest[at])
            at += 1
        elif match.group() == "__":
            characters.append("_")
            at = match.end()
        else:
            code = int(match[1], 16) if match[1] and len(match[1]) <= 6 else -1
            if not 0 <= code <= 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                return name  # not an escaped name after all
            characters.append(chr(code))
            at = match.end()
    return "".join(characters)
