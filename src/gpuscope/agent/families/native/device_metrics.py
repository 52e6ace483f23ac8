"""Native metrics of GPUs and their instances: the table's rows for every device of a snapshot.

A device has the rows of every GPU and those of its vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from gpuscope.agent.families.native.table import (
    COUNTER_METRICS,
    ERROR_METRICS,
    GPU_INFO,
    GPU_METRICS,
    GPU_UP,
    INSTANCE_INFOS,
    INSTANCE_TREND_METRICS,
    THROTTLE_REASON,
    TREND_METRICS,
    NativeMetric,
)
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, label_texts
from gpuscope.model.readings import (
    ABSENT,
    NO_TREND,
    Counters,
    Device,
    Instance,
    Maybe,
    Snapshot,
    Uuid,
    instance_name,
)
from gpuscope.model.vendor import UNLABELLED, vendors

Pair = tuple[LabelSet, float | int]


class _MetricRows:
    """The selected rows for one kind of reading, all read by a single call."""

    __slots__ = ("read", "rows")

    def __init__(self, rows: Iterable[NativeMetric], only: MetricSelection) -> None:
        self.rows = tuple(row for row in rows if row.name in only)
        self.read: Callable[[object], tuple[Any, ...]] = _reader([row.reading for row in self.rows])


def _reader(readings: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    """`power_watts`, `vendor_values.fabric_state`, or a number of a mapping: `engine_active_ratio.sm`."""
    attributes = [_attribute(reading) for reading in readings]
    keys = [reading[len(attribute) + 1 :] for reading, attribute in zip(readings, attributes, strict=True)]
    keyed = [(place, key) for place, key in enumerate(keys) if key]
    # attrgetter returns no tuple for one name, and needs at least one.
    get = attrgetter(*attributes) if len(attributes) > 1 else None

    def read(thing: object) -> tuple[Any, ...]:
        values = [attrgetter(name)(thing) for name in attributes] if get is None else list(get(thing))
        for place, key in keyed:
            values[place] = values[place].get(key, ABSENT)
        return tuple(values)

    return read if get is None or keyed else get


def _attribute(reading: str) -> str:
    return ".".join(reading.split(".")[: 2 if reading.startswith("vendor_values.") else 1])


class _VendorRows:
    """The selected rows of one vendor's GPUs, and of their instances, which have fewer."""

    def __init__(self, vendor: Maybe[str], only: MetricSelection) -> None:
        of_vendors = {
            row: name for name, known in vendors().items() for row in (*known.link_metrics, *known.metrics)
        }
        rows = [row for row in GPU_METRICS if of_vendors.get(row, vendor) == vendor]
        self.of_gpu = _MetricRows((*rows, THROTTLE_REASON), only)
        self.of_counters = _MetricRows(COUNTER_METRICS, only)
        self.of_trend = _MetricRows(TREND_METRICS, only)
        self.gpu_rows = (*self.of_gpu.rows, *self.of_counters.rows, *self.of_trend.rows)
        of_instances = (row for row in rows if row.reading.split(".")[0] in Instance.__dataclass_fields__)
        self.of_instance = _MetricRows(of_instances, only)
        self.of_instance_trend = _MetricRows(INSTANCE_TREND_METRICS, only)
        self.instance_rows = (*self.of_instance.rows, *self.of_instance_trend.rows)


class _Kept:
    """The samples of a GPU or instance by row. A row whose reading is the same object as in the last cycle
    keeps its samples: the slow tiers have most of the rows and repeat their readings for a minute."""

    __slots__ = ("_labels", "_rows", "_samples", "_values")

    def __init__(self, rows: Sequence[NativeMetric], labels: LabelSet) -> None:
        self._rows = rows
        self._labels = labels
        self._values: tuple[Any, ...] = (ABSENT,) * len(rows)
        self._samples: list[list[Pair]] = [[] for _ in rows]

    def add_to(self, samples: dict[str, list[Pair]], values: tuple[Any, ...]) -> None:
        kept = self._samples
        for place, (row, value, before) in enumerate(zip(self._rows, values, self._values, strict=True)):
            if value is not before:
                kept[place] = _to_samples(row, self._labels, value)
            if kept[place]:
                samples[row.name] += kept[place]
        self._values = values


def _minor(device: Device) -> Maybe[str]:
    """That of the device file: Slurm's number of the GPU, which need not be its index."""
    return ABSENT if device.minor_number is ABSENT else str(device.minor_number)


def _to_samples(row: NativeMetric, labels: LabelSet, value: Any) -> list[Pair]:
    if value is ABSENT:
        return []
    if not row.labels:
        return [(labels, value)]
    names, plus = row.labels, labels.plus
    return [(plus(names, key), number) for key, number in value.items()]


class DeviceMetrics:
    """Converts devices to families; keeps each device's labels and samples between cycles."""

    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only
        every_row = (*GPU_METRICS, *COUNTER_METRICS, *TREND_METRICS, THROTTLE_REASON)
        self._families = tuple(row for row in every_row if row.name in only)
        self._rows: dict[Maybe[str], _VendorRows] = {}
        self._labels: dict[tuple[str, Uuid], LabelSet] = {}
        self._kept: dict[LabelSet, _Kept] = {}
        self._infos: dict[tuple[Maybe[str], ...], LabelSet] = {}

    def labels(self, gpu: str, uuid: Uuid) -> LabelSet:
        known = self._labels.get((gpu, uuid))
        if known is None:
            known = self._labels[gpu, uuid] = LabelSet((("gpu", gpu), ("uuid", uuid)))
        return known

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        self._forget_gone(snapshot.devices)
        if GPU_INFO.name in self._only:
            yield self._info(snapshot)
        for vendor, info in INSTANCE_INFOS.items():
            if info.name in self._only:
                yield _instance_info(info, vendor, snapshot)
        if GPU_UP.name in self._only:
            up = [Sample(self._of(device), 0 if device.lost else 1) for device in snapshot.devices]
            yield GPU_UP.family(up)
        yield from self._catalogue_families(snapshot)
        yield from (family for family in self._errors(snapshot) if family.name in self._only)

    def _info(self, snapshot: Snapshot) -> MetricFamily:
        simulated = "true" if snapshot.simulated else "false"
        infos: dict[tuple[Maybe[str], ...], LabelSet] = {}
        for device in snapshot.devices:
            driver = snapshot.driver_of(device.vendor)
            texts: tuple[Maybe[str], ...] = (
                str(device.index), device.uuid, device.model, snapshot.node, driver.driver_version,
                driver.library_versions.get("cuda", ABSENT), simulated, device.pci_bus_id, device.serial,
                device.brand, device.architecture, device.compute_capability, device.vbios_version,
                _minor(device),
            )  # fmt: skip
            names = GPU_INFO.labels
            if device.vendor not in (ABSENT, UNLABELLED):
                texts, names = (*texts, device.vendor), (*names, "vendor")
            infos[texts] = self._infos.get(texts) or label_texts(names, texts)
        self._infos = infos
        return GPU_INFO.family([(labels, 1) for labels in infos.values()])

    def _of(self, device: Device) -> LabelSet:
        return self.labels(str(device.index), device.uuid)

    def _forget_gone(self, devices: Sequence[Device]) -> None:
        if len(self._labels) > 4 * sum(1 + len(device.instances) for device in devices) + 64:
            self._labels.clear()
            self._kept.clear()

    def _catalogue_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        samples: dict[str, list[Pair]] = {row.name: [] for row in self._families}
        for device in snapshot.devices:
            rows = self._rows.get(device.vendor)
            if rows is None:
                rows = self._rows[device.vendor] = _VendorRows(device.vendor, self._only)
            counters = snapshot.counters.get(device.uuid, Counters())
            trend = snapshot.trends.get(device.uuid, NO_TREND)
            values = rows.of_gpu.read(device) + rows.of_counters.read(counters) + rows.of_trend.read(trend)
            self._keep(rows.gpu_rows, self._of(device)).add_to(samples, values)
            for instance in device.instances:
                labels = self.labels(instance_name(device, instance), instance.uuid)
                trend = snapshot.trends.get(instance.uuid, NO_TREND)
                values = rows.of_instance.read(instance) + rows.of_instance_trend.read(trend)
                self._keep(rows.instance_rows, labels).add_to(samples, values)
        for row in self._families:
            yield row.family(samples[row.name])

    def _keep(self, rows: Sequence[NativeMetric], labels: LabelSet) -> _Kept:
        known = self._kept.get(labels)
        if known is None:
            known = self._kept[labels] = _Kept(rows, labels)
        return known

    def _errors(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        index = {device.uuid: str(device.index) for device in snapshot.devices}
        for vendor, metrics in ERROR_METRICS.items():
            counts, ages, times = [], [], []
            for error in snapshot.errors:
                if error.vendor != vendor:
                    continue
                of_gpu = self.labels(index.get(error.gpu_uuid, ""), error.gpu_uuid)
                labels = of_gpu.plus(metrics.total.labels, error.code)
                counts.append(Sample(labels, error.count))
                times.append(Sample(labels, error.last_at))
                if snapshot.monotonic is not ABSENT and error.last_monotonic is not ABSENT:
                    ages.append(Sample(labels, float(max(0, int(snapshot.monotonic - error.last_monotonic)))))
            yield metrics.total.family(counts)
            yield metrics.age.family(ages)
            yield metrics.last.family(times)


def _instance_info(info: NativeMetric, vendor: str, snapshot: Snapshot) -> MetricFamily:
    samples = []
    for device in snapshot.devices:
        for instance in device.instances if device.vendor == vendor else ():
            texts = (
                instance_name(device, instance), instance.uuid, device.uuid, *map(str, instance.ids),
                instance.profile,
            )  # fmt: skip
            samples.append(Sample(label_texts(info.labels, texts), 1))
    return info.family(samples)
