"""MIG instances from two outputs: `-L` has their UUIDs and profiles, `-q` the rest.

The two are joined by the parent GPU and the MIG device's index. An instance in only one of them (created or
destroyed in between) is left out until the next cycle.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpuscope.model.readings import Instance, Uuid
from gpuscope.vendors.nvidia.nvidia_smi.query_text import LoggedMig
from gpuscope.vendors.nvidia.nvidia_values import make_instance

_GPU = re.compile(r"GPU ([0-9]{1,9}): .*\(UUID: (GPU-[0-9A-Za-z-]+)\)\s*\Z")
_MIG = re.compile(r"\s+MIG (\S+)\s+Device\s+([0-9]{1,9}): \(UUID: (MIG-[0-9A-Za-z/-]+)\)\s*\Z")


@dataclass(frozen=True, slots=True)
class ListedMig:
    index: int
    profile: str
    uuid: Uuid


@dataclass(frozen=True, slots=True)
class ListedGpu:
    index: int
    migs: tuple[ListedMig, ...]


def parse_list(text: str) -> dict[Uuid, ListedGpu]:
    """GPUs of `-L` by UUID, without lost GPUs, for which nvidia-smi prints an error."""
    gpus: dict[Uuid, ListedGpu] = {}
    parent: Uuid | None = None
    for line in text.split("\n"):
        if (gpu := _GPU.match(line)) is not None:
            parent = Uuid(gpu[2])
            gpus.setdefault(parent, ListedGpu(int(gpu[1]), ()))
        elif parent is not None and (mig := _MIG.match(line)) is not None:
            known = gpus[parent]
            gpus[parent] = ListedGpu(known.index, (*known.migs, ListedMig(int(mig[2]), mig[1], Uuid(mig[3]))))
    return gpus


def to_instances(listed: Sequence[ListedMig], logged: Sequence[LoggedMig]) -> tuple[Instance, ...]:
    by_index = {mig.index: mig for mig in listed}
    return tuple(
        make_instance(
            uuid=by_index[mig.index].uuid,
            gpu_instance=mig.gpu_instance,
            compute_instance=mig.compute_instance,
            profile=by_index[mig.index].profile,
            **mig.readings,
        )
        for mig in logged
        if mig.index in by_index
    )
