"""Prometheus' number formats: `1.235M`, `1.177Mi`, `2d 3h 4m 5s`, `12.35%`, times; of numbers or texts."""

from __future__ import annotations

import math

from gpuscope.base.time_text import parse_prometheus_duration
from gpuscope.judge.rules.templates.go_format import float_text
from gpuscope.judge.rules.templates.go_time import SECOND, GoDuration, GoTime
from gpuscope.judge.rules.templates.template_literals import parse_go_float
from gpuscope.judge.rules.templates.template_values import FunctionFailed, GoValue, go_type

_SMALL = ("m", "u", "n", "p", "f", "a", "z", "y")
_MAX_INT64 = 1 << 63


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
    for one in prefixes:
        if abs(value) < base:
            break
        prefix = one
        value /= base
    return _digits(value) + prefix


def _grow(value: float, unit: str = "") -> str:
    prefix = ""
    for one in _SMALL:
        if abs(value) >= 1:
            break
        prefix = one
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
