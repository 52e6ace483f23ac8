"""The batch system's jobs on this node: which job a process belongs to, and whose a job is.

Three sources know it, each of which may be missing: the files that a prolog writes (`job_files`), slurmstepd
through `scontrol listpids` (`slurm_pids`), and the cluster's own state on the machine that reads it
(`slurm_claims`). None of them is slurmctld: an agent on a compute node sends it no request.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Final, NamedTuple

from gpuscope.agent.owners.cgroup import CgroupFacts
from gpuscope.model.readings import ABSENT, JobFacts, Maybe, Owner, Process
from gpuscope.model.readings.device import NO_VALUES


class JobStep(NamedTuple):
    job: str
    step: str


@dataclass(frozen=True, slots=True)
class NodeJobs:
    by_sluid: Mapping[str, str] = NO_VALUES
    """Job ids by the names that cgroups have from Slurm 26.05 on."""
    by_pid: Mapping[int, JobStep] = NO_VALUES
    facts: Mapping[str, JobFacts] = NO_VALUES
    """By job id."""

    def find(self, pid: int, cgroup: CgroupFacts) -> Maybe[JobStep]:
        """The job of a process, if its cgroup does not name it."""
        if cgroup.sluid is not ABSENT and cgroup.sluid in self.by_sluid:
            step = "" if cgroup.job_step is ABSENT else cgroup.job_step
            return JobStep(self.by_sluid[cgroup.sluid], step)
        return self.by_pid.get(pid, ABSENT)


NO_JOBS: Final = NodeJobs()


def merge_facts(first: JobFacts, second: JobFacts) -> JobFacts:
    """`first` with each absent fact taken from `second`."""
    absent = [field.name for field in fields(JobFacts) if getattr(first, field.name) is ABSENT]
    changes = {name: value for name in absent if (value := getattr(second, name)) is not ABSENT}
    return replace(first, **changes) if changes else first


class JobOwners:
    """Gives processes their job's account, partition and array, and collects what is known about the jobs."""

    def __init__(self) -> None:
        self._completed: dict[tuple[Owner, JobFacts], Owner] = {}

    def complete(self, processes: Iterable[Process], facts: Mapping[str, JobFacts]) -> tuple[Process, ...]:
        """What a prolog or Slurm says is right; a process' environment is text of its user."""
        used: dict[tuple[Owner, JobFacts], Owner] = {}
        done = []
        for process in processes:
            owner = process.owner
            known = None if owner.job is ABSENT else facts.get(owner.job)
            if known is not None:
                key = (owner, known)
                used[key] = owner = self._completed.get(key) or _with_facts(owner, known)
                if owner != process.owner:
                    process = replace(process, owner=owner)
            done.append(process)
        self._completed = used  # the same owners as long as their processes are there
        return tuple(done)


def _with_facts(owner: Owner, facts: JobFacts) -> Owner:
    return replace(
        owner,
        job_account=owner.job_account if facts.account is ABSENT else facts.account,
        job_partition=owner.job_partition if facts.partition is ABSENT else facts.partition,
        job_array=owner.job_array if facts.array is ABSENT else facts.array,
    )


def jobs_here(
    held: Iterable[str], processes: Iterable[Process], facts: Mapping[str, JobFacts]
) -> dict[str, JobFacts]:
    """The jobs that hold or use a GPU of this node, with all that is known about them."""
    found = {job: facts.get(job, JobFacts()) for job in held}
    for process in processes:
        owner = process.owner
        if owner.job is not ABSENT:
            said = JobFacts(
                user=owner.user,
                account=owner.job_account,
                partition=owner.job_partition,
                array=owner.job_array,
            )
            found[owner.job] = merge_facts(found.get(owner.job) or facts.get(owner.job, JobFacts()), said)
    return found
