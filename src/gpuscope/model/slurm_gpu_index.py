"""Maps Slurm's GPU indices of a node to GPUs and their instances, and compares node names.

Slurm counts a node's GPUs in the order of gres.conf. That is the device's minor number. Of split GPUs
each instance counts as one GPU, in the order of boards and instances, if Slurm has as many as the node. An
index that does not fit stays unknown: a wrong GPU would charge the wrong job. It is a leaf, because agent and
server both need it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from gpuscope.model.vendor import vendors


class NumberedGpu(NamedTuple):
    """A GPU or an instance. `number` is the board's minor number, or its index if that is not known."""

    uuid: str
    number: int
    profile: str = ""  # of an instance
    instance: tuple[int, ...] = ()  # its ids


def gpus_by_slurm_index(gpus: Iterable[NumberedGpu], count_in_slurm: int | None) -> Mapping[int, NumberedGpu]:
    """`gpus` without the boards that are split. Empty if Slurm's indices cannot be mapped."""
    units = list(gpus)
    if not any(gpu.profile for gpu in units):
        return {gpu.number: gpu for gpu in units}
    if len(units) != count_in_slurm:
        return {}
    return dict(enumerate(sorted(units, key=lambda gpu: (gpu.number, gpu.instance))))


def is_of_model(gpu: NumberedGpu, model: str) -> bool:
    """Whether the GPU can be one of Slurm's type: profiles are types such as `a100_3g.20gb`."""
    profile = _profiles().search(model)
    return profile is None or profile[0] == gpu.profile.partition("+")[0]


@cache
def _profiles() -> re.Pattern[str]:
    patterns = [vendor.profile_pattern for vendor in vendors().values() if vendor.profile_pattern]
    return re.compile("|".join(patterns) or r"(?!)", re.ASCII)


def short_node_name(name: str) -> str:
    """The name without its domain, as most Slurm node names are: the key by which nodes are compared."""
    return name.partition(".")[0]
