"""The processes that get their own series: the largest of each GPU or MIG instance; the others are summed.

Users control the number of processes, but must not control the number of series.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.model.readings import ABSENT, Device, Maybe, Process, Uuid, instance_name, unit_uuid

MAX_PER_UNIT: Final = 64
REST: Final = "other"
"""The `pid` label of the summed processes."""


@dataclass(frozen=True, slots=True)
class UnitProcesses:
    """The processes of one unit (a GPU or MIG instance): those with series, and the rest."""

    gpu: str  # "0", or "0_7_0" of an instance
    uuid: Uuid
    shown: tuple[Process, ...]
    rest: tuple[Process, ...] = ()

    @property
    def count(self) -> int:
        return len(self.shown) + len(self.rest)

    def rest_sum(self, reading: str) -> Maybe[float]:
        """The sum of a reading over the rest; ABSENT if none has it."""
        values = [value for process in self.rest if (value := getattr(process, reading)) is not ABSENT]
        return sum(values) if values else ABSENT


def unit_names(devices: Iterable[Device]) -> dict[Uuid, str]:
    """The `gpu` label of every GPU and instance by UUID."""
    names = {}
    for device in devices:
        names[device.uuid] = str(device.index)
        names.update((instance.uuid, instance_name(device, instance)) for instance in device.instances)
    return names


def processes_by_unit(processes: Iterable[Process], names: Mapping[Uuid, str]) -> list[UnitProcesses]:
    """Every unit with processes. A process on an unknown GPU is kept, with an empty `gpu` label."""
    on: dict[Uuid, list[Process]] = {}
    for process in processes:
        uuid = unit_uuid(process)
        on.setdefault(uuid, []).append(process)
    units = []
    for uuid, mine in on.items():
        if len(mine) > MAX_PER_UNIT:
            mine.sort(key=_size)
        shown, rest = tuple(mine[:MAX_PER_UNIT]), tuple(mine[MAX_PER_UNIT:])
        units.append(UnitProcesses(names.get(uuid, ""), uuid, shown, rest))
    return units


def _size(process: Process) -> tuple[float, int]:
    memory = process.memory_bytes
    return (1.0 if memory is ABSENT else -memory, int(process.pid))
