"""Family `sessions`: five `gpu_*` metrics of the processes on each GPU; existing users fix names and labels.

An unknown label is empty. `gpu` is `0`, or `0_7_0` for a MIG instance (GPU, GPU instance, compute instance). An
idle GPU or instance has a count of 0; a GPU with instances has no count. `gpu_memory` is a label, so a process
gets a new series whenever its memory changes: suitable for a textfile, not for a long history.
"""

from __future__ import annotations

from collections.abc import Iterator

from gpuscope.agent.families import FamilySpec
from gpuscope.agent.families.unit_processes import REST, UnitProcesses, processes_by_unit, unit_names
from gpuscope.model.exposition.sample import NO_LABELS, LabelSet, MetricFamily, Sample
from gpuscope.model.readings import ABSENT, UNKNOWN, Device, Maybe, Process, Snapshot, Uuid

MIB = 1 << 20
_INFO_HELP = 'A process on a GPU; the value is 1, or how many pid="other" stands for.'


class SessionsBuilder:
    def to_families(self, snapshot: Snapshot) -> Iterator[MetricFamily]:
        if snapshot.processes is ABSENT:
            return  # unknown, which is not zero sessions
        names = unit_names(snapshot.devices)
        units = processes_by_unit(snapshot.processes, names)
        yield MetricFamily("gpu_process_info", "gauge", _INFO_HELP, list(_info(units)))
        counts = _counts(snapshot.devices, units)
        yield MetricFamily(
            "gpu_session_count",
            "gauge",
            "Processes on the GPU or the MIG instance.",
            [Sample(LabelSet((("gpu", gpu),)), count) for gpu, count in counts.items()],
        )
        yield MetricFamily(
            "gpu_total_sessions",
            "gauge",
            "Processes on all GPUs; one on two GPUs counts twice.",
            [Sample(NO_LABELS, sum(unit.count for unit in units))],
        )
        yield MetricFamily(
            "gpu_process_utilization",
            "gauge",
            "SM time the process used, percent.",
            [
                Sample(_labels(process, unit), _percent(process.sm_ratio))
                for unit in units
                for process in unit.shown
                if process.sm_ratio is not ABSENT
            ],
        )
        memory = _memory_totals(snapshot.devices)
        yield MetricFamily(
            "gpu_process_memory_utilization",
            "gauge",
            "Memory of the GPU or the MIG instance the process holds, percent.",
            [
                Sample(_labels(process, unit), _percent(process.memory_bytes / total))
                for unit in units
                if (total := memory.get(unit.uuid, ABSENT)) is not ABSENT and total > 0
                for process in unit.shown
                if process.memory_bytes is not ABSENT
            ],
        )


def _percent(ratio: float) -> float:
    return round(100 * ratio, 2)


def _labels(process: Process, unit: UnitProcesses) -> LabelSet:
    owner = process.owner
    return LabelSet(
        (
            ("gpu", unit.gpu),
            ("pid", str(process.pid)),
            ("command", _text(process.command)),
            ("pod", _text(owner.pod)),
            ("namespace", _text(owner.namespace)),
            ("container", _text(owner.container)),
        )
    )


def _info(units: list[UnitProcesses]) -> Iterator[Sample]:
    for unit in units:
        for process in unit.shown:
            more = (("status", process.state), ("gpu_memory", _mebibytes(process.memory_bytes)))
            yield Sample(LabelSet((*_labels(process, unit).pairs, *more)), 1)
        if unit.rest:
            yield Sample(_rest_labels(unit), len(unit.rest))


def _rest_labels(unit: UnitProcesses) -> LabelSet:
    empty = [(name, "") for name in ("command", "pod", "namespace", "container")]
    memory = _mebibytes(unit.rest_sum("memory_bytes"))
    return LabelSet((("gpu", unit.gpu), ("pid", REST), *empty, ("status", UNKNOWN), ("gpu_memory", memory)))


def _mebibytes(count: Maybe[float]) -> str:
    return "" if count is ABSENT else f"{int(count // MIB)}MiB"


def _text(value: Maybe[str]) -> str:
    return "" if value is ABSENT else value


def _counts(devices: tuple[Device, ...], units: list[UnitProcesses]) -> dict[str, int]:
    names = unit_names(devices)
    counts: dict[str, int] = {}
    for device in devices:
        split = bool(device.instances) or device.is_split
        if not device.lost:
            here = device.instances if split else (device,)
            counts.update((names[part.uuid], 0) for part in here if part.processes_known)
    for unit in units:
        counts[unit.gpu] = counts.get(unit.gpu, 0) + unit.count
    return counts


def _memory_totals(devices: tuple[Device, ...]) -> dict[Uuid, Maybe[float]]:
    totals: dict[Uuid, Maybe[float]] = {}
    for device in devices:
        totals[device.uuid] = device.memory_total_bytes
        totals.update((instance.uuid, instance.memory_total_bytes) for instance in device.instances)
    return totals


FAMILY = FamilySpec(
    name="sessions",
    summary="gpu_process_info, gpu_session_count and three more: who is on which GPU",
    build=lambda settings: SessionsBuilder(),
)
