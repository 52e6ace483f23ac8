"""Joins what is used with what was allocated: processes get owners, owners accounts, allocations `used`.

In go a cycle's processes, devices and counters; out come the processes with their owners, and an `Ownership`.
A part that fails costs its own facts and nothing else: without owners the processes stay as the driver listed
them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

from gpuscope.owners.gpu_units import allocation_holders, process_owners, unit_of
from gpuscope.owners.owner_accounts import OwnerAccounts
from gpuscope.owners.process_enricher import ProcessEnricher
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
from gpuscope.worker import Worker

if TYPE_CHECKING:
    from gpuscope.owners.job_files import JobFiles

log = logging.getLogger("gpuscope.owners")

Processes = Maybe[tuple[Process, ...]]


class Scheduler(Protocol):
    """Who was allocated which GPU; ABSENT while no scheduler has answered."""

    def allocations(self, devices: Sequence[Device]) -> Maybe[tuple[Allocation, ...]]: ...


class OwnerJoin:
    def __init__(
        self,
        enricher: ProcessEnricher | None = None,
        accounts: OwnerAccounts | None = None,
        scheduler: Scheduler | None = None,
        job_files: Worker[JobFiles] | None = None,
    ) -> None:
        self._enricher = enricher or ProcessEnricher()
        self._accounts = accounts or OwnerAccounts()
        self._scheduler = scheduler
        self._job_files = job_files
        self._failures: Counter[str] = Counter()

    def stop_waiting(self) -> None:
        """The next cycle is the last one: no process is held back until its owner is known."""
        self._enricher.stop_waiting()

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
                processes = self._enricher.advance(processes, simulated=simulated, now=now, monotonic=monotonic)
            except Exception:
                self._failed("sessions")
        allocations = self._allocations(devices, processes)
        uses: tuple[OwnerUse, ...] = ()
        left: tuple[Unattributed, ...] = ()
        try:
            present = () if processes is ABSENT else processes
            uses, left = self._accounts.advance(
                present,
                devices,
                allocations,
                counters,
                monotonic,
                processes_known=processes is not ABSENT,
            )
        except Exception:
            self._failed("owner_counters")
        job_files = ABSENT if self._job_files is None else self._job_files.fresh()
        return processes, Ownership(
            allocations=allocations,
            uses=uses,
            # Without the list of processes everything would look unattributed.
            unattributed=() if processes is ABSENT else left,
            times=self._accounts.times,
            job_lines={} if job_files is ABSENT else job_files.lines,
            failures={**self._enricher.failures(), **self._failures},
        )

    def _allocations(self, devices: Sequence[Device], processes: Processes) -> Maybe[tuple[Allocation, ...]]:
        # Before the first GPU has been read, every device id would look like that of an unknown GPU.
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
            log.exception("%s failed; everything else is still collected", part)
        self._failures[part] += 1


def mark_used(allocations: Sequence[Allocation], processes: Processes) -> list[Allocation]:
    """Sets `used` where a process of that pod or job is on that very GPU or instance.

    Two pods cannot both have an unshared device: if one of them has a process on it, the other has ended and an
    old kubelet still lists it. If neither has, both are kept.
    """
    present: set[tuple[OwnerKey, Uuid]] = set()
    for process in () if processes is ABSENT else processes:
        present |= {(owner, unit_of(process)) for owner in process_owners(process)}
    marked, taken = [], set()
    for allocation in allocations:
        uuid = unit_uuid(allocation)
        used = uuid is not ABSENT and any((owner, uuid) in present for owner in allocation_holders(allocation))
        if used and _is_whole(allocation):
            taken.add(allocation.device_id)
        marked.append(replace(allocation, used=True) if used else allocation)
    return [one for one in marked if one.used or not (_is_whole(one) and one.device_id in taken)]


def _is_whole(allocation: Allocation) -> bool:
    return allocation.pod is not ABSENT and allocation.replica is ABSENT
