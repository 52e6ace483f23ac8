"""Collects samples and sorts them like Go's client library: families, labels and series alphabetically."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gpuscope.model.exposition.number_text import go_float
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample


@dataclass(slots=True)
class _Family:
    type: str
    help: str
    samples: dict[tuple[tuple[str, str], ...], float] = field(default_factory=dict)


class GoRegistry:
    """Collects samples in any order; the first sample of a series is used."""

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
    """Returns the same label set for the same labels, so that its text is built once."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, str], ...], LabelSet] = {}

    def of(self, pairs: tuple[tuple[str, str], ...]) -> LabelSet:
        known = self._known.get(pairs)
        if known is None:
            if len(self._known) > 10_000:  # new processes keep appearing
                self._known.clear()
            known = self._known[pairs] = LabelSet(pairs)
        return known
