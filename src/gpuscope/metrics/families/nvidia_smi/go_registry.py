"""Samples in the order in which Go's client library writes them: families, labels, series, by the alphabet."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuscope.metrics.go_float import go_float
from gpuscope.metrics.sample import LabelSet, MetricFamily, Sample


@dataclass(slots=True)
class _Family:
    type: str
    help: str
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


class Collected:
    """Collects samples in any order; of a series that is given twice, the first counts."""

    def __init__(self) -> None:
        self._families: dict[str, _Family] = {}

    def add(
        self,
        name: str,
        help_text: str,
        value: float,
        labels: Iterable[tuple[str, str]] = (),
        kind: str = "gauge",
    ) -> None:
        family = self._families.get(name)
        if family is None:
            family = self._families[name] = _Family(kind, help_text)
        family.samples.setdefault(tuple(sorted(labels)), value)

    def families(self, label_sets: LabelSets) -> list[MetricFamily]:
        return [
            MetricFamily(
                name,
                family.type,
                family.help,
                [Sample(label_sets.of(pairs), value) for pairs, value in sorted(family.samples.items())],
                go_float,
            )
            for name, family in sorted(self._families.items())
        ]


class LabelSets:
    """The same label set for the same labels, so that its text is made once and not once a cycle."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, str], ...], LabelSet] = {}

    def of(self, pairs: tuple[tuple[str, str], ...]) -> LabelSet:
        known = self._known.get(pairs)
        if known is None:
            if len(self._known) > 10_000:  # processes come and go
                self._known.clear()
            known = self._known[pairs] = LabelSet(pairs)
        return known
