"""Active, idle or unknown: what a process does on a GPU, judged by when it last worked (`gpu_work`).

A process is idle only if the driver was read all the time and reported no work. Where the driver does not
report it, as under MIG, the state is unknown; so it is until a process has been watched for long enough.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuscope.model.readings import ABSENT, ACTIVE, IDLE, UNKNOWN, Maybe, Uuid

MAX_GAP_SECONDS: Final = 180.0
"""After a longer time without a reading, it is not known what a process did meanwhile."""

ActivityKey = tuple[int, Maybe[float], Uuid]
"""PID, start time, and the GPU or instance."""


@dataclass(slots=True)
class _ObservedActivity:
    """Since when a process has been watched, and when it last worked; monotonic."""

    since: float
    active_at: float | None = None


class ProcessActivity(NamedTuple):
    state: str
    idle_seconds: Maybe[float] = ABSENT
    """Whole seconds without work: 0 while it works."""


class ActivityStates:
    """Call `state_of` once for every present process between `begin` and `end`; the others are forgotten."""

    def __init__(self, idle_after: float) -> None:
        self._idle_after = idle_after
        self._watched: dict[ActivityKey, _ObservedActivity] = {}
        self._seen: dict[ActivityKey, _ObservedActivity] = {}
        self._monotonic = 0.0

    def __len__(self) -> int:
        return len(self._watched)

    def begin(self, monotonic: float) -> None:
        if not 0 <= monotonic - self._monotonic <= MAX_GAP_SECONDS:
            self._watched = {}
        self._monotonic, self._seen = monotonic, {}

    def end(self) -> None:
        self._watched = self._seen

    def state_of(self, key: ActivityKey, works: Maybe[bool]) -> ProcessActivity:
        if works is ABSENT:
            return ProcessActivity(UNKNOWN)
        watched = self._watched.get(key)
        if watched is None:
            watched = _ObservedActivity(self._monotonic)
        self._seen[key] = watched
        if works:
            watched.active_at = self._monotonic
            return ProcessActivity(ACTIVE, 0.0)
        quiet = self._monotonic - (watched.since if watched.active_at is None else watched.active_at)
        if quiet >= self._idle_after:
            return ProcessActivity(IDLE, float(int(quiet)))
        if watched.active_at is None:  # watched for too short a time: it may have been active just before
            return ProcessActivity(UNKNOWN)
        return ProcessActivity(ACTIVE, float(int(quiet)))
