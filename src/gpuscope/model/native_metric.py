"""A native metric: name, type, help, and conversion to a family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Samples
from gpuscope.model.readings import ABSENT, Maybe

K = TypeVar("K", bound=tuple[str, ...])


@dataclass(frozen=True, slots=True)
class NativeMetric:
    name: str
    type: str
    reading: str
    help: str
    labels: tuple[str, ...] = ()
    unit: str = ""  # if the name does not end in it

    def family(self, samples: Samples) -> MetricFamily:
        return MetricFamily(self.name, self.type, self.help, samples)

    @property
    def unit_name(self) -> str:
        if self.unit:
            return self.unit
        stem = self.name.removesuffix("_total")
        for unit in ("bytes_per_second", "seconds", "bytes", "watts", "joules", "celsius", "hertz", "ratio"):
            if stem.endswith(unit):
                return unit
        return "count" if self.type == "counter" else ""


def gpu_gauge(name: str, reading: str, help_text: str, *labels: str, unit: str = "") -> NativeMetric:
    return NativeMetric(f"gpuscope_gpu_{name}", "gauge", reading, help_text, labels, unit)


def gpu_counter(name: str, reading: str, help_text: str, *labels: str) -> NativeMetric:
    return NativeMetric(f"gpuscope_gpu_{name}_total", "counter", reading, help_text, labels)


class LabelCache:
    """Makes families of labelled values; label sets of the last time are used again, with their text."""

    def __init__(self) -> None:
        self._known: dict[str, dict[tuple[str, ...], LabelSet]] = {}

    def family(self, row: NativeMetric, values: Mapping[K, Maybe[float]]) -> MetricFamily:
        """By label values, in the order of the row's labels; an absent value has no sample."""
        known, names = self._known.get(row.name, {}), row.labels
        used: dict[tuple[str, ...], LabelSet] = {}
        samples: list[tuple[LabelSet, float]] = []
        for texts, value in values.items():
            if value is ABSENT:
                continue
            labels = known.get(texts)
            if labels is None:
                labels = LabelSet(zip(names, texts, strict=True))
            used[texts] = labels
            samples.append((labels, value))
        self._known[row.name] = used
        return row.family(samples)
