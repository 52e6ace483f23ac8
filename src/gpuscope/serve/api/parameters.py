"""Parameters of a request, from URL and form: times, durations and selectors as Prometheus' API reads them.

A missing parameter has a default or gives Prometheus' own error; of a repeated one the first counts, the form's
before the URL's. A pair that cannot be unescaped is ignored, except by endpoints that check `malformed`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from urllib.parse import unquote_to_bytes

from gpuscope.base.limits import LIMITS_REACHED, Limits
from gpuscope.base.time_text import parse_prometheus_duration
from gpuscope.history.promql import BadQueryError
from gpuscope.history.promql.ast_json import parse_selector
from gpuscope.history.promql.labels import quote
from gpuscope.history.store.series_pairs import predicate
from gpuscope.model.series import Matcher
from gpuscope.serve.http.messages import BodyTooLarge, ClientDisconnected, Request

# Numbers, times and durations as Go's standard library parses them, because Prometheus' API does.
#
# Python accepts more (` 1 `, `2024-01-01`): what Prometheus refuses is refused here too, or a client that
# works with us fails with a Prometheus. `ValueError` has Prometheus' message.

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


MAX_OTHER_PARAMETERS = 100
"""Of a request, beside its match[]."""
MAX_FORM_BYTES = 1 << 20
NO_MATCHER = "match[] must contain at least one non-empty matcher"

STATUS_CODES = {
    "bad_data": 400,
    "execution": 422,
    "canceled": 499,
    "timeout": 503,
    "internal": 500,
    "not_found": 404,
    "unavailable": 500,  # Prometheus 3.5 has no status of its own for it
}

Pairs = Sequence[tuple[str, str]]


class ApiError(Exception):
    """An answer in Prometheus' error shape."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


def bad(name: str, message: object) -> ApiError:
    return ApiError("bad_data", f'invalid parameter "{name}": {message}')


@dataclass(frozen=True, slots=True)
class Parameters:
    """`pairs` are the form's and then the URL's; `in_url` only those of the URL."""

    pairs: Pairs
    in_url: Pairs = ()
    malformed: str = ""
    max_selectors: int = Limits().query_max_selectors

    def get(self, name: str, default: str = "") -> str:
        for key, value in self.pairs:
            if key == name:
                return value
        return default

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]

    def from_url(self, name: str) -> str:
        """For the few parameters that Prometheus does not read from a form."""
        return next((value for key, value in self.in_url if key == name), "")

    def time_ms(self, name: str, default_ms: int | None = None) -> int:
        text = self.get(name)
        if not text and default_ms is not None:
            return default_ms
        try:
            return parse_time_ms(text)
        except ValueError as error:
            # A parameter that may be left out is named twice, as Prometheus does it.
            raise bad(
                name, error if default_ms is None else f"invalid time value for '{name}': {error}"
            ) from None

    def span_ms(self) -> tuple[int | None, int | None]:
        """`start` and `end`, both optional."""
        start, end = (self.time_ms(name, 0) if self.get(name) else None for name in ("start", "end"))
        return start, end

    def duration_ms(self, name: str) -> int:
        try:
            return parse_duration_ms(self.get(name))
        except ValueError as error:
            raise bad(name, error) from None

    def seconds(self, name: str) -> float | None:
        """An optional duration, in seconds."""
        return self.duration_ms(name) / 1000 if self.get(name) else None

    def lookback_ms(self) -> int | None:
        """None for the engine's default, as for zero and negative durations."""
        text = self.get("lookback_delta")
        if not text:
            return None
        try:
            length = parse_duration_ms(text)
        except ValueError as error:
            raise ApiError("bad_data", f"error parsing lookback delta duration: {error}") from None
        return length if length > 0 else None

    def limit(self) -> int | None:
        """The maximum number of results; None (0, or not given) is no limit."""
        text = self.get("limit")
        if not text:
            return None
        try:
            limit = parse_int(text)
        except ValueError as error:
            raise bad("limit", error) from None
        if limit < 0:
            raise bad("limit", "limit must be non-negative")
        return limit or None

    def number(self, name: str) -> int:
        """An optional limit; -1 if it is not given."""
        text = self.get(name)
        try:
            return parse_int(text) if text else -1
        except ValueError:
            raise ApiError("bad_data", f"{name} must be a number") from None

    def well_formed(self) -> None:
        if self.malformed:
            raise ApiError("bad_data", f"error parsing form values: {self.malformed}")

    def parsed_selectors(self) -> list[list[Matcher]]:
        """The matchers of each `match[]`. Not for the event loop: a thousand take a quarter of a second."""
        texts = self.all("match[]")
        if len(texts) > self.max_selectors:
            raise self._too_many(len(texts))
        return [parse_selector(text) for text in texts]

    def _too_many(self, count: int) -> ApiError:
        LIMITS_REACHED.count("query_max_selectors")
        return ApiError(
            "bad_data",
            f"{count} match[] parameters; at most {self.max_selectors} are read (query_max_selectors)",
        )

    def selectors(self) -> list[list[Matcher]]:
        """As `parsed_selectors`; each must select something."""
        try:
            selectors = self.parsed_selectors()
        except BadQueryError as error:
            raise ApiError("bad_data", str(error)) from None
        if any(all(predicate(matcher)("") for matcher in matchers) for matchers in selectors):
            raise ApiError("bad_data", NO_MATCHER)
        return selectors


async def read_parameters(request: Request, limits: Limits) -> Parameters:
    """Form before query, as Go's `FormValue`; a form too large is refused before it is read."""
    most = limits.query_max_selectors + MAX_OTHER_PARAMETERS
    pairs, malformed = parse_form(request.query, most)
    in_url = pairs
    if request.method in ("POST", "PUT"):
        body = await read_body(request)
        kind = request.header("content-type").partition(";")[0].strip().lower()
        if body and kind == "application/x-www-form-urlencoded":
            posted, problem = parse_form(body, most)
            pairs, malformed = [*posted, *pairs], problem or malformed
    return Parameters(pairs, in_url, malformed, limits.query_max_selectors)


async def read_body(request: Request) -> bytes:
    try:
        return await request.body.read(MAX_FORM_BYTES)
    except BodyTooLarge:
        raise ApiError("bad_data", f"the form is larger than {MAX_FORM_BYTES} bytes") from None
    except ClientDisconnected:
        raise ApiError("canceled", "the request ended early") from None


def parse_form(encoded: bytes, most: int) -> tuple[list[tuple[str, str]], str]:
    """The valid pairs, and the error of the first invalid one, as Go's `ParseQuery`."""
    if encoded.count(b"&") > most:  # a megabyte of them would keep the event loop for half a second
        LIMITS_REACHED.count("query_max_selectors")
        raise ApiError("bad_data", f"more than {most} parameters (query_max_selectors)")
    pairs: list[tuple[str, str]] = []
    problem = ""
    for part in encoded.split(b"&"):
        if b";" in part:
            problem = problem or "invalid semicolon separator in query"
            continue
        if not part:
            continue
        name, _, value = part.partition(b"=")
        if b"%" in part and (wrong := _bad_escape(name) or _bad_escape(value)):
            problem = problem or f"invalid URL escape {quote(wrong)}"
            continue
        pairs.append((_unescape(name), _unescape(value)))
    return pairs, problem


_BAD_ESCAPE = re.compile(rb"%(?![0-9A-Fa-f]{2}).{0,2}", re.DOTALL)


def _bad_escape(text: bytes) -> str:
    match = _BAD_ESCAPE.search(text)
    return match[0].decode("utf-8", "replace") if match else ""


def _unescape(text: bytes) -> str:
    # Bytes that are not UTF-8 stay recognisable: the parser and `quote` handle lone surrogates.
    if b"%" in text or b"+" in text:
        text = unquote_to_bytes(text.replace(b"+", b" "))
    return text.decode("utf-8", "surrogateescape")
