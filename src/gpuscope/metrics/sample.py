"""What goes out: metric families with their samples, before anything is text.

A `LabelSet` is made once per thing and used for all its metrics, so that its text is escaped once, not once
per sample and cycle. Order matters: compat families repeat the order of the exporter they replace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscope.readings import ABSENT, Maybe


class LabelSet:
    """Label pairs in the order they are written. `text` belongs to the encoder, which fills it once."""

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
        """These labels and more behind them; the same object for the same question, which keeps its text."""
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
    """Labels for names and texts one by one; of an absent text the label stays, with an empty value."""
    return LabelSet((name, "" if text is ABSENT else text) for name, text in zip(names, texts, strict=True))


class Sample(NamedTuple):
    labels: LabelSet
    value: float | int


Samples = Sequence[tuple[LabelSet, float | int]]
"""A plain pair is a sample too: where thousands are made each second, the name costs more than the pair."""


NumberStyle = Callable[[float | int], str]


_NOT_FINITE = {"nan": "NaN", "inf": "+Inf", "-inf": "-Inf"}


def native_number(value: float | int) -> str:
    """Shortest text that reads back as the same number; whole numbers without a point."""
    text = repr(value)
    return text[:-2] if text.endswith(".0") else _NOT_FINITE.get(text, text)


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """One metric name with all its samples. `type`: gauge, counter, info, untyped, histogram, summary."""

    name: str
    type: str
    help: str
    samples: Samples
    number: NumberStyle = native_number
