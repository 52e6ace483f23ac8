"""The account of one owner on one GPU or MIG instance: seconds, work and energy since it was first seen.

GPU-seconds are weighted: a shared GPU is split, a MIG instance counts by its slices. They are either busy, or
unknown, or neither; a stretch of at least 15 minutes without work counts as idle, from its beginning. Busy is
SM time; `gpu_work` says what work is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuscope.agent.owners.gpu_units import plus
from gpuscope.agent.owners.unit_work import OwnerPart
from gpuscope.model.readings import ABSENT, Maybe, Uuid

IDLE_STRETCH_SECONDS: Final = 900.0
"""Shorter pauses are not idle: a checkpoint, an evaluation, reading the output of a notebook."""


@dataclass(slots=True)
class OwnerAccount:
    gpu_uuid: Uuid
    instance_uuid: Maybe[Uuid]
    here_at: float
    """The last cycle in which the owner held the unit, monotonic."""
    held_seconds: float = 0.0
    gpu_seconds: float = 0.0
    busy_seconds: Maybe[float] = ABSENT
    unknown_seconds: float = 0.0
    """Of `gpu_seconds`: those in which the work is not known."""
    idle_gpu_seconds: float = 0.0
    """Of `gpu_seconds`: those of idle stretches."""
    energy_joules: Maybe[float] = ABSENT
    idle_seconds: Maybe[float] = ABSENT
    """How long the owner has not worked; 0 while it works, ABSENT if its work is not known."""
    _short_pause: float = 0.0
    """GPU-seconds of a pause that may become an idle stretch."""

    def leave(self) -> None:
        """The owner left; a pause does not last beyond that."""
        self.idle_seconds, self._short_pause = ABSENT, 0.0

    def charge(self, part: OwnerPart, weight: float, elapsed: float) -> float:
        """Adds one cycle, and returns its GPU-seconds. `weight` is the unit's share of the board."""
        gpu_seconds = weight * part.share * elapsed
        self.gpu_seconds += gpu_seconds
        self.energy_joules = plus(self.energy_joules, part.energy_joules)
        if part.busy_ratio is ABSENT:
            self.unknown_seconds += gpu_seconds
            self.idle_seconds, self._short_pause = ABSENT, 0.0
            return gpu_seconds
        self.busy_seconds = plus(self.busy_seconds, weight * part.busy_ratio * elapsed)
        if part.works is not False:
            self.idle_seconds, self._short_pause = ABSENT if part.works is ABSENT else 0.0, 0.0
            return gpu_seconds
        self.idle_seconds = plus(self.idle_seconds, elapsed)
        self._short_pause += gpu_seconds
        if self.idle_seconds is not ABSENT and self.idle_seconds >= IDLE_STRETCH_SECONDS:
            self.idle_gpu_seconds += self._short_pause
            self._short_pause = 0.0
        return gpu_seconds
