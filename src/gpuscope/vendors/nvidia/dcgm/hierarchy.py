"""Maps DCGM's MIG entity numbers to GPUs and instances. Input: `dcgmi discovery -c`; output: one slot per
instance.

The number in `GPU-I 2` is DCGM's own and contains neither the GPU nor the driver's instance id; only this table
has both. A machine without MIG, or a DCGM without the command, has no slots.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_INSTANCE = re.compile(r"->\s*I (\d+)/(\d+)\s*\|[^|]*\(EntityID: (\d+)\)")
_COMPUTE = re.compile(r"->\s*CI (\d+)/(\d+)/(\d+)\s*\|[^|]*\(EntityID: (\d+)\)")


@dataclass(frozen=True, slots=True)
class MigSlot:
    """`entity` is dmon's number after GPU-I; `gpu` is DCGM's GPU id, the other ids are the driver's."""

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
