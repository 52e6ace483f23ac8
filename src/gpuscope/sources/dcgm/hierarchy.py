"""Which MIG instance is which: `dcgmi discovery -c` goes in, one slot per GPU instance comes out.

The number in `GPU-I 2` is DCGM's own and says neither the GPU nor the driver's instance id; only this table
does. A machine without MIG, or a DCGM without the command, has no slots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_INSTANCE = re.compile(r"->\s*I (\d+)/(\d+)\s*\|[^|]*\(EntityID: (\d+)\)")
_COMPUTE = re.compile(r"->\s*CI (\d+)/(\d+)/(\d+)\s*\|[^|]*\(EntityID: (\d+)\)")


@dataclass(frozen=True, slots=True)
class MigSlot:
    """`entity` is the number dmon prints behind GPU-I; the other ids are DCGM's GPU and the driver's own."""

    entity: int
    gpu: int
    gpu_instance: int
    compute_instance: int = 0


def parse_hierarchy(text: str) -> tuple[MigSlot, ...]:
    slots: dict[tuple[int, int], MigSlot] = {}
    first_compute: dict[tuple[int, int], int] = {}
    for line in text.splitlines():
        if instance := _INSTANCE.search(line):
            gpu, gpu_instance, entity = map(int, instance.groups())
            slots[gpu, gpu_instance] = MigSlot(entity, gpu, gpu_instance)
        elif compute := _COMPUTE.search(line):
            gpu, gpu_instance, compute_instance, _ = map(int, compute.groups())
            first_compute.setdefault((gpu, gpu_instance), compute_instance)
    return tuple(
        MigSlot(slot.entity, slot.gpu, slot.gpu_instance, first_compute.get(key, 0))
        for key, slot in slots.items()
    )
