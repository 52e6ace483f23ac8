"""The energy of each GPU or MIG instance in one cycle.

A whole GPU has its own counter. A split one has only the board's, so the energy of an instance is an estimate:
the board's lowest power seen goes to the instances by their compute slices, what is above it by their activity.
Where the activity of one of them is not known, all of it goes by slices. Stranded slices keep their part.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from gpuscope.agent.owners.gpu_time import unit_weight
from gpuscope.agent.owners.gpu_units import GpuUnit, GpuUnits
from gpuscope.agent.owners.unit_work import instance_activity
from gpuscope.model.readings import ABSENT, Maybe, Uuid


class UnitEnergy:
    def __init__(self) -> None:
        self._lowest_watts: dict[Uuid, float] = {}

    def split(
        self, units: GpuUnits, gains: Mapping[Uuid, Maybe[float]], elapsed: float
    ) -> dict[Uuid, Maybe[float]]:
        """`gains` are the boards' joules in this cycle of `elapsed` seconds; the result is by unit."""
        found: dict[Uuid, Maybe[float]] = {}
        split_boards: dict[Uuid, dict[Uuid, GpuUnit]] = defaultdict(dict)
        for uuid, unit in units.items():
            if unit.instance_uuid is ABSENT:
                found[uuid] = gains.get(uuid, ABSENT)
            else:
                split_boards[unit.device.uuid][uuid] = unit
        for board, instances in split_boards.items():
            joules = gains.get(board, ABSENT)
            if joules is ABSENT:
                found.update(dict.fromkeys(instances, ABSENT))
            else:
                found.update(self._of_instances(board, instances, joules, elapsed))
        self._lowest_watts = {
            board: self._lowest_watts[board] for board in split_boards if board in self._lowest_watts
        }
        return found

    def _of_instances(
        self, board: Uuid, instances: Mapping[Uuid, GpuUnit], joules: float, elapsed: float
    ) -> dict[Uuid, Maybe[float]]:
        idle = 0.0
        if elapsed > 0 and joules > 0:  # 0: the counter was read for the first time, or started over
            watts = joules / elapsed
            self._lowest_watts[board] = min(self._lowest_watts.get(board, watts), watts)
            idle = self._lowest_watts[board] * elapsed
        weights = {uuid: unit_weight(unit) for uuid, unit in instances.items()}
        work = _work_shares(instances, weights)
        if work is None:
            parts = {uuid: joules * weight for uuid, weight in weights.items()}
        else:
            parts = {uuid: idle * weight + (joules - idle) * work[uuid] for uuid, weight in weights.items()}
        # An unknown profile has no weight; its energy is not 0 but not known.
        return {uuid: parts[uuid] if weight else ABSENT for uuid, weight in weights.items()}


def _work_shares(instances: Mapping[Uuid, GpuUnit], weights: Mapping[Uuid, float]) -> dict[Uuid, float] | None:
    """Each instance's part of the work on the board; None if it is not known, or if there is none."""
    work: dict[Uuid, float] = {}
    for uuid, unit in instances.items():
        activity = instance_activity(unit)
        if activity is ABSENT:
            return None
        work[uuid] = activity * weights[uuid]
    total = sum(work.values())
    return {uuid: one / total for uuid, one in work.items()} if total > 0 else None
