"""What a GPU-hour costs: one rate for all, or by model; per hour held, per hour used or per kilowatt-hour.

A rate is text such as `2.5`, `H100=2.5,A100=1.2,*=1` or `0.3/kWh`. A word matches the models that contain it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuscope.errors import UsageError

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


def parse_rates(text: str, basis: str = "held") -> Rates:
    number, slash, unit = text.partition("/")
    if slash and unit.lower() != "kwh":
        raise UsageError(f"--rate: {text!r} is per {unit!r}; a rate is per GPU-hour, or `/kWh`")
    rows = []
    for part in number.split(","):
        word, equals, price = part.rpartition("=")
        try:
            rows.append((word.strip() if equals else "*", float(price)))
        except ValueError:
            raise UsageError(f"--rate: {part!r} is not a price; for example 2.5 or H100=2.5,*=1") from None
        if rows[-1][1] < 0:
            raise UsageError(f"--rate: {part!r} is below 0")
    if basis not in ("held", "used"):
        raise UsageError(f"--rate-basis: {basis!r} is neither held nor used")
    return Rates("kWh" if slash else basis, tuple(sorted(rows, key=lambda row: row[0] == "*")), text)  # type: ignore[arg-type]
