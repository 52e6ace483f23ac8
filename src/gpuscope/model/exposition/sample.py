"""Metric families with their samples, before they are encoded as text.

A `LabelSet` is created once per GPU, process or owner and shared by all its metrics, so that its text is
escaped once. Order matters: compat families keep the order of the exporter they replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from gpuscope.model.readings import ABSENT, Maybe

# The text of a sample value, in the styles of the exporters that the families replace.

NumberStyle = Callable[[float | int], str]

SMALLEST_PLAIN_EXPONENT = -4
FIRST_LARGE_EXPONENT = 6

_NOT_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def native_number(value: float | int) -> str:
    """The shortest text that parses to the same number; integers without a decimal point."""
    text = repr(value)
    return text[:-2] if text.endswith(".0") else _NOT_FINITE.get(text, text)


def fixed_decimals(decimals: int) -> NumberStyle:
    """Integers without a decimal point, floats with this many decimals; 6 is Go's %f."""

    def text(value: float | int) -> str:
        return str(value) if isinstance(value, int) else f"{value:.{decimals}f}"

    return text


# Most numbers are 0, 1 or unchanged since the last cycle. 128 entries have a hit rate of 78 %, 4096 of 80 %,
# but they take thousands of cycles to fill, which looks like a memory leak.
@lru_cache(maxsize=512)
def go_float(value: float | int) -> str:
    """Go's `strconv.FormatFloat(v, 'g', -1, 64)`: `4000`, `1.98e+09`, `1e-05`.

    Python's repr has the same digits, but other rules for the exponent.
    """
    number = float(value)
    if number != number:
        return "NaN"
    if number in (float("inf"), float("-inf")):
        return "+Inf" if number > 0 else "-Inf"
    if number == 0:
        return "0"  # also for -0, as in Prometheus' Go library
    sign = "-" if number < 0 else ""
    digits, exponent = _shortest_digits(abs(number))
    if exponent < SMALLEST_PLAIN_EXPONENT or exponent >= FIRST_LARGE_EXPONENT:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{sign}{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    fraction = digits[exponent + 1 :]
    return f"{sign}{whole}.{fraction}" if fraction else sign + whole


def _shortest_digits(number: float) -> tuple[str, int]:
    """The significant digits and the exponent of the first: ("125", -2) for 0.0125."""
    mantissa, _, power = repr(number).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    significant = digits.lstrip("0")
    exponent = len(whole) - 1 - (len(digits) - len(significant)) + int(power or 0)
    return significant.rstrip("0") or "0", exponent


class LabelSet:
    """Label pairs in output order. The encoder stores their text in `text`."""

    __slots__ = ("_extended", "_hash", "pairs", "text")

    def __init__(self, pairs: Iterable[tuple[str, str]] = ()) -> None:
        self.pairs = tuple(pairs)
        self.text: str | None = None
        self._hash = hash(self.pairs)
        self._extended: dict[object, LabelSet] | None = None  # most sets are never extended

    @classmethod
    def of(cls, labels: Mapping[str, str]) -> LabelSet:
        return cls(labels.items())

    def plus(self, names: tuple[str, ...], values: str | tuple[str, ...]) -> LabelSet:
        """These labels followed by more; equal arguments return the same object, which keeps its text."""
        if self._extended is None:
            self._extended = {}
        known = self._extended.get((names, values))
        if known is None:
            if len(self._extended) > 1000:  # hostile label values must not fill the memory
                self._extended.clear()
            more = zip(names, (values,) if isinstance(values, str) else values, strict=True)
            known = self._extended[names, values] = LabelSet((*self.pairs, *more))
        return known

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, LabelSet) and self.pairs == other.pairs)

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"LabelSet({dict(self.pairs)!r})"


NO_LABELS = LabelSet()


def label_texts(names: Iterable[str], texts: Iterable[Maybe[str]]) -> LabelSet:
    """Labels from names and values; an absent value becomes an empty label value."""
    return LabelSet((name, "" if text is ABSENT else text) for name, text in zip(names, texts, strict=True))


class Sample(NamedTuple):
    labels: LabelSet
    value: float | int


Samples = Sequence[tuple[LabelSet, float | int]]
"""A plain tuple is a sample too: creating thousands of NamedTuples each second takes too long."""


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric with all its samples. `type`: gauge, counter, info, untyped, histogram, summary."""

    name: str
    type: str
    help: str
    samples: Samples
    number: NumberStyle = native_number


def single_metric(name: str, kind: str, help_text: str, value: float) -> MetricFamily:
    """One sample without labels."""
    return MetricFamily(name, kind, help_text, [Sample(NO_LABELS, value)])


def metric_by(label: str, name: str, kind: str, help_text: str, values: Mapping[str, float]) -> MetricFamily:
    """A sample for each value of a label, in their order."""
    return MetricFamily(
        name, kind, help_text, [Sample(LabelSet(((label, key),)), values[key]) for key in sorted(values)]
    )
