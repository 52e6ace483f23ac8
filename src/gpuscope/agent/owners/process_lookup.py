"""Everything the kernel and this machine's files say about a process, looked up once in its life.

The collector reads start times only. The rest (user databases, environment, container files) may hang, so a
worker reads it: the collector says which processes are present, and takes what is known. A part that cannot be
read is absent and counted under its name; the other parts stay. Facts are kept by PID and start time.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from gpuscope.agent.owners.cgroup import NO_CGROUP, CgroupFacts, parse_cgroup
from gpuscope.agent.owners.proc import Proc, ProcessGone, ProcessRelations, ProcessStatus
from gpuscope.agent.owners.users import UserNames, read_hostile_text
from gpuscope.agent.worker import ReadResult, Worker, lasting_timing
from gpuscope.base.clock import Clock
from gpuscope.base.errors import SourceError
from gpuscope.base.settings import Settings
from gpuscope.model.readings import ABSENT, Maybe

# A process' Slurm variables from its environment, for what its cgroup does not say.
#
# The environment is text of the user, and only root can read that of other users. The job id is used only if
# the cgroup has none (proctrack/linuxproc, or the SLUID paths of Slurm 26.05); account, partition and array
# are nowhere else on the node. In every component of a heterogeneous job they are those of its leader, and
# nothing names the component: there only the step is used.

_DIGITS = re.compile(r"\d{1,10}\Z", re.ASCII)
_NAME = re.compile(r"[\w.@+-]{1,64}\Z", re.ASCII)
WANTED: Final = (
    b"SLURM_JOB_ID", b"SLURM_JOBID", b"SLURM_STEP_ID", b"SLURM_STEPID", b"SLURM_ARRAY_JOB_ID",
    b"SLURM_ARRAY_TASK_ID", b"SLURM_JOB_ACCOUNT", b"SLURM_JOB_PARTITION", b"SLURM_JOB_USER", b"SLURM_HET_SIZE",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmVariables:
    job: Maybe[str] = ABSENT
    job_step: Maybe[str] = ABSENT
    job_array: Maybe[str] = ABSENT
    job_account: Maybe[str] = ABSENT
    job_partition: Maybe[str] = ABSENT


NO_VARIABLES: Final = SlurmVariables()


def parse_environment(text: bytes) -> SlurmVariables:
    if b"SLURM_JOB" not in text:
        return NO_VARIABLES
    values: dict[bytes, str] = {}
    for entry in text.split(b"\0"):
        name, equals, value = entry.partition(b"=")
        if equals and name in WANTED:
            values.setdefault(name, value.decode("utf-8", "replace"))

    def pick(pattern: re.Pattern[str], *names: bytes) -> Maybe[str]:
        return next((values[name] for name in names if name in values and pattern.match(values[name])), ABSENT)

    step = pick(_NAME, b"SLURM_STEP_ID", b"SLURM_STEPID")
    if b"SLURM_HET_SIZE" in values:
        return SlurmVariables(job_step=step)
    array, task = (
        pick(_DIGITS, b"SLURM_ARRAY_JOB_ID"),
        pick(_DIGITS, b"SLURM_ARRAY_TASK_ID"),
    )
    return SlurmVariables(
        job=pick(_DIGITS, b"SLURM_JOB_ID", b"SLURM_JOBID"),
        job_step=step,
        job_array=ABSENT if array is ABSENT or task is ABSENT else f"{array}_{task}",
        job_account=pick(_NAME, b"SLURM_JOB_ACCOUNT"),
        job_partition=pick(_NAME, b"SLURM_JOB_PARTITION"),
    )


# Which processes were started together: the launcher of a process, as torchrun, mpirun or its main program.
#
# Input: a process' relations in /proc and its environment, where that may be read; output: a text that is
# equal for the processes of one program on one machine. In order: a known launcher among its ancestors, rank
# variables, the leader of its process group, the leader of its session; else the process is a program of its
# own. Shells and other programs that start what does not belong together are no launchers: of two servers
# that one script starts in the background each is a program of its own.

MAX_ANCESTORS: Final = 16
MAX_ENVIRONMENT_ENTRIES: Final = 4096

LAUNCHERS: Final = frozenset(
    {
        "accelerate", "colossalai", "deepspeed", "horovodrun", "hydra_bstrap_pr", "hydra_pmi_proxy", "mpiexec",
        "mpiexec.hydra", "mpirun", "orted", "orterun", "prted", "prterun", "torchrun",
    }
)  # fmt: skip
"""Names as in /proc/PID/comm, which has 15 characters."""
_LAUNCHER_MODULE: Final = re.compile(
    rb"(?:^|\0)(?:-m\0)?(?:\S*/)?(?:torch[./]distributed[./](?:run|launch)|accelerate[./]commands[./]launch"
    rb"|deepspeed[./]launcher[./](?:launch|runner)|colossalai[./]cli)(?:\.py)?(?:\0|$)"
    rb"|(?:^|/|\0)(?:torchrun|accelerate|deepspeed|horovodrun|colossalai)(?:\0|$)"
)
"""In the command line of a Python program."""
UNRELATED: Final = frozenset(
    {
        "ash", "atd", "bash", "busybox", "conmon", "cron", "crond", "csh", "dash", "docker-init", "dumb-init",
        "fish", "init", "jupyter", "jupyter-hub", "jupyter-lab", "jupyter-noteboo", "jupyterhub-sing",
        "ksh", "login", "make", "parallel", "raylet", "runsv", "runsvdir", "s6-supervise",
        "screen", "script", "sh", "slurmstepd", "sshd", "sshd-session", "su", "supervisord", "systemd", "tcsh",
        "tini", "tmux", "tmux: server", "xargs", "zsh",
    }
)  # fmt: skip
"""What these start does not belong together."""
_UNRELATED_BEGINNINGS: Final = ("containerd-shim", "tmux", "SCREEN", "systemd", "(sd-pam)")

_WORLD_SIZES: Final = (b"WORLD_SIZE", b"OMPI_COMM_WORLD_SIZE", b"PMI_SIZE")
_RANKS: Final = (b"RANK", b"LOCAL_RANK", b"OMPI_COMM_WORLD_RANK", b"PMI_RANK")
_PORT: Final = b"MASTER_PORT"
_WANTED: Final = frozenset((*_WORLD_SIZES, *_RANKS, _PORT))
_NUMBER: Final = re.compile(rb"\d{1,7}\Z")


class LauncherLookup:
    """Looks up processes that are read together: most have the same ancestors, each of which is read once."""

    def __init__(self, proc: Proc) -> None:
        self._proc = proc
        self._relations: dict[int, tuple[str, ProcessRelations] | None] = {}
        """With their names; None of one that cannot be read."""
        self._outermost: dict[int, int | None] = {}
        """Of an ancestor: the outermost known launcher from it on."""

    def launcher_of(self, pid: int, environment: bytes = b"", relations: ProcessRelations | None = None) -> str:
        """`pid-` and the PID of the launcher, or of the process itself. Relations that are not given are read;
        ProcessGone if it has ended."""
        if relations is None:
            _, relations = self._proc.relations(pid)
        known = self._known_launcher(relations.parent)
        if known is not None:
            return f"pid-{known}"
        run = _distributed_run(environment)
        if run is not None:
            return f"pid-{relations.parent}{run}"
        if relations.group not in (0, pid) and self._leads(relations.group, "group"):
            return f"pid-{relations.group}"
        if relations.session not in (0, pid) and self._leads(relations.session, "session"):
            return f"pid-{relations.session}"
        return f"pid-{pid}"

    def _known_launcher(self, first: int) -> int | None:
        """The outermost among the ancestors: accelerate may start torchrun."""
        if first not in self._outermost:
            outermost, pid = None, first
            for _ in range(MAX_ANCESTORS):
                ancestor = self._read(pid)
                if pid <= 1 or ancestor is None:
                    break
                comm, relations = ancestor
                if self._is_launcher(pid, comm):
                    outermost = pid
                pid = relations.parent
            self._outermost[first] = outermost
        return self._outermost[first]

    def _is_launcher(self, pid: int, comm: str) -> bool:
        if comm in LAUNCHERS:
            return True
        if not comm.startswith(("python", "pt_elastic", "pypy")):
            return False
        try:
            return _LAUNCHER_MODULE.search(self._proc.cmdline(pid)) is not None
        except (ProcessGone, OSError):
            return False

    def _leads(self, leader: int, of: Literal["group", "session"]) -> bool:
        """Whether the leader still runs, and starts what belongs together."""
        found = self._read(leader)
        if found is None or leader <= 1:
            return False
        comm, relations = found
        if getattr(relations, of) != leader:
            return False
        return comm not in UNRELATED and not comm.startswith(_UNRELATED_BEGINNINGS)

    def _read(self, pid: int) -> tuple[str, ProcessRelations] | None:
        if pid not in self._relations:
            try:
                self._relations[pid] = self._proc.relations(pid)
            except (ProcessGone, OSError, SourceError):
                self._relations[pid] = None
        return self._relations[pid]


def _distributed_run(environment: bytes) -> str | None:
    """Distinguishes the runs that one parent started; None for a process that has no rank among several."""
    if not any(name in environment for name in _WORLD_SIZES):
        return None
    values: dict[bytes, bytes] = {}
    for entry in environment.split(b"\0", MAX_ENVIRONMENT_ENTRIES):
        name, equals, value = entry.partition(b"=")
        if equals and name in _WANTED:
            values.setdefault(name, value)
    sizes = [int(values[name]) for name in _WORLD_SIZES if _NUMBER.match(values.get(name, b""))]
    has_rank = any(_NUMBER.match(values.get(name, b"")) for name in _RANKS)
    if not has_rank or not any(size > 1 for size in sizes):
        return None
    port = values.get(_PORT, b"")
    return f":{port.decode()}" if _NUMBER.match(port) else ""


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
