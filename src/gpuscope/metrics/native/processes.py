"""Native metrics of the processes on the GPUs: memory and activity, with their owners as labels."""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.metrics.native.devices import instance_name
from gpuscope.metrics.sample import LabelSet, MetricFamily, Sample
from gpuscope.readings import ABSENT, Process, Snapshot, Uuid

PROCESS_METRICS: tuple[tuple[str, str, str], ...] = (
    ("gpuscope_process_memory_bytes", "memory_bytes", "GPU memory the process holds."),
    ("gpuscope_process_sm_ratio", "sm_ratio", "Share of the SMs' time the process used."),
    ("gpuscope_process_memory_ratio", "memory_ratio", "Share of the memory's time the process used."),
    ("gpuscope_process_encoder_ratio", "encoder_ratio", "Share of the video encoder's time the process used."),
    ("gpuscope_process_decoder_ratio", "decoder_ratio", "Share of the video decoder's time the process used."),
    ("gpuscope_process_start_time_seconds", "started_at", "When the process started."),
)


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
        for name, attribute, help_text in PROCESS_METRICS:
            samples = [
                Sample(labels, value)
                for (_, labels), process in labelled
                if (value := getattr(process, attribute)) is not ABSENT
            ]
            yield MetricFamily(name, "gauge", help_text, samples)

    def _labels_of(self, process: Process, names: dict[Uuid, str]) -> tuple[tuple[object, ...], LabelSet]:
        uuid = process.gpu_uuid if process.instance_uuid is ABSENT else process.instance_uuid
        owner = process.owner
        gpu = names.get(uuid, "")
        key = (gpu, uuid, process.pid, process.kind, process.command, owner)
        known = self._labels.get(key)
        if known is None:
            texts = {
                "gpu": gpu,
                "uuid": uuid,
                "pid": str(process.pid),
                "type": process.kind,
                "command": process.command,
                "user": owner.user,
                "namespace": owner.namespace,
                "pod": owner.pod,
                "container": owner.container,
                "job": owner.job,
            }
            known = LabelSet((name, "" if text is ABSENT else text) for name, text in texts.items())
        return key, known
