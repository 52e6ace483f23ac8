"""Which processes get series of their own: the largest of each GPU or instance, the rest counted together.

How many processes there are is up to users; how many series there are must not be.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscope.metrics.families.native.device_metrics import instance_name
from gpuscope.readings import ABSENT, Device, Maybe, Process, Uuid, unit_uuid

MAX_PER_PLACE: Final = 64
REST: Final = "other"
"""The `pid` of what was put together: no PID is a word."""


@dataclass(frozen=True, slots=True)
class OnPlace:
    """The processes of one GPU or MIG instance: the largest first, and what did not fit."""

    gpu: str  # "0", or "0_7_0" of an instance
    uuid: Uuid
    shown: tuple[Process, ...]
    rest: tuple[Process, ...] = ()

    @property
    def count(self) -> int:
        return len(self.shown) + len(self.rest)

    def rest_sum(self, reading: str) -> Maybe[float]:
        """A number of all the rest together; ABSENT where none of them has it."""
        values = [value for process in self.rest if (value := getattr(process, reading)) is not ABSENT]
        return sum(values) if values else ABSENT


def place_names(devices: Iterable[Device]) -> dict[Uuid, str]:
    """Every GPU and instance by UUID, with the `gpu` label it goes by."""
    names = {}
    for device in devices:
        names[device.uuid] = str(device.index)
        names.update((instance.uuid, instance_name(device, instance)) for instance in device.instances)
    return names


def by_place(processes: Iterable[Process], names: Mapping[Uuid, str]) -> list[OnPlace]:
    """Every place with processes. One on a GPU nobody knows is kept, under an empty `gpu`."""
    on: dict[Uuid, list[Process]] = {}
    for process in processes:
        uuid = unit_uuid(process)
        on.setdefault(uuid, []).append(process)
    places = []
    for uuid, mine in on.items():
        if len(mine) > MAX_PER_PLACE:
            mine.sort(key=_size)
        shown, rest = tuple(mine[:MAX_PER_PLACE]), tuple(mine[MAX_PER_PLACE:])
        places.append(OnPlace(names.get(uuid, ""), uuid, shown, rest))
    return places


def _size(process: Process) -> tuple[float, int]:
    memory = process.memory_bytes
    return (1.0 if memory is ABSENT else -memory, int(process.pid))
