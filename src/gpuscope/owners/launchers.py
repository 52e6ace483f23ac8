"""Which processes were started together: the launcher of a process, as torchrun, mpirun or its main program.

Input: a process' relations in /proc and its environment, where that may be read; output: a text that is equal
for the processes of one program on one machine. In order: a known launcher among its ancestors, rank variables,
the leader of its process group, the leader of its session; else the process is a program of its own. Shells and
other programs that start what does not belong together are no launchers: of two servers that one script starts
in the background each is a program of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuscope.errors import SourceError
from gpuscope.owners.proc import Proc, ProcessGone

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


@dataclass(frozen=True, slots=True)
class _Ancestor:
    pid: int
    parent: int
    comm: str


def launcher_of(proc: Proc, pid: int, environment: bytes = b"") -> str:
    """`pid-` and the PID of the launcher, or of the process itself. ProcessGone if the process has ended."""
    relations = proc.relations(pid)
    ancestors = _ancestors(proc, relations.parent)
    known = [ancestor.pid for ancestor in ancestors if _is_launcher(proc, ancestor)]
    if known:  # the outermost: accelerate may start torchrun
        return f"pid-{known[-1]}"
    run = _distributed_run(environment)
    if run is not None:
        return f"pid-{relations.parent}{run}"
    for leader in (relations.group, relations.session):
        if leader != pid and leader > 1 and _leads(proc, leader, leader == relations.group):
            return f"pid-{leader}"
    return f"pid-{pid}"


def _ancestors(proc: Proc, first: int) -> list[_Ancestor]:
    """The nearest first; up to the first one that cannot be read."""
    ancestors: list[_Ancestor] = []
    pid = first
    while pid > 1 and len(ancestors) < MAX_ANCESTORS:
        try:
            relations = proc.relations(pid)
        except (ProcessGone, OSError, SourceError):
            break
        ancestors.append(_Ancestor(pid, relations.parent, relations.comm))
        pid = relations.parent
    return ancestors


def _is_launcher(proc: Proc, ancestor: _Ancestor) -> bool:
    if ancestor.comm in LAUNCHERS:
        return True
    if not ancestor.comm.startswith(("python", "pt_elastic", "pypy")):
        return False
    try:
        return _LAUNCHER_MODULE.search(proc.cmdline(ancestor.pid)) is not None
    except (ProcessGone, OSError):
        return False


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


def _leads(proc: Proc, leader: int, of_group: bool) -> bool:
    """Whether the leader still runs, and starts what belongs together."""
    try:
        relations = proc.relations(leader)
    except (ProcessGone, OSError, SourceError):
        return False
    comm = relations.comm
    if comm in UNRELATED or comm.startswith(_UNRELATED_BEGINNINGS):
        return False
    return (relations.group if of_group else relations.session) == leader
