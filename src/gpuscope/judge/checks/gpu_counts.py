"""How GPUs are counted: one rule for `/api/live`, the page, `snapshot`, `top` and `free`.

A unit is what one owner can be given: a GPU that is not split, or a MIG instance of one that is. Each unit
counts once, by its state, however many processes, pods or jobs share it. It is in use if a process or an
allocation of a scheduler is on it, and free if its state is `idle`. Of a unit that is lost, gone or stale
nobody knows; it is neither.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from gpuscope.judge.checks.states import State


class CountedGpu(NamedTuple):
    """A GPU or a MIG instance."""

    node: str
    uuid: str
    parent: str
    """The UUID of an instance's GPU; empty for a GPU."""
    state: str
    is_in_use: bool


@dataclass(frozen=True, slots=True)
class GpuCounts:
    gpus: int
    """GPUs, split or not."""
    instances: int
    """MIG instances."""
    states: Counter[str]
    """Units by state."""
    in_use: int

    @property
    def units(self) -> int:
        return self.states.total()

    @property
    def free(self) -> int:
        return self.states[State.IDLE]


def count_gpus(rows: Iterable[CountedGpu]) -> GpuCounts:
    listed = list(rows)
    split = {(row.node, row.parent) for row in listed if row.parent}
    units = [row for row in listed if (row.node, row.uuid) not in split]
    return GpuCounts(
        gpus=sum(not row.parent for row in listed),
        instances=sum(bool(row.parent) for row in listed),
        states=Counter(str(row.state) for row in units),
        in_use=sum(row.is_in_use for row in units),
    )
