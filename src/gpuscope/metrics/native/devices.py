"""Native metrics of GPUs and MIG instances: the catalogue's rows over every device of a snapshot."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter

from gpuscope.metrics.catalogue.native import COUNTER_METRICS, GPU_METRICS, NativeMetric
from gpuscope.metrics.sample import LabelSet, MetricFamily, Sample
from gpuscope.readings import ABSENT, Counters, Device, MigInstance, Snapshot, Uuid
from gpuscope.readings.throttle import THROTTLE_REASONS

# One attrgetter call reads all rows of a thing at once; a MIG instance simply has fewer of them.
_INSTANCE_METRICS = tuple(row for row in GPU_METRICS if row.reading in MigInstance.__dataclass_fields__)
_read_device = attrgetter(*(row.reading for row in GPU_METRICS))
_read_instance = attrgetter(*(row.reading for row in _INSTANCE_METRICS))
_read_counters = attrgetter(*(row.reading for row in COUNTER_METRICS))


def instance_name(device: Device, instance: MigInstance) -> str:
    """`0_7_0`: GPU index, GPU instance, compute instance."""
    return f"{device.index}_{instance.gpu_instance}_{instance.compute_instance}"


class DeviceMetrics:
    """Turns devices into families; remembers each device's label set from cycle to cycle."""

    def __init__(self) -> None:
        self._labels: dict[tuple[str, Uuid], LabelSet] = {}

    def labels(self, gpu: str, uuid: Uuid) -> LabelSet:
        known = self._labels.get((gpu, uuid))
        if known is None:
            known = self._labels[gpu, uuid] = LabelSet((("gpu", gpu), ("uuid", uuid)))
        return known

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        self._forget_gone(snapshot.devices)
        yield _info(snapshot)
        yield _mig_info(snapshot)
        up = [Sample(self._of(device), 0 if device.lost else 1) for device in snapshot.devices]
        yield MetricFamily("gpuscope_gpu_up", "gauge", "0 if the GPU is known but does not answer.", up)
        yield from self._catalogue_families(snapshot)
        yield self._throttle_reasons(snapshot.devices)
        yield from self._xids(snapshot)

    def _of(self, device: Device) -> LabelSet:
        return self.labels(str(device.index), device.uuid)

    def _forget_gone(self, devices: Sequence[Device]) -> None:
        if len(self._labels) > 4 * sum(1 + len(device.instances) for device in devices) + 64:
            self._labels.clear()

    def _catalogue_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        samples: dict[str, list[Sample]] = {row.name: [] for row in (*GPU_METRICS, *COUNTER_METRICS)}
        for device in snapshot.devices:
            labels = self._of(device)
            _add(samples, GPU_METRICS, labels, _read_device(device))
            counters = snapshot.counters.get(device.uuid, Counters())
            _add(samples, COUNTER_METRICS, labels, _read_counters(counters))
            for instance in device.instances:
                labels = self.labels(instance_name(device, instance), instance.uuid)
                _add(samples, _INSTANCE_METRICS, labels, _read_instance(instance))
        for row in (*GPU_METRICS, *COUNTER_METRICS):
            yield MetricFamily(row.name, row.type, row.help, samples[row.name])

    def _throttle_reasons(self, devices: Sequence[Device]) -> MetricFamily:
        samples = [
            Sample(self._of(device).plus(("reason",), reason), 1 if device.throttle_reasons & bit else 0)
            for device in devices
            if device.throttle_reasons is not ABSENT
            for reason, bit in THROTTLE_REASONS.items()
        ]
        help_text = "1 while this reason holds the clocks back."
        return MetricFamily("gpuscope_gpu_throttle_reason", "gauge", help_text, samples)

    def _xids(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        index = {device.uuid: str(device.index) for device in snapshot.devices}
        counts, times = [], []
        for total in snapshot.xids:
            labels = self.labels(index.get(total.gpu_uuid, ""), total.gpu_uuid).plus(("xid",), str(total.xid))
            counts.append(Sample(labels, total.count))
            times.append(Sample(labels, total.last_at))
        yield MetricFamily(
            "gpuscope_gpu_xid_errors_total", "counter", "XID errors by code, each counted once.", counts
        )
        yield MetricFamily(
            "gpuscope_gpu_xid_last_timestamp_seconds",
            "gauge",
            "When this XID was last seen on this GPU.",
            times,
        )


def _add(
    samples: dict[str, list[Sample]], rows: Sequence[NativeMetric], labels: LabelSet, values: tuple[object, ...]
) -> None:
    for row, value in zip(rows, values, strict=True):
        if value is ABSENT:
            continue
        if row.labels:
            into = samples[row.name]
            for key, number in value.items():  # type: ignore[attr-defined]  # rows with labels read mappings
                into.append(Sample(labels.plus(row.labels, key), number))
        else:
            samples[row.name].append(Sample(labels, value))  # type: ignore[arg-type]  # the others read numbers


def _info(snapshot: Snapshot) -> MetricFamily:
    driver = snapshot.driver
    samples = []
    for device in snapshot.devices:
        texts = {
            "gpu": str(device.index),
            "uuid": device.uuid,
            "model": device.model,
            "node": snapshot.node,
            "driver_version": driver.driver_version,
            "cuda_version": driver.cuda_version,
            "simulated": "true" if snapshot.simulated else "false",
            "pci_bus_id": device.pci_bus_id,
            "serial": device.serial,
            "brand": device.brand,
            "architecture": device.architecture,
            "compute_capability": device.compute_capability,
            "vbios_version": device.vbios_version,
        }
        labels = ((name, "" if text is ABSENT else text) for name, text in texts.items())
        samples.append(Sample(LabelSet(labels), 1))
    return MetricFamily("gpuscope_gpu_info", "info", "A GPU and what it is; the value is always 1.", samples)


def _mig_info(snapshot: Snapshot) -> MetricFamily:
    samples = [
        Sample(
            LabelSet(
                (
                    ("gpu", instance_name(device, instance)),
                    ("uuid", instance.uuid),
                    ("parent_uuid", device.uuid),
                    ("gpu_instance", str(instance.gpu_instance)),
                    ("compute_instance", str(instance.compute_instance)),
                    ("profile", "" if instance.profile is ABSENT else instance.profile),
                )
            ),
            1,
        )
        for device in snapshot.devices
        for instance in device.instances
    ]
    help_text = "A MIG instance, its GPU and its profile; the value is always 1."
    return MetricFamily("gpuscope_mig_info", "info", help_text, samples)
