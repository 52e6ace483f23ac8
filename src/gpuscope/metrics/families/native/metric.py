"""A native metric: its name, type and help, and how it becomes a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpuscope.metrics.sample import LabelSet, MetricFamily, Sample, Samples
from gpuscope.readings import ABSENT, Maybe

K = TypeVar("K", bound=tuple[str, ...])


@dataclass(frozen=True, slots=True)
class NativeMetric:
    name: str
    type: str
    reading: str
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""  # where the name does not end in it

    def family(self, samples: Samples) -> MetricFamily:
        return MetricFamily(self.name, self.type, self.help, samples)

    def family_of(self, values: Mapping[K, Maybe[float]]) -> MetricFamily:
        """By label values, in the order of `labels`; an absent value has no sample."""
        names = self.labels
        samples = [
            Sample(LabelSet(zip(names, texts, strict=True)), value)
            for texts, value in values.items()
            if value is not ABSENT
        ]
        return self.family(samples)

    @property
    def unit_name(self) -> str:
        if self.unit:
            return self.unit
        stem = self.name.removesuffix("_total")
        for unit in ("bytes_per_second", "seconds", "bytes", "watts", "joules", "celsius", "hertz", "ratio"):
            if stem.endswith(unit):
                return unit
        return "count" if self.type == "counter" else ""
