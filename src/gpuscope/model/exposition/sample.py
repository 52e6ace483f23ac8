"""Metric families with their samples, before they are encoded as text.

A `LabelSet` is created once per GPU, process or owner and shared by all its metrics, so that its text is
escaped once. Order matters: compat families keep the order of the exporter they replace.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from gpuscope.model.exposition.number_text import NumberStyle, native_number
from gpuscope.model.readings import ABSENT, Maybe


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
