"""`node_infiniband_*`: the ports of InfiniBand and RoCE adapters, as node_exporter has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from gpuscope.agent.families.host.infiniband_table import (
    COUNTERS,
    FOUR_BYTES,
    HW_COUNTERS,
    INFO_HELP,
    LEGACY_COUNTERS,
    LIFESPAN,
    PORT_GAUGES,
)
from gpuscope.model.exposition.number_text import go_float
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample
from gpuscope.model.readings import ABSENT
from gpuscope.model.readings.infiniband import InfinibandDevice, InfinibandPort, InfinibandReading

PREFIX = "node_infiniband_"
Labels = Callable[[tuple[tuple[str, str], ...]], LabelSet]


def infiniband_families(reading: InfinibandReading, labels_of: Labels) -> Iterator[MetricFamily]:
    """`labels_of` returns the same object for the same labels."""
    info: list[Sample] = []
    by_metric: dict[tuple[str, str], list[Sample]] = {}
    for device in sorted(reading.devices, key=lambda device: device.name):
        info.append(Sample(labels_of(_info_pairs(device)), 1))
        for port in sorted(device.ports, key=lambda port: port.port):
            labels = labels_of((("device", device.name), ("port", port.port)))
            for suffix, help_text, value in _port_values(port):
                by_metric.setdefault((suffix, help_text), []).append(Sample(labels, value))
    info.sort(key=lambda sample: sample.labels.pairs)
    yield MetricFamily(f"{PREFIX}info", "gauge", INFO_HELP, info, go_float)
    for (suffix, help_text), samples in by_metric.items():
        kind = "counter" if suffix.endswith("_total") else "gauge"
        yield MetricFamily(f"{PREFIX}{suffix}", kind, help_text, samples, go_float)


def _info_pairs(device: InfinibandDevice) -> tuple[tuple[str, str], ...]:
    return (
        ("board_id", device.board_id),
        ("device", device.name),
        ("firmware_version", device.firmware_version),
        ("hca_type", device.hca_type),
    )


def _port_values(port: InfinibandPort) -> Iterator[tuple[str, str, float]]:
    for attribute, (suffix, help_text) in PORT_GAUGES.items():
        value = getattr(port, attribute)
        if value is not ABSENT:
            yield suffix, help_text, value
    for counters, names in (
        (port.counters, COUNTERS),
        (port.legacy_counters, LEGACY_COUNTERS),
        (port.hw_counters, HW_COUNTERS),
    ):
        for name, count in counters.items():
            if name in names:
                yield *names[name], float(4 * count if name in FOUR_BYTES else count)
    if "lifespan" in port.hw_counters:
        yield *LIFESPAN, float(port.hw_counters["lifespan"] // 1000)
