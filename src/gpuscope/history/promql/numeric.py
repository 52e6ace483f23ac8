"""Functions of one number: rounding, logarithms, trigonometry, clamping, formatting, calendar fields."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from gpuscope.history.promql.frame import Bools, Floats

SIMPLE: dict[str, Callable[[Floats], Floats]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "cos": np.cos,
    "cosh": np.cosh,
    "deg": lambda values: values * 180 / np.pi,
    "exp": np.exp,
    "floor": np.floor,
    "ln": np.log,
    "log10": np.log10,
    "log2": np.log2,
    "rad": lambda values: values * np.pi / 180,
    "sgn": lambda values: np.where(values < 0, -1.0, np.where(values > 0, 1.0, values)),
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}


def round_to(values: Floats, nearest: Floats) -> Floats:
    """Round to the nearest multiple, ties upwards; computing with the inverse avoids errors for 0.1."""
    inverse = 1.0 / nearest
    rounded: Floats = np.floor(values * inverse + 0.5) / inverse
    return rounded


def clamp(values: Floats, present: Bools, low: Floats, high: Floats) -> tuple[Floats, Bools]:
    """Clamp between `low` and `high` (one per step); a step where low > high has no result."""
    clamped = _maximum(low, _minimum(high, values))
    return clamped, present & ~(high < low)


def _minimum(bound: Floats, values: Floats) -> Floats:
    # An infinite bound takes precedence even over NaN.
    either = (bound == -np.inf) | (values == -np.inf)
    return np.where(either, -np.inf, np.minimum(bound, values))


def _maximum(bound: Floats, values: Floats) -> Floats:
    either = (bound == np.inf) | (values == np.inf)
    return np.where(either, np.inf, np.maximum(bound, values))


def number_text(value: float) -> str:
    """Return the shortest decimal that parses to `value`, without an exponent."""
    if np.isnan(value):
        return "NaN"
    if np.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    text = format(Decimal(repr(value)), "f")
    return text.removesuffix(".0")


# Date functions: convert seconds since 1970 to a field of the UTC calendar.
#
# NaN, infinities and seconds beyond 64 bits give the same fields as in Prometheus: Go converts them to the
# smallest integer, whose date is 4 December of the year 292277026596, 15:30.

_MAX_SECONDS = 2.0**63
_OUT_OF_RANGE = {
    "day_of_month": 4.0,
    "day_of_week": 0.0,
    "day_of_year": 339.0,
    "days_in_month": 31.0,
    "hour": 15.0,
    "minute": 30.0,
    "month": 12.0,
    "year": 292_277_026_596.0,
}
Instants = NDArray[np.datetime64]


def calendar_field(name: str, seconds: Floats) -> Floats:
    known = np.abs(seconds) < _MAX_SECONDS
    whole = np.where(known, seconds, 0.0).astype(np.int64)  # rounds towards zero, as Go does
    result = _FIELDS[name](whole.astype("datetime64[s]")).astype(np.float64)
    return np.where(known, result, _OUT_OF_RANGE[name])


def _days(instants: Instants) -> NDArray[np.int64]:
    return instants.astype("datetime64[D]").astype(np.int64)


def _day_of_month(instants: Instants) -> NDArray[np.int64]:
    month = instants.astype("datetime64[M]")
    return _days(instants) - month.astype("datetime64[D]").astype(np.int64) + 1


def _day_of_year(instants: Instants) -> NDArray[np.int64]:
    year = instants.astype("datetime64[Y]")
    return _days(instants) - year.astype("datetime64[D]").astype(np.int64) + 1


def _days_in_month(instants: Instants) -> NDArray[np.int64]:
    month = instants.astype("datetime64[M]")
    following = (month + 1).astype("datetime64[D]").astype(np.int64)
    return following - month.astype("datetime64[D]").astype(np.int64)


_FIELDS: dict[str, Callable[[Instants], NDArray[np.int64]]] = {
    "day_of_month": _day_of_month,
    "day_of_week": lambda instants: (_days(instants) + 4) % 7,  # 1970 began on a Thursday; Sunday is 0
    "day_of_year": _day_of_year,
    "days_in_month": _days_in_month,
    "hour": lambda instants: instants.astype("datetime64[h]").astype(np.int64) % 24,
    "minute": lambda instants: instants.astype("datetime64[m]").astype(np.int64) % 60,
    "month": lambda instants: instants.astype("datetime64[M]").astype(np.int64) % 12 + 1,
    "year": lambda instants: instants.astype("datetime64[Y]").astype(np.int64) + 1970,
}
CALENDAR = frozenset(_FIELDS)
