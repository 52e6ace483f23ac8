"""A native metric: name, type, help, and conversion to a family."""

from __future__ import annotations

from dataclasses import dataclass

from gpuscope.metrics.sample import MetricFamily, Samples


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
