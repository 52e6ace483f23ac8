"""Native metrics of the processes on the GPUs: memory and activity, with their owners as labels.

The 64 largest of each GPU have their own series; the others are summed under `pid="other"`. A process whose
owner lookup is not finished is counted but has no series yet, because a later change of labels would start a
new series.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from gpuscope.agent.families.native.table import (
    GPU_PROCESSES,
    PROCESS_INFO,
    PROCESS_LABELS,
    PROCESS_METRICS,
    PROCESS_WORK_METRICS,
)
from gpuscope.agent.families.selection import EVERY_METRIC, MetricSelection
from gpuscope.agent.families.unit_processes import REST, UnitProcesses, processes_by_unit, unit_names
from gpuscope.model.exposition.sample import LabelSet, MetricFamily, label_texts
from gpuscope.model.readings import (
    ABSENT,
    ACTIVE,
    IDLE,
    UNKNOWN,
    Device,
    Maybe,
    Process,
    ProcessLabels,
    Snapshot,
    Uuid,
    unit_uuid,
)

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")
_NOT_SUMMABLE = {"started_at", "age_seconds", "idle_since", "idle_seconds", "active"}
"""A sum of times has no meaning, and a sum of `active` would not be 0 or 1."""
_SUMMABLE = frozenset(row.reading for row in PROCESS_METRICS) - _NOT_SUMMABLE

_STATES = (ACTIVE, IDLE, UNKNOWN)


class ProcessMetrics:
    def __init__(self, only: MetricSelection = EVERY_METRIC) -> None:
        self._only = only
        self._rows = [row for row in PROCESS_METRICS if row.name in only]
        self._work_rows = [row for row in PROCESS_WORK_METRICS if row.name in only]
        self._labels: dict[tuple[object, ...], LabelSet] = {}
        self._info: dict[tuple[object, ...], LabelSet] = {}
        self._state_labels: dict[tuple[str, Uuid], tuple[LabelSet, ...]] = {}

    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        if snapshot.processes is ABSENT:
            return
        names = unit_names(snapshot.devices)
        units = processes_by_unit((process for process in snapshot.processes if process.looked_up), names)
        labelled = [(self._labels_of(process, unit), process) for unit in units for process in unit.shown]
        rest = [(_rest_labels(unit), unit) for unit in units if unit.rest]
        self._labels = {key: labels for (key, labels), _ in labelled}  # drops ended processes
        if PROCESS_INFO.name in self._only:
            yield self._info_family(units)
        for row in self._rows:
            samples = [
                (labels, value)
                for (_, labels), process in labelled
                if (value := getattr(process, row.reading)) is not ABSENT
            ]
            if row.reading in _SUMMABLE:
                samples += [
                    (labels, value)
                    for labels, unit in rest
                    if (value := unit.rest_sum(row.reading)) is not ABSENT
                ]
            yield row.family(samples)
        for row in self._work_rows:
            yield row.family(
                [
                    (labels, value)
                    for (_, labels), process in labelled
                    if (value := getattr(process.work, row.reading)) is not ABSENT
                ]
            )
        if GPU_PROCESSES.name in self._only:
            yield self._counts(snapshot.devices, snapshot.processes, names)

    def _counts(
        self, devices: Iterable[Device], processes: Iterable[Process], names: dict[Uuid, str]
    ) -> MetricFamily:
        """The number of processes by state, with 0 for a GPU without processes."""
        counts: dict[Uuid, Counter[str]] = {}
        for device in devices:
            if not device.lost:
                for part in device.instances or (device,):
                    if part.processes_known:
                        counts[part.uuid] = Counter()
        for process in processes:
            uuid = unit_uuid(process)
            counts.setdefault(uuid, Counter())[process.state] += 1
        known, self._state_labels = self._state_labels, {}
        samples = []
        for uuid, by_state in counts.items():
            key = names.get(uuid, ""), uuid
            labels = self._state_labels[key] = known.get(key) or tuple(
                LabelSet((("gpu", key[0]), ("uuid", uuid), ("state", state))) for state in _STATES
            )
            samples += [(one, by_state[state]) for one, state in zip(labels, _STATES, strict=True)]
        return GPU_PROCESSES.family(samples)

    def _info_family(self, units: list[UnitProcesses]) -> MetricFamily:
        info: dict[tuple[object, ...], LabelSet] = {}
        for unit in units:
            for process in unit.shown:
                key = (unit.gpu, unit.uuid, process.pid, process.owner, process.program)
                info[key] = self._info.get(key) or _info_labels(process, unit)
        self._info = info
        return PROCESS_INFO.family([(labels, 1) for labels in info.values()])

    def _labels_of(self, process: Process, unit: UnitProcesses) -> tuple[tuple[object, ...], LabelSet]:
        shown = process.labels
        if shown is ABSENT:
            shown = ProcessLabels(process.kind, process.command, process.owner)
        key = (unit.gpu, unit.uuid, process.pid, shown)
        known = self._labels.get(key)
        if known is None:
            owner = shown.owner
            texts = (
                unit.gpu, unit.uuid, str(process.pid), shown.kind, shown.command, owner.user,
                owner.namespace, owner.pod, owner.container, owner.job,
            )  # fmt: skip
            known = label_texts(PROCESS_LABELS, texts)
        return key, known


def _info_labels(process: Process, unit: UnitProcesses) -> LabelSet:
    owner = process.owner
    texts = (
        unit.gpu, unit.uuid, str(process.pid), owner.group, owner.container_id, owner.image, owner.pod_uid,
        owner.job_step, owner.job_array, owner.job_account, owner.job_partition, process.program,
    )  # fmt: skip
    return LabelSet((*label_texts(PROCESS_INFO.labels, texts).pairs, *pod_label_pairs(owner.pod_labels)))


def pod_label_pairs(labels: Maybe[Iterable[tuple[str, str]]]) -> list[tuple[str, str]]:
    """As kube-state-metrics writes them: `label_` and the name, with `_` for what a label name cannot have."""
    pairs: dict[str, str] = {}
    for name, value in () if labels is ABSENT else labels:
        pairs.setdefault("label_" + _NOT_IN_A_NAME.sub("_", name), value)
    return list(pairs.items())


def _rest_labels(unit: UnitProcesses) -> LabelSet:
    known = {"gpu": unit.gpu, "uuid": unit.uuid, "pid": REST}
    return LabelSet((name, known.get(name, "")) for name in PROCESS_LABELS)
