"""What a GPU-hour costs: one rate for all, or by model; per hour held, per hour used or per kilowatt-hour.

A rate is text such as `2.5`, `H100=2.5,A100=1.2,*=1` or `0.3/kWh`. A word matches the models that contain it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from gpuscope.base.errors import UsageError

Basis = Literal["held", "used", "kWh"]


@dataclass(frozen=True, slots=True)
class Rates:
    basis: Basis
    by_model: tuple[tuple[str, float], ...]
    """Word in the model's name and price; `*` is every other model."""
    text: str

    def price(self, model: str) -> float | None:
        for word, price in self.by_model:
            if word == "*" or word.lower() in model.lower():
                return price
        return None


def parse_rates(text: str, basis: str = "held", origin: str = "--rate") -> Rates:
    """UsageError, naming `origin`, if the text is not a rate."""
    number, slash, unit = text.partition("/")
    if slash and unit.lower() != "kwh":
        raise UsageError(f"{origin}: {text!r} is per {unit!r}; a rate is per GPU-hour, or `/kWh`")
    rows = []
    for part in number.split(","):
        word, equals, price = part.rpartition("=")
        try:
            rows.append((word.strip() if equals else "*", float(price)))
        except ValueError:
            raise UsageError(f"{origin}: {part!r} is not a price; for example 2.5 or H100=2.5,*=1") from None
        if not 0 <= rows[-1][1] < math.inf:
            raise UsageError(f"{origin}: {part!r} is below 0 or not a number")
    if basis not in ("held", "used"):
        raise UsageError(f"{origin}-basis: {basis!r} is neither held nor used")
    rows.sort(key=lambda row: row[0] == "*")
    return Rates("kWh" if slash else "used" if basis == "used" else "held", tuple(rows), text)


def parse_co2_factor(text: str, origin: str = "--co2") -> float:
    """Grams per kWh."""
    try:
        grams = float(text)
    except ValueError:
        grams = math.nan
    if not 0 <= grams < math.inf:
        raise UsageError(f"{origin}: {text!r} is not a number of grams per kWh; for example 475")
    return grams
