"""Joins what is used with what was allocated: processes get owners, owners accounts, allocations `used`.

Input: a cycle's processes, devices and counters; output: the processes with their owners, and an `Ownership`. A
part that fails costs its own facts and nothing else: without owners the processes stay as the driver listed
them.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from gpuscope.agent.owners.allocation_matching import JOB, Claims
from gpuscope.agent.owners.gpu_units import unlisted_memory
from gpuscope.agent.owners.job_files import LocalJobs, SlurmClaims
from gpuscope.agent.owners.node_jobs import JobOwners, jobs_here, merge_facts
from gpuscope.agent.owners.owner_accounts import OwnerAccounts
from gpuscope.agent.owners.process_enricher import ProcessEnricher
from gpuscope.agent.owners.unallocated_use import count_unallocated, used_allocations
from gpuscope.agent.worker import Worker
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Counters,
    Device,
    JobFacts,
    Maybe,
    Ownership,
    OwnerUse,
    Process,
    SlurmState,
    Unattributed,
    Uuid,
)
from gpuscope.model.readings.device import NO_VALUES

if TYPE_CHECKING:
    from gpuscope.agent.owners.job_files import JobFiles

log = logging.getLogger("gpuscope.owners")

Processes = Maybe[tuple[Process, ...]]


class Scheduler(Protocol):
    """Who was allocated which GPU; ABSENT while no scheduler has answered."""

    known_kinds: frozenset[str]

    def allocations(
        self,
        devices: Sequence[Device],
        local_claims: Claims = ABSENT,
        facts: Mapping[str, JobFacts] = NO_VALUES,
    ) -> Maybe[tuple[Allocation, ...]]: ...


class OwnerJoin:
    def __init__(
        self,
        enricher: ProcessEnricher | None = None,
        accounts: OwnerAccounts | None = None,
        scheduler: Scheduler | None = None,
        job_files: Worker[JobFiles] | None = None,
        node: str = "",
    ) -> None:
        """`node` is this machine's name, by which Slurm's state has it."""
        self._enricher = enricher or ProcessEnricher()
        self._accounts = accounts or OwnerAccounts()
        self._scheduler = scheduler
        self._job_files = job_files
        self._slurm_claims = SlurmClaims(node)
        self._job_owners = JobOwners()
        self._facts: Mapping[str, JobFacts] = NO_VALUES
        self._facts_from: tuple[object, object] = (None, None)
        self._jobs: Mapping[str, JobFacts] = NO_VALUES
        """Of the last cycle."""
        self._known_jobs: Mapping[str, JobFacts] = NO_VALUES
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
        slurm: Maybe[SlurmState] = ABSENT,
    ) -> tuple[Processes, Ownership]:
        job_files = ABSENT if self._job_files is None else self._job_files.fresh()
        local = self._slurm_claims.read(slurm, devices)
        facts = self._job_facts(job_files, local)
        if processes is not ABSENT:
            try:
                processes = self._enricher.advance(
                    processes, devices, simulated=simulated, now=now, monotonic=monotonic
                )
                processes = self._job_owners.complete(processes, facts) if facts else processes
            except Exception:
                self._failed("sessions")
        facts = self._with_processes(facts, () if processes is ABSENT else processes)
        allocations = self._allocations(devices, processes, local, facts)
        uses, unattributed = self._charge(processes, devices, allocations, counters, monotonic)
        known = () if allocations is ABSENT else allocations
        held = [owner.job for owner in known if owner.job is not ABSENT]
        self._jobs = jobs_here(held, () if processes is ABSENT else processes, facts)
        return processes, Ownership(
            allocations=allocations,
            unallocated=self._unallocated(devices, processes, allocations, facts, now),
            unlisted_memory={} if processes is ABSENT else unlisted_memory(devices, processes),
            jobs=self._jobs,
            uses=uses,
            unattributed=unattributed,
            times=self._accounts.times,
            job_lines={} if job_files is ABSENT else job_files.lines,
            failures={**self._enricher.failures(), **self._failures},
        )

    def _charge(
        self,
        processes: Processes,
        devices: Sequence[Device],
        allocations: Maybe[tuple[Allocation, ...]],
        counters: Mapping[Uuid, Counters],
        monotonic: float,
    ) -> tuple[tuple[OwnerUse, ...], tuple[Unattributed, ...]]:
        """Adds this cycle to the owners' accounts."""
        try:
            uses, unattributed = self._accounts.advance(
                () if processes is ABSENT else processes,
                devices,
                allocations,
                counters,
                monotonic,
                processes_known=processes is not ABSENT,
                allocating=frozenset() if self._scheduler is None else self._scheduler.known_kinds,
            )
        except Exception:
            self._failed("owner_counters")
            return (), ()
        # Without the list of processes everything would look unattributed.
        return uses, () if processes is ABSENT else unattributed

    def _job_facts(self, job_files: Maybe[JobFiles], local: Maybe[LocalJobs]) -> Mapping[str, JobFacts]:
        """The same object until a prolog or Slurm has something new."""
        if self._facts_from[0] is not job_files or self._facts_from[1] is not local:
            self._facts_from = job_files, local
            facts = dict({} if local is ABSENT else local.facts)
            for job, said in () if job_files is ABSENT else job_files.jobs.items():
                facts[job] = merge_facts(said, facts.get(job, JobFacts()))
            self._facts = facts
        return self._facts

    def _with_processes(
        self, facts: Mapping[str, JobFacts], processes: Iterable[Process]
    ) -> Mapping[str, JobFacts]:
        """Adds whose a job is, as its processes show it: its GPUs without a process are that user's too, also
        after the processes have ended. The same object until something is new."""
        known = {**facts, **jobs_here((), processes, facts)}
        for job, before in self._jobs.items():
            known[job] = merge_facts(known.get(job, JobFacts()), before)
        if known != self._known_jobs:
            self._known_jobs = known
        return self._known_jobs

    def _allocations(
        self,
        devices: Sequence[Device],
        processes: Processes,
        local: Maybe[LocalJobs],
        facts: Mapping[str, JobFacts],
    ) -> Maybe[tuple[Allocation, ...]]:
        # Before the first GPU has been read, every device id would look like that of an unknown GPU.
        if self._scheduler is None or not devices:
            return ABSENT
        try:
            claims = ABSENT if local is ABSENT else local.claims
            allocations = self._scheduler.allocations(devices, claims, facts)
            return ABSENT if allocations is ABSENT else tuple(used_allocations(allocations, processes, facts))
        except Exception:
            self._failed("allocations")
            return ABSENT

    def _unallocated(
        self,
        devices: Sequence[Device],
        processes: Processes,
        allocations: Maybe[tuple[Allocation, ...]],
        facts: Mapping[str, JobFacts],
        now: float,
    ) -> Mapping[Uuid, int]:
        # Only for Slurm: in Kubernetes, the node's own programs normally use GPUs without an allocation.
        if processes is ABSENT or allocations is ABSENT or self._scheduler is None:
            return NO_VALUES
        if JOB not in self._scheduler.known_kinds:
            return NO_VALUES
        try:
            return count_unallocated(devices, processes, allocations, facts, now)
        except Exception:
            self._failed("allocations")
            return NO_VALUES

    def _failed(self, part: str) -> None:
        if not self._failures[part]:
            log.exception("%s failed; everything else is still collected", part)
        self._failures[part] += 1
