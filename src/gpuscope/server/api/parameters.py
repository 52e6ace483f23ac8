"""What a request asks: times, durations and selectors as Prometheus' API takes them, in query or form."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import parse_qsl

from starlette.requests import Request

from gpuscope.promql import BadQueryError, parse
from gpuscope.promql.syntax import VectorSelector
from gpuscope.store.series import Matcher

MOST_FORM_BYTES = 1 << 20
_UNITS_MS = {
    "ms": 1,
    "s": 1000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
    "y": 31_536_000_000,
}
_DURATION = re.compile(r"(?:(\d+)y)?(?:(\d+)w)?(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?\Z")
_LONGEST_MS = 2**62 // 1_000_000

STATUS_CODES = {
    "bad_data": 400,
    "execution": 422,
    "canceled": 499,
    "timeout": 503,
    "unavailable": 503,
    "internal": 500,
    "not_found": 404,
}


class ApiError(Exception):
    """An answer in Prometheus' error shape."""

    def __init__(self, error_type: str, message: str) -> None:
        super().__init__(message)
        self.error_type = error_type


def bad(name: str, message: object) -> ApiError:
    return ApiError("bad_data", f'invalid parameter "{name}": {message}')


@dataclass(frozen=True, slots=True)
class Parameters:
    pairs: Sequence[tuple[str, str]]

    def get(self, name: str, default: str = "") -> str:
        return next((value for key, value in self.pairs if key == name), default)

    def all(self, name: str) -> list[str]:
        return [value for key, value in self.pairs if key == name]

    def time_ms(self, name: str, default_ms: int | None = None) -> int:
        text = self.get(name)
        if not text:
            if default_ms is None:
                raise bad(name, 'cannot parse "" to a valid timestamp')
            return default_ms
        try:
            return parse_time_ms(text)
        except ValueError as error:
            raise bad(name, error) from None

    def optional_time_ms(self, name: str) -> int | None:
        return self.time_ms(name) if self.get(name) else None

    def duration_ms(self, name: str) -> int:
        try:
            return parse_duration_ms(self.get(name))
        except ValueError as error:
            raise bad(name, error) from None

    def seconds(self, name: str) -> float | None:
        """A duration that may be left out, in seconds."""
        return self.duration_ms(name) / 1000 if self.get(name) else None

    def limit(self) -> int | None:
        """The most results wanted; 0 and nothing mean all."""
        text = self.get("limit")
        if not text:
            return None
        if text.startswith("-"):
            raise bad("limit", "limit must be non-negative")
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            raise bad("limit", f"cannot parse {text!r} to a whole number")
        return int(text) or None

    def selectors(self, required: bool = False) -> list[list[Matcher]]:
        texts = self.all("match[]")
        if required and not texts:
            raise ApiError("bad_data", "no match[] parameter provided")
        return [parse_selector(text) for text in texts]


async def read_parameters(request: Request) -> Parameters:
    """Form before query, as Go's `FormValue`; a form too large is refused before it is read."""
    pairs: list[tuple[str, str]] = []
    if request.method == "POST":
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > MOST_FORM_BYTES:
                raise ApiError("bad_data", f"the form is larger than {MOST_FORM_BYTES} bytes")
        if request.headers.get("content-type", "").startswith("application/x-www-form-urlencoded"):
            pairs += parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True)
    pairs += request.query_params.multi_items()
    return Parameters(pairs)


def parse_time_ms(text: str) -> int:
    """Seconds since the epoch, or RFC 3339."""
    try:
        seconds = float(text)
    except ValueError:
        try:
            when = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"cannot parse {text!r} to a valid timestamp") from None
        if when.tzinfo is None:
            raise ValueError(f"cannot parse {text!r} to a valid timestamp: it lacks a time zone") from None
        seconds = when.timestamp()
    if not math.isfinite(seconds) or abs(seconds * 1000) > _LONGEST_MS:
        raise ValueError(f"cannot parse {text!r} to a valid timestamp")
    return round(seconds * 1000)


def parse_duration_ms(text: str) -> int:
    """Seconds, or Prometheus' `1h30m`."""
    try:
        milliseconds = float(text) * 1000
    except ValueError:
        match = _DURATION.match(text)
        if not match or not text:
            raise ValueError(f"cannot parse {text!r} to a valid duration") from None
        years, weeks, days, hours, minutes, seconds, millis = (int(group or 0) for group in match.groups())
        counts = {"y": years, "w": weeks, "d": days, "h": hours, "m": minutes, "s": seconds, "ms": millis}
        milliseconds = float(sum(_UNITS_MS[unit] * count for unit, count in counts.items()))
    if not math.isfinite(milliseconds) or abs(milliseconds) > _LONGEST_MS:
        raise ValueError(f"cannot parse {text!r} to a valid duration")
    return round(milliseconds)


def parse_selector(text: str) -> list[Matcher]:
    try:
        tree = parse(text)
    except BadQueryError as error:
        raise bad("match[]", error) from None
    if not isinstance(tree, VectorSelector):
        raise bad("match[]", f"{text!r} is not a series selector")
    return list(tree.matchers)
