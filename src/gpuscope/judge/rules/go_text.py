"""Values as Go prints them in messages of promtool and in Prometheus' API."""

from __future__ import annotations

import math
import re
from decimal import Decimal

from gpuscope.history.promql.labels import quote
from gpuscope.model.series import Labels

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def exponent_text(value: float) -> str:
    """As `FormatFloat(value, 'e', -1, 64)`: the value of an alert is `1e+00`."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    sign, digits, exponent = Decimal(repr(value)).as_tuple()
    shortest = "".join(map(str, digits)).rstrip("0") or "0"
    power = len(digits) - 1 + int(exponent) if value else 0
    fraction = f".{shortest[1:]}" if len(shortest) > 1 else ""
    return f"{'-' if sign else ''}{shortest[0]}{fraction}e{'-' if power < 0 else '+'}{abs(power):02d}"


def labels_text(labels: Labels) -> str:
    """`{a="b", c="d"}`, the metric name included."""
    pairs = (f"{name if _PLAIN_NAME.fullmatch(name) else quote(name)}={quote(value)}" for name, value in labels)
    return "{" + ", ".join(pairs) + "}"
