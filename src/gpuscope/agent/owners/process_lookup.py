"""Everything the kernel and this machine's files say about a process, looked up once in its life.

The collector reads start times only. The rest (user databases, environment, container files) may hang, so a
worker reads it: the collector says which processes are present, and takes what is known. A part that cannot be
read is absent and counted under its name; the other parts stay. Facts are kept by PID and start time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from gpuscope.agent.owners.cgroup import NO_CGROUP, CgroupFacts, parse_cgroup
from gpuscope.agent.owners.launchers import LauncherLookup
from gpuscope.agent.owners.lookup_timing import lasting_timing
from gpuscope.agent.owners.proc import Proc, ProcessGone, ProcessStatus
from gpuscope.agent.owners.slurm_environment import NO_VARIABLES, SlurmVariables, parse_environment
from gpuscope.agent.owners.users import UserNames, read_hostile_text
from gpuscope.agent.worker import ReadResult, Worker
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Maybe

MAX_COMMAND: Final = 512
MAX_WAIT_SECONDS: Final = 0.25  # for a new process; only a user database that hangs takes longer


@dataclass(frozen=True, slots=True)
class ProcessKey:
    """Identifies a process: the kernel reuses a PID alone."""

    pid: int
    start_ticks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelFacts:
    cgroup: CgroupFacts = NO_CGROUP
    user: Maybe[str] = ABSENT
    group: Maybe[str] = ABSENT
    slurm: SlurmVariables = NO_VARIABLES
    launcher: Maybe[str] = ABSENT  # equal for the processes that one launcher started
    command_line: Maybe[str] = ABSENT  # only with --full-commands: it may hold secrets


FactsByProcess = Mapping[ProcessKey, KernelFacts]


class ProcessLookup:
    """The reader of the lookup's worker. Another thread says with `want` which processes are present."""

    def __init__(self, proc: Proc, users: UserNames, full_commands: bool = False) -> None:
        self._proc = proc
        self._users = users
        self._full_commands = full_commands
        self._launchers = LauncherLookup(proc)
        self._wanted: frozenset[ProcessKey] = frozenset()
        self._known: FactsByProcess = {}
        self.failures: Counter[str] = Counter()
        """Lookups that failed since the start, by what could not be read."""

    def want(self, keys: Collection[ProcessKey]) -> None:
        self._wanted = frozenset(keys)

    def read(self) -> ReadResult[FactsByProcess]:
        """The same mapping as before unless a process came or went; what it holds never changes."""
        wanted, known = self._wanted, self._known
        if wanted != known.keys():
            self._launchers = LauncherLookup(self._proc)
            self._known = {key: known[key] if key in known else self.look_up(key) for key in wanted}
        return ReadResult(self._known)

    def close(self) -> None:
        pass

    def look_up(self, key: ProcessKey) -> KernelFacts:
        pid = key.pid
        try:
            cgroup = self._cgroup(pid)
            status = self._status(pid)
            user, group = self._user(pid, cgroup, status)
            environment = self._environment(pid, cgroup)
            return KernelFacts(
                cgroup=cgroup,
                user=user,
                group=group,
                slurm=_slurm_variables(environment, cgroup),
                launcher=self._launcher(pid, environment, status),
                command_line=self._command_line(pid) if self._full_commands else ABSENT,
            )
        except ProcessGone:
            return KernelFacts()

    def _cgroup(self, pid: int) -> CgroupFacts:
        try:
            return parse_cgroup(self._proc.cgroup(pid))
        except OSError:
            self.failures["cgroup"] += 1
            return NO_CGROUP

    def _status(self, pid: int) -> ProcessStatus | None:
        try:
            return self._proc.status(pid)
        except (OSError, SourceError):
            self.failures["user"] += 1
            return None

    def _user(
        self, pid: int, cgroup: CgroupFacts, status: ProcessStatus | None
    ) -> tuple[Maybe[str], Maybe[str]]:
        if status is None:
            return ABSENT, ABSENT
        inside = cgroup.container_id is not ABSENT or cgroup.pod_uid is not ABSENT
        ask = partial(self._container_passwd, pid) if inside else None
        return self._users.user(status.uid, ask), self._users.group(status.gid)

    def _container_passwd(self, pid: int) -> str:
        return read_hostile_text(Path(self._proc.root, str(pid), "root/etc/passwd"))

    def _environment(self, pid: int, cgroup: CgroupFacts) -> bytes:
        try:
            return self._proc.environ(pid)
        except OSError:
            # Only root may read it. Without a job in the cgroup none is expected there.
            if cgroup.job is not ABSENT or cgroup.sluid is not ABSENT:
                self.failures["environment"] += 1
            return b""

    def _launcher(self, pid: int, environment: bytes, status: ProcessStatus | None) -> Maybe[str]:
        try:
            return self._launchers.launcher_of(pid, environment, None if status is None else status.relations)
        except (OSError, SourceError):
            self.failures["launcher"] += 1
            return ABSENT

    def _command_line(self, pid: int) -> Maybe[str]:
        try:
            return parse_command_line(self._proc.cmdline(pid))
        except OSError:
            self.failures["command"] += 1
            return ABSENT


def _slurm_variables(environment: bytes, cgroup: CgroupFacts) -> SlurmVariables:
    if cgroup.container_id is not ABSENT and cgroup.job is ABSENT and cgroup.sluid is ABSENT:
        return NO_VARIABLES  # no job started it, and a container's environment is free text
    return parse_environment(environment)


def parse_command_line(text: bytes) -> Maybe[str]:
    words = [word.decode("utf-8", "replace") for word in text.rstrip(b"\0").split(b"\0")]
    return " ".join(words)[:MAX_COMMAND] or ABSENT


class LookupOnDemand:
    """Looks up new processes at once, but waits no longer than `MAX_WAIT_SECONDS` for it."""

    def __init__(self, lookup: ProcessLookup, worker: Worker[FactsByProcess]) -> None:
        self._lookup = lookup
        self._worker = worker

    def facts_of(self, keys: Collection[ProcessKey]) -> FactsByProcess:
        self._lookup.want(keys)
        known = self._known()
        if any(key not in known for key in keys) and self._worker.wake_if_due():
            self._worker.wait(MAX_WAIT_SECONDS)
            known = self._known()
        return known

    def _known(self) -> FactsByProcess:
        facts = self._worker.fresh()
        return {} if facts is ABSENT else facts

    def failures(self) -> Mapping[str, int]:
        return self._lookup.failures


def lookup_worker(lookup: ProcessLookup, settings: Settings, clock: Clock) -> Worker[FactsByProcess]:
    return Worker(
        "process-owners",
        "owners of the processes on the GPUs, from /proc",
        lambda: lookup,
        lasting_timing(settings, interval=0.0),  # on demand: whenever a new process appears
        clock,
    )


def keys_of(pids: Iterable[int], proc: Proc) -> dict[int, tuple[ProcessKey, str]]:
    """Key and short name of each process that still runs."""
    keys = {}
    for pid in pids:
        try:
            stat = proc.stat(pid)
        except (ProcessGone, OSError, SourceError):
            continue
        keys[pid] = (ProcessKey(pid, stat.start_ticks), stat.comm)
    return keys
