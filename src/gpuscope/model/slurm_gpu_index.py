"""Maps Slurm's GPU indices of a node to GPUs and MIG instances, and compares node names.

Slurm counts a node's GPUs in the order of gres.conf. Without MIG that is the device's minor number. With MIG
each instance counts as one GPU, in the order of boards and instances, if Slurm has as many as the node. An
index that does not fit stays unknown: a wrong GPU would charge the wrong job. It is a leaf, because agent and
server both need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final, NamedTuple

_MIG_MODEL: Final = re.compile(r"\d+g\.\d+gb", re.ASCII)


class NumberedGpu(NamedTuple):
    """A GPU or MIG instance. `number` is the board's minor number, or its index if that is not known."""

    uuid: str
    number: int
    profile: str = ""  # of a MIG instance
    instance: tuple[int, int] = (-1, -1)  # GPU instance and compute instance


def gpus_by_slurm_index(gpus: Iterable[NumberedGpu], count_in_slurm: int | None) -> Mapping[int, NumberedGpu]:
    """`gpus` without the boards that are split. Empty if Slurm's indices cannot be mapped."""
    found = list(gpus)
    if not any(gpu.profile for gpu in found):
        return {gpu.number: gpu for gpu in found}
    if len(found) != count_in_slurm:
        return {}
    return dict(enumerate(sorted(found, key=lambda gpu: (gpu.number, gpu.instance))))


def is_of_model(gpu: NumberedGpu, model: str) -> bool:
    """Whether the GPU can be one of Slurm's type: MIG profiles are types such as `a100_3g.20gb`."""
    profile = _MIG_MODEL.search(model)
    return profile is None or profile[0] == gpu.profile.partition("+")[0]


def short_node_name(name: str) -> str:
    """The name without its domain, as most Slurm node names are: the key by which nodes are compared."""
    return name.partition(".")[0]
