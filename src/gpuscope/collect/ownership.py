"""Joins what is used with what was handed out: processes get owners, owners accounts, allocations a verdict.

One failing part costs its own facts and nothing else: without owners the processes stay as the driver gave
them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gpuscope.collect.owner_counters import OwnerCounters
from gpuscope.collect.owner_places import holders_of, owners_of, place_of
from gpuscope.collect.sessions import Sessions
from gpuscope.readings import (
    ABSENT,
    Allocation,
    Counters,
    Device,
    Maybe,
    OwnerKey,
    Ownership,
    OwnerUse,
    Process,
    Unattributed,
    Uuid,
    unit_uuid,
)

log = logging.getLogger("gpuscope.collect")

Processes = Maybe[tuple[Process, ...]]


class Scheduler(Protocol):
    """Whom the GPUs were given to; ABSENT while nobody could be asked."""

    def allocations(self, devices: Sequence[Device]) -> Maybe[tuple[Allocation, ...]]: ...


class OwnershipBook:
    def __init__(
        self,
        sessions: Sessions | None = None,
        counters: OwnerCounters | None = None,
        scheduler: Scheduler | None = None,
    ) -> None:
        self._sessions = sessions or Sessions()
        self._counters = counters or OwnerCounters()
        self._scheduler = scheduler
        self._failures: Counter[str] = Counter()

    def stop_waiting(self) -> None:
        """The next cycle is the last: no process is held back for its owner any more."""
        self._sessions.stop_waiting()

    def advance(
        self,
        processes: Processes,
        devices: Sequence[Device],
        counters: Mapping[Uuid, Counters],
        *,
        simulated: bool,
        now: float,
        monotonic: float,
    ) -> tuple[Processes, Ownership]:
        if processes is not ABSENT:
            try:
                processes = self._sessions.advance(processes, simulated=simulated, now=now, monotonic=monotonic)
            except Exception:
                self._failed("sessions")
        allocations = self._allocations(devices, processes)
        uses: tuple[OwnerUse, ...] = ()
        left: tuple[Unattributed, ...] = ()
        try:
            present = () if processes is ABSENT else processes
            uses, left = self._counters.advance(present, devices, allocations, counters, monotonic)
        except Exception:
            self._failed("owner_counters")
        failures = {**self._sessions.failures(), **self._failures}
        return processes, Ownership(
            allocations=allocations,
            uses=uses,
            # Without the list of processes nothing can be told apart: all would look unattributed.
            unattributed=() if processes is ABSENT else left,
            failures=failures,
        )

    def _allocations(self, devices: Sequence[Device], processes: Processes) -> Maybe[tuple[Allocation, ...]]:
        # Until a GPU has been read, an id that none answers to would look like one that none has.
        if self._scheduler is None or not devices:
            return ABSENT
        try:
            allocations = self._scheduler.allocations(devices)
            return ABSENT if allocations is ABSENT else tuple(mark_used(allocations, processes))
        except Exception:
            self._failed("allocations")
            return ABSENT

    def _failed(self, part: str) -> None:
        if not self._failures[part]:
            log.exception("%s failed; other numbers go on", part)
        self._failures[part] += 1


def mark_used(allocations: Sequence[Allocation], processes: Processes) -> list[Allocation]:
    """Each allocation, saying whether a process of that pod or job is on that very GPU or instance.

    Two pods cannot both have an unshared device: if one of them has a process there, the other has ended and an
    old kubelet still lists it. If none has, both are shown.
    """
    present: set[tuple[OwnerKey, Uuid]] = set()
    for process in () if processes is ABSENT else processes:
        present |= {(owner, place_of(process)) for owner in owners_of(process)}
    marked, taken = [], set()
    for allocation in allocations:
        uuid = unit_uuid(allocation)
        used = uuid is not ABSENT and any((owner, uuid) in present for owner in holders_of(allocation))
        if used and _is_whole(allocation):
            taken.add(allocation.device_id)
        marked.append(replace(allocation, used=True) if used else allocation)
    return [one for one in marked if one.used or not (_is_whole(one) and one.device_id in taken)]


def _is_whole(allocation: Allocation) -> bool:
    return allocation.pod is not ABSENT and allocation.replica is ABSENT
