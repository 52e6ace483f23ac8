"""Native metrics of the processes on the GPUs: memory and activity, with their owners as labels."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.metrics.catalogue.native import PROCESS_LABELS, PROCESS_METRICS
from gpuscope.metrics.native.devices import instance_name
from gpuscope.metrics.sample import LabelSet, MetricFamily, Sample, label_texts
from gpuscope.readings import ABSENT, Process, Snapshot, Uuid


class ProcessMetrics:
    def __init__(self) -> None:
        self._labels: dict[tuple[object, ...], LabelSet] = {}

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        if snapshot.processes is ABSENT:
            return
        names = {device.uuid: str(device.index) for device in snapshot.devices}
        names |= {i.uuid: instance_name(device, i) for device in snapshot.devices for i in device.instances}
        labelled = [(self._labels_of(process, names), process) for process in snapshot.processes]
        self._labels = {key: labels for (key, labels), _ in labelled}
        for row in PROCESS_METRICS:
            yield row.family(
                [
                    Sample(labels, value)
                    for (_, labels), process in labelled
                    if (value := getattr(process, row.reading)) is not ABSENT
                ]
            )

    def _labels_of(self, process: Process, names: dict[Uuid, str]) -> tuple[tuple[object, ...], LabelSet]:
        uuid = process.gpu_uuid if process.instance_uuid is ABSENT else process.instance_uuid
        owner = process.owner
        gpu = names.get(uuid, "")
        key = (gpu, uuid, process.pid, process.kind, process.command, owner)
        known = self._labels.get(key)
        if known is None:
            texts = (
                gpu, uuid, str(process.pid), process.kind, process.command, owner.user, owner.namespace,
                owner.pod, owner.container, owner.job,
            )  # fmt: skip
            known = label_texts(PROCESS_LABELS, texts)
        return key, known
