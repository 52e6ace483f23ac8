"""Which processes were started together: the launcher of a process, as torchrun, mpirun or its main program.

Input: a process' relations in /proc and its environment, where that may be read; output: a text that is equal
for the processes of one program on one machine. In order: a known launcher among its ancestors, rank variables,
the leader of its process group, the leader of its session; else the process is a program of its own. Shells and
other programs that start what does not belong together are no launchers: of two servers that one script starts
in the background each is a program of its own.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from gpuscope.agent.owners.proc import Proc, ProcessGone, ProcessRelations
from gpuscope.base.errors import SourceError

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
