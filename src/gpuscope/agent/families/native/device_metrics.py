"""Native metrics of GPUs and MIG instances: the table's rows for every device of a snapshot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from gpuscope.agent.families.native.table import (
    COUNTER_METRICS,
    GPU_INFO,
    GPU_METRICS,
    GPU_UP,
    INSTANCE_TREND_METRICS,
    MIG_INFO,
    THROTTLE_REASON,
    TREND_METRICS,
    XID_AGE,
    XID_ERRORS,
    XID_LAST,
    NativeMetric,
)
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, Sample, label_texts
from gpuscope.model.readings import ABSENT, NO_TREND, Counters, Device, Maybe, MigInstance, Snapshot, Uuid
from gpuscope.model.readings.throttle import THROTTLE_REASONS

Pair = tuple[LabelSet, float | int]


class _MetricRows:
    """The selected rows for one kind of reading, all read by a single call."""

    __slots__ = ("read", "rows")

    def __init__(self, rows: Iterable[NativeMetric], only: MetricSelection) -> None:
        self.rows = tuple(row for row in rows if row.name in only)
        self.read: Callable[[object], tuple[Any, ...]] = _reader([row.reading for row in self.rows])


def _reader(readings: Sequence[str]) -> Callable[[object], tuple[Any, ...]]:
    if len(readings) > 1:
        return attrgetter(*readings)
    # attrgetter returns no tuple for one name, and needs at least one.
    return lambda thing: tuple(getattr(thing, reading) for reading in readings)


def instance_name(device: Device, instance: MigInstance) -> str:
    """`0_7_0`: GPU index, GPU instance, compute instance."""
    return f"{device.index}_{instance.gpu_instance}_{instance.compute_instance}"


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
    """N of /dev/nvidiaN: Slurm's number of the GPU, which need not be nvidia-smi's index."""
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
        self._gpu_rows = _MetricRows(GPU_METRICS, only)
        self._counter_rows = _MetricRows(COUNTER_METRICS, only)
        self._trend_rows = _MetricRows(TREND_METRICS, only)
        self._device_rows = (*self._gpu_rows.rows, *self._counter_rows.rows, *self._trend_rows.rows)
        # A MIG instance has fewer of them.
        of_instances = (row for row in GPU_METRICS if row.reading in MigInstance.__dataclass_fields__)
        self._instance_rows = _MetricRows(of_instances, only)
        self._instance_trend_rows = _MetricRows(INSTANCE_TREND_METRICS, only)
        self._rows_of_instances = (*self._instance_rows.rows, *self._instance_trend_rows.rows)
        self._labels: dict[tuple[str, Uuid], LabelSet] = {}
        self._kept: dict[LabelSet, _Kept] = {}
        self._reasons: dict[LabelSet, tuple[int | None, list[Pair]]] = {}
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
        if MIG_INFO.name in self._only:
            yield _mig_info(snapshot)
        if GPU_UP.name in self._only:
            up = [Sample(self._of(device), 0 if device.lost else 1) for device in snapshot.devices]
            yield GPU_UP.family(up)
        yield from self._catalogue_families(snapshot)
        if THROTTLE_REASON.name in self._only:
            yield self._throttle_reasons(snapshot.devices)
        yield from (family for family in self._xids(snapshot) if family.name in self._only)

    def _info(self, snapshot: Snapshot) -> MetricFamily:
        driver = snapshot.driver
        simulated = "true" if snapshot.simulated else "false"
        infos: dict[tuple[Maybe[str], ...], LabelSet] = {}
        for device in snapshot.devices:
            texts = (
                str(device.index), device.uuid, device.model, snapshot.node, driver.driver_version,
                driver.cuda_version, simulated, device.pci_bus_id, device.serial, device.brand,
                device.architecture, device.compute_capability, device.vbios_version, _minor(device),
            )  # fmt: skip
            infos[texts] = self._infos.get(texts) or label_texts(GPU_INFO.labels, texts)
        self._infos = infos
        return GPU_INFO.family([(labels, 1) for labels in infos.values()])

    def _of(self, device: Device) -> LabelSet:
        return self.labels(str(device.index), device.uuid)

    def _forget_gone(self, devices: Sequence[Device]) -> None:
        if len(self._labels) > 4 * sum(1 + len(device.instances) for device in devices) + 64:
            self._labels.clear()
            self._kept.clear()
            self._reasons.clear()

    def _catalogue_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        samples: dict[str, list[Pair]] = {row.name: [] for row in self._device_rows}
        for device in snapshot.devices:
            counters = snapshot.counters.get(device.uuid, Counters())
            trend = snapshot.trends.get(device.uuid, NO_TREND)
            values = self._gpu_rows.read(device) + self._counter_rows.read(counters)
            values += self._trend_rows.read(trend)
            self._keep(self._device_rows, self._of(device)).add_to(samples, values)
            for instance in device.instances:
                labels = self.labels(instance_name(device, instance), instance.uuid)
                trend = snapshot.trends.get(instance.uuid, NO_TREND)
                values = self._instance_rows.read(instance) + self._instance_trend_rows.read(trend)
                self._keep(self._rows_of_instances, labels).add_to(samples, values)
        for row in self._device_rows:
            yield row.family(samples[row.name])

    def _keep(self, rows: Sequence[NativeMetric], labels: LabelSet) -> _Kept:
        known = self._kept.get(labels)
        if known is None:
            known = self._kept[labels] = _Kept(rows, labels)
        return known

    def _throttle_reasons(self, devices: Sequence[Device]) -> MetricFamily:
        samples: list[Pair] = []
        for device in devices:
            if device.throttle_reasons is not ABSENT:
                samples += self._reasons_of(device.throttle_reasons, self._of(device))
        return THROTTLE_REASON.family(samples)

    def _reasons_of(self, mask: int, labels: LabelSet) -> list[Pair]:
        known, samples = self._reasons.get(labels, (None, []))
        if mask != known:
            samples = [
                (labels.plus(("reason",), reason), 1 if mask & bit else 0)
                for reason, bit in THROTTLE_REASONS.items()
            ]
            self._reasons[labels] = mask, samples
        return samples

    def _xids(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        index = {device.uuid: str(device.index) for device in snapshot.devices}
        counts, ages, times = [], [], []
        for total in snapshot.xids:
            labels = self.labels(index.get(total.gpu_uuid, ""), total.gpu_uuid).plus(("xid",), str(total.xid))
            counts.append(Sample(labels, total.count))
            times.append(Sample(labels, total.last_at))
            if snapshot.monotonic is not ABSENT and total.last_monotonic is not ABSENT:
                ages.append(Sample(labels, float(max(0, int(snapshot.monotonic - total.last_monotonic)))))
        yield XID_ERRORS.family(counts)
        yield XID_AGE.family(ages)
        yield XID_LAST.family(times)


def _mig_info(snapshot: Snapshot) -> MetricFamily:
    samples = []
    for device in snapshot.devices:
        for instance in device.instances:
            texts = (
                instance_name(device, instance), instance.uuid, device.uuid, str(instance.gpu_instance),
                str(instance.compute_instance), instance.profile,
            )  # fmt: skip
            samples.append(Sample(label_texts(MIG_INFO.labels, texts), 1))
    return MIG_INFO.family(samples)
