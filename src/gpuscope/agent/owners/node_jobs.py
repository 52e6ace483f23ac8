"""The batch system's jobs on this node: which job a process belongs to, and whose a job is.

Three sources know it, each of which may be missing: the files that a prolog writes (`job_files`), slurmstepd
through `scontrol listpids` (`slurm_pids`), and the cluster's own state on the machine that reads it
(`slurm_claims`). None of them is slurmctld: an agent on a compute node sends it no request.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Final, NamedTuple

from gpuscope.agent.owners.cgroup import CgroupFacts
from gpuscope.agent.owners.process_lookup import ProcessKey
from gpuscope.agent.worker import ReadResult, Worker, lasting_timing
from gpuscope.base.clock import Clock
from gpuscope.base.command_runner import Command
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
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


# The Slurm job of a process by `scontrol listpids`, for processes whose cgroup does not name their job.
#
# slurmstepd answers, on this node, for any user and also while slurmctld is down: proctrack/linuxproc leaves
# no trace in cgroups, and from 26.05 on a cgroup has the job's SLUID instead of its number. The command runs
# only when such a process appears, and once more after ten seconds. A machine without slurmd has no answers,
# which is not an error.

TIMEOUT_SECONDS: Final = 5.0
SECOND_TRY_SECONDS: Final = 10.0  # slurmstepd may not know a process yet that has just started
MAX_LINES: Final = 100_000
CONFIGURATIONS: Final = (
    "/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf", "/run/slurm/conf/slurm.conf",
)  # fmt: skip
_LINE = re.compile(r"(\d{1,10})\s+(\d{1,10})\s+(\w{1,20})(?:\s|\Z)", re.ASCII)

JobsByPid = Mapping[int, JobStep]


def find_scontrol(bin_dir: str, environment: Mapping[str, str] = os.environ) -> str:
    """Its path; empty on a machine that does not belong to a Slurm cluster."""
    found = shutil.which(str(Path(bin_dir) / "scontrol") if bin_dir else "scontrol")
    named = environment.get("SLURM_CONF")
    configured = Path(named).exists() if named else any(Path(path).exists() for path in CONFIGURATIONS)
    return found if found and configured else ""


def parse_listpids(text: str) -> dict[int, JobStep]:
    """From lines `PID JOBID STEPID LOCALID GLOBALID`; a line that is not understood is left out."""
    found = {}
    for line in text.split("\n")[:MAX_LINES]:
        match = _LINE.match(line.strip())
        if match:
            found[int(match[1])] = JobStep(match[2], match[3])
    return found


class SlurmPids:
    """The reader of the worker. Another thread says with `want` which processes need an answer."""

    def __init__(self, scontrol: str, clock: Clock) -> None:
        self._command = Command(
            scontrol,
            TIMEOUT_SECONDS,
            program="scontrol",
            if_missing="install slurm-client",
            environment={**os.environ, "LC_ALL": "C"},
        )
        self._clock = clock
        self._wanted: frozenset[ProcessKey] = frozenset()
        self._queried: dict[ProcessKey, list[float]] = {}
        self._known: dict[ProcessKey, JobStep] = {}
        self._by_pid: JobsByPid = {}

    def want(self, keys: Collection[ProcessKey]) -> None:
        self._wanted = frozenset(keys)

    def has_answered(self, key: ProcessKey) -> bool:
        return key in self._queried

    def read(self) -> ReadResult[JobsByPid]:
        """The same mapping as before unless a process got its job or is gone."""
        wanted, now = self._wanted, self._clock.monotonic()
        self._queried = {key: times for key, times in self._queried.items() if key in wanted}
        due = [key for key in wanted if key not in self._known and self._is_due(key, now)]
        failures = {}
        known = {key: step for key, step in self._known.items() if key in wanted}
        if due:
            try:
                answer = self._command.run("listpids")
            except SourceError:
                failures["listpids"] = 1
            else:
                # Without a step on this node it prints that there is none, and fails.
                listed = parse_listpids(answer.stdout) if answer.ok else {}
                known.update({key: listed[key.pid] for key in due if key.pid in listed})
            self._queried = {**self._queried, **{key: [*self._queried.get(key, ()), now] for key in due}}
        if known != self._known:
            self._known = known
            self._by_pid = {key.pid: step for key, step in known.items()}
        return ReadResult(self._by_pid, failures)

    def close(self) -> None:
        pass

    def _is_due(self, key: ProcessKey, now: float) -> bool:
        times = self._queried.get(key, ())
        return not times or (len(times) == 1 and now - times[0] >= SECOND_TRY_SECONDS)


def slurm_pids_worker(reader: SlurmPids, settings: Settings, clock: Clock) -> Worker[JobsByPid]:
    return Worker(
        "slurm-pids",
        "jobs of processes whose cgroup does not name them, from slurmstepd",
        lambda: reader,
        lasting_timing(settings, interval=settings.interval),
        clock,
    )
