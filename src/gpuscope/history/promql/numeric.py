"""Functions of one number: rounding, logarithms, trigonometry, clamping, formatting."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal

import numpy as np

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
