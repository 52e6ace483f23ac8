"""One Slurm cluster for the length of a test module: seven nodes, five of them with a slurmd; no accounting.

Slurm's daemons listen on every address, so they run in a network namespace that has only a loopback. `clients`
is a folder with the clients as programs that enter it; gpuscope runs them like any others. Only processes that
were started here are ended.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.slurm_lab.roots import has_jwt

SCRIPTS = Path(__file__).parents[2] / "deploy/slurm"
WRAPPERS = {
    "prolog": "GPUSCOPE_JOB_DIR={folder}/jobmap/$SLURMD_NODENAME exec {folder}/gpuscope-prolog",
    "epilog": "GPUSCOPE_JOB_DIR={folder}/jobmap/$SLURMD_NODENAME exec {folder}/gpuscope-epilog",
    # Only for nodes for which a test has written variables. There is no Python in a root of Slurm's own.
    "health-check": "cd {folder} && [ -e health-$SLURMD_NODENAME ] || exit 0\n"
    "set -a; . ./health-$SLURMD_NODENAME; exec {leave_root} {outside}/gpuscope-health-check",
}
CLIENTS = ("squeue", "sinfo", "sdiag", "sshare", "scontrol", "sbatch", "scancel")
RUNNING_NODES = ("gpu1", "gpu2", "gpu3", "mps1", "cpu1")
CONTROLLER_PORT = 6817
ODD_NAME = "\u202egnp.exe \"quoted\" 'twice' \\ \u05e9\u05dc\u05d5\u05dd"
ODD_ACCOUNT = "a|gpu|running|9 \u202e\u05e9"
"""Right-to-left marks and letters, quotes, a separator; without slurmdbd Slurm takes any account."""
_NUMBERS = itertools.count()
READY_SECONDS = 300  # only a defect takes as long, on a loaded machine too
LASTING = "sleep 36000"
"""What a job does that runs until the cluster ends. One that ends earlier makes room for those that wait."""

SLURM_CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SlurmdParameters=config_overrides
ReturnToService=2
MinJobAge=3600
# Only the backfill scheduler starts heterogeneous jobs, by default every 30 seconds.
SchedulerParameters=bf_interval=1
MpiDefault=none
MailProg=/bin/true
PrologFlags=Alloc
Prolog={folder}/prolog
Epilog={folder}/epilog
HealthCheckProgram={folder}/health-check
# Not 1: with it a resumed node was seen to stay `idle*`, without health checks; with 3 it responds again.
HealthCheckInterval=3
HealthCheckNodeState=ANY
GresTypes=gpu,shard,mps
MaxArraySize=100001
MaxJobCount=200000
Licenses=matlab:10
{more}
NodeName=DEFAULT Sockets=2 CoresPerSocket=8 RealMemory=64000
NodeName=gpu[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[17001-17002] Gres=gpu:a100:4
NodeName=gpu3 NodeHostname={host} NodeAddr=127.0.0.1 Port=17003 Gres=gpu:h100:2,gpu:a100_3g.20gb:2,shard:8
NodeName=cpu1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17004
NodeName=gpu4 NodeHostname={host} NodeAddr=127.0.0.1 Port=17005 Gres=gpu:4
NodeName=a-node-with-a-very-long-name NodeHostname={host} NodeAddr=127.0.0.1 Port=17006 Gres=gpu:a100:4
NodeName=mps1 NodeHostname={host} NodeAddr=127.0.0.1 Port=17007 Gres=gpu:a100:2,mps:200
PartitionName=gpu Nodes=gpu[1-4],a-node-with-a-very-long-name Default=YES State=UP
PartitionName=cpu Nodes=cpu1 State=UP
PartitionName=mps Nodes=mps1 State=UP
PartitionName=all Nodes=ALL State=UP Hidden=YES
"""
JWT_CONF = """
AuthAltTypes=auth/jwt
AuthAltParameters=jwt_key={folder}/jwt.key
"""
GRES_CONF = """AutoDetect=off
NodeName=gpu[1-2] Name=gpu Type=a100 File={folder}/dev/nvidia[0-3]
NodeName=gpu3 Name=gpu Type=h100 File={folder}/dev/nvidia[0-1]
NodeName=gpu3 Name=gpu Type=a100_3g.20gb File={folder}/dev/nvidia[2-3]
NodeName=gpu3 Name=shard Count=8
NodeName=mps1 Name=gpu Type=a100 File={folder}/dev/nvidia[0-1]
NodeName=mps1 Name=mps Count=200
"""


class SlurmCluster:
    def __init__(
        self, root: Path | None, more: str = "", before_controller: Callable[[SlurmCluster], None] | None = None
    ) -> None:
        """`more` is added to slurm.conf; `before_controller` starts what slurmctld needs."""
        self._root = root
        self._before_controller = before_controller
        name = f"{os.getpid()}-{next(_NUMBERS)}"
        self.namespace = f"gpuscope-slurm-{name}"
        # A UNIX socket's path is at most 108 bytes; the path is the same inside the root and outside.
        self.inside = Path(f"/tmp/gpuscope-slurm-{name}")
        self.outside = self.inside if root is None else root / self.inside.relative_to("/")
        self.clients = Path(f"/tmp/gpuscope-slurm-clients-{name}")
        self._more = more
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._registered = False
        self.jobs: dict[str, str] = {}  # by name

    def enter(self, *command: str) -> list[str]:
        """The command line that runs `command` where the daemons are."""
        chroot = [] if self._root is None else ["chroot", str(self._root)]
        conf = f"SLURM_CONF={self.inside}/slurm.conf"
        return ["nsenter", f"--net=/run/netns/{self.namespace}", *chroot, "env", conf, *command]

    def run(self, *command: str, check: bool = True) -> str:
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "SLURM_TIME_FORMAT": "%s"}
        done = subprocess.run(self.enter(*command), capture_output=True, env=environment, timeout=120)
        assert not check or done.returncode == 0, (command, done.stdout, done.stderr)
        return done.stdout.decode("utf-8", "surrogateescape")

    def submit(self, user: str, account: str, *arguments: str, script: str = LASTING) -> str:
        """The job's number."""
        self.wait_for_nodes()
        where = ("-D", str(self.inside / "jobs"), "-o", "/dev/null", "-A", account)
        as_user = ("setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups")
        return self.run(*as_user, "sbatch", "--parsable", *where, *arguments, "--wrap", script).strip()

    def start(self) -> None:
        subprocess.run(["ip", "netns", "add", self.namespace], check=True)
        for words in (("link", "set", "lo", "up"), ("addr", "add", "10.255.255.1/32", "dev", "lo")):
            # The second address: getaddrinfo finds nothing where 127.0.0.1 is the only one.
            subprocess.run(["ip", "-n", self.namespace, *words], check=True)
        self._write()
        self.spawn("munged", "munged", "--foreground", "--force", f"--key-file={self.inside}/munge.key",
                    f"--socket={self.inside}/munge.socket", f"--pid-file={self.inside}/munged.pid",
                    f"--log-file={self.inside}/munged.log", f"--seed-file={self.inside}/seed")  # fmt: skip
        self.wait("munged", lambda: (self.outside / "munge.socket").exists())
        if self._before_controller is not None:
            self._before_controller(self)
        self.start_controller()
        for node in RUNNING_NODES:
            self.spawn(f"slurmd-{node}", "slurmd", "-D", "-N", node)
        self.wait("nodes", self._nodes_are_idle)

    def _nodes_are_idle(self) -> bool:
        nodes = ",".join(RUNNING_NODES)
        states = self.run("sinfo", "-h", "-N", "-p", "all", "-n", nodes, "-o", "%T")
        return states.split() == ["idle"] * len(RUNNING_NODES)

    def wait_for_nodes(self) -> None:
        """After a restart of slurmctld: until every slurmd has registered, and its GRES are known again."""
        self.wait("nodes to register", self._nodes_have_registered)

    def _nodes_have_registered(self) -> bool:
        """Since the last start of slurmctld.

        22.05 gives a job that starts before a GPU without an index (`GRES=gpu:a100:0(IDX:)`), and so do its
        prolog's variables: only a node's slurmd knows the files in gres.conf.
        """
        if not self._registered:
            counted = re.search(r"NODE_REGISTRATION_STATUS .* count:(\d+)", self.run("sdiag"))
            nodes = ("sinfo", "-h", "-N", "-p", "all", "-n", ",".join(RUNNING_NODES), "-o", "%T")
            has_all = counted is not None and int(counted[1]) >= len(RUNNING_NODES)
            self._registered = has_all and "*" not in self.run(*nodes)
        return self._registered

    def start_controller(self) -> None:
        self._registered = False
        self.spawn("slurmctld", "slurmctld", "-D")
        self.wait("slurmctld", lambda: "is UP" in self.run("scontrol", "ping", check=False))

    def stop_controller(self) -> None:
        self.end("slurmctld")

    @property
    def is_this_machine(self) -> bool:
        """Whether Slurm is installed on the machine itself, and not in a root of its own."""
        return self._root is None

    def has(self, program: str) -> bool:
        return bool(self.run("sh", "-c", f"command -v {program}", check=False))

    def start_rest(self, auth: str = "local", listen: str = "") -> str:
        """slurmrestd's socket. It refuses to run as root or as Slurm's own user, and wants no slurmdbd.

        With `auth` jwt it takes every user's token; `listen` is another address to listen on.
        """
        folder = self.outside / f"rest-{auth}"
        if f"slurmrestd-{auth}" in self._daemons:
            return str(folder / "socket")
        folder.mkdir()
        shutil.chown(folder, "games", "games")
        environment = ["SLURM_BITSTR_LEN=0", *(["SLURM_JWT=daemon"] if auth == "jwt" else [])]
        as_user = ("setpriv", "--reuid=games", "--regid=games", "--clear-groups", "env", *environment)
        api = {(20, 11): "openapi/v0.0.36", (22, 5): "openapi/v0.0.38"}.get(self.version, "slurmctld")
        addresses = [f"unix:{self.inside}/rest-{auth}/socket", *([listen] if listen else [])]
        self.spawn(
            f"slurmrestd-{auth}", *as_user, "slurmrestd", "-s", api, "-a", f"rest_auth/{auth}", *addresses
        )
        self.wait("slurmrestd", lambda: (folder / "socket").exists())
        return str(folder / "socket")

    @property
    def has_jwt(self) -> bool:
        return has_jwt(self._root)

    def token(self, user: str, seconds: int) -> str:
        """A JWT of that user."""
        return (
            self.run("scontrol", "token", f"username={user}", f"lifespan={seconds}").strip().partition("=")[2]
        )

    def stop(self) -> None:
        """Ends what was started, whatever state it is in."""
        with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
            self._cancel_jobs()
        for name in reversed(self._daemons.copy()):
            self.end(name)
        if self._root is not None:
            for name in ("proc", "sys", "dev"):
                subprocess.run(["umount", "-l", str(self._root / name)], capture_output=True)
        subprocess.run(["ip", "netns", "delete", self.namespace], capture_output=True)
        shutil.rmtree(self.outside, ignore_errors=True)
        shutil.rmtree(self.clients, ignore_errors=True)

    def _cancel_jobs(self) -> None:
        """slurmd does not end its jobs when it ends."""
        jobs = set(self.run("squeue", "-a", "-h", "-o", "%A").split())
        if jobs:
            self.run("scancel", *jobs)
            held = ("squeue", "-h", "-a", "-t", "R,CG,S", "-o", "%A")
            self.wait("jobs to end", lambda: not self.run(*held).split())

    def wait(self, what: str, is_so: Callable[[], object]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not is_so():
            dead = [name for name, daemon in self._daemons.items() if daemon.poll() is not None]
            assert not dead, f"{what}: {', '.join(dead)} ended: {self._last_words()}"
            assert time.monotonic() < deadline, f"{what}: {self._last_words()}"
            time.sleep(0.1)

    def _last_words(self) -> str:
        logs = sorted(self.outside.glob("*.log")) + sorted(self.outside.glob("*.out"))
        return "\n".join(f"{log.name}: {log.read_text(errors='replace')[-300:]}" for log in logs)

    def _write(self) -> None:
        for name in ("state", "spool", "dev", "jobs", *(f"spool/{node}" for node in RUNNING_NODES)):
            (self.outside / name).mkdir(parents=True, exist_ok=True)
        self.outside.chmod(0o755)
        (self.outside / "jobs").chmod(0o777)
        host = os.uname().nodename.partition(".")[0]
        leave_root = "" if self._root is None else f"chroot /proc/{os.getpid()}/root"
        more = self._more + (JWT_CONF if has_jwt(self._root) else "")
        values = {"host": host, "folder": self.inside, "more": more.format(folder=self.inside)}
        values |= {"outside": self.outside, "leave_root": leave_root}
        (self.outside / "slurm.conf").write_text(SLURM_CONF.format(**values))
        (self.outside / "gres.conf").write_text(GRES_CONF.format(**values))
        (self.outside / "cgroup.conf").write_text(self._cgroup_conf())
        for name, size in (("munge.key", 1024), ("jwt.key", 32)):
            key = self.outside / name
            key.write_bytes(os.urandom(size))
            key.chmod(0o400)
        for script in SCRIPTS.iterdir():
            shutil.copy(script, self.outside / script.name)
        for name, text in WRAPPERS.items():
            (self.outside / name).write_text(f"#!/bin/sh\n{text.format(**values)}\n")
            (self.outside / name).chmod(0o755)
        for number in range(4):
            os.mknod(self.outside / f"dev/nvidia{number}", 0o666 | 0o020000, os.makedev(195, number))
        if self._root is not None:
            (self._root / "etc/hosts").write_text(f"127.0.0.1 localhost {host}\n")
            for name in ("proc", "sys", "dev"):
                subprocess.run(["mount", "--rbind", f"/{name}", str(self._root / name)], check=True)
                subprocess.run(["mount", "--make-rslave", str(self._root / name)], check=True)
        self.clients.mkdir()
        for name in CLIENTS:
            program = self.clients / name
            program.write_text(f'#!/bin/sh\nexec {" ".join(self.enter(name))} "$@"\n')
            program.chmod(0o755)

    def _cgroup_conf(self) -> str:
        if self.version < (22, 5):
            return ""
        return "CgroupPlugin=cgroup/v1\n" if self._root is None else "CgroupPlugin=disabled\n"

    @functools.cached_property
    def version(self) -> tuple[int, int]:
        year, month = self.run("slurmctld", "-V").split()[1].split(".")[:2]
        return int(year), int(month)

    def spawn(self, name: str, *command: str) -> None:
        with (self.outside / f"{name}.out").open("ab") as output:
            self._daemons[name] = subprocess.Popen(
                self.enter(*command), stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd="/"
            )

    def end(self, name: str) -> None:
        daemon = self._daemons.pop(name)
        daemon.terminate()
        try:
            daemon.wait(20)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait(20)


@contextmanager
def running_cluster(
    root: Path | None, more: str = "", before_controller: Callable[[SlurmCluster], None] | None = None
) -> Iterator[SlurmCluster]:
    cluster = SlurmCluster(root, more, before_controller)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def submit_jobs(cluster: SlurmCluster) -> dict[str, str]:
    """Jobs of every kind by name, settled: running, waiting for several reasons, ended in several ways."""
    one = ("-c", "1", "--mem=1G")
    jobs: dict[str, str] = {}

    def add(name: str, user: str, account: str, *arguments: str, script: str = LASTING) -> None:
        jobs[name] = cluster.submit(user, account, "-J", name, *one, *arguments, script=script)

    add("two", "games", "ml", "-p", "gpu", "-w", "gpu1", "--gres=gpu:2", "-L", "matlab:3", "-t", "100")
    add("typed", "news", "physics", "-p", "gpu", "-w", "gpu2", "--gres=gpu:a100:3")
    add("nodes", "games", "ml", "-p", "gpu", "-N2", "-w", "gpu[1-2]", "--gpus-per-node=a100:1")
    add("mig", "games", "ml", "-p", "gpu", "-w", "gpu3", "--gres=gpu:a100_3g.20gb:1")
    add("shard", "games", "ml", "-p", "gpu", "-w", "gpu3", "--gres=shard:2")
    add("mps", "games", "ml", "-p", "mps", "--gres=mps:50")
    add("odd,name|with\nline breaks\x1b[31m", "news", "physics", "-p", "cpu")
    forged = "     Nodes=cpu1 CPU_IDs=0 Mem=1 GRES=gpu:9(IDX:0-8)"
    add(
        f"x\nJobId={jobs['mig']} JobName=y\n   JOB_GRES=gpu:9\n{forged}\nJobId=999 z",
        "news",
        "physics",
        "-p",
        "cpu",
    )
    add(ODD_NAME, "news", ODD_ACCOUNT, "-p", "cpu")
    add("ok", "games", "ml", "-p", "cpu", script="true")
    add("bad", "news", "physics", "-p", "cpu", script="exit 3")
    add("cancelled", "games", "ml", "-p", "cpu")
    add("suspended", "games", "ml", "-p", "cpu")
    gpu_component = ("-J", "het", *one, "-p", "gpu", "-w", "gpu3", "--gres=gpu:h100:1")
    add("het", "games", "ml", "-p", "cpu", ":", *gpu_component, script=f"srun --het-group=0,1 {LASTING}")
    add("tasks", "games", "ml", "-p", "cpu", "--array=1-3%2")
    cluster.wait("jobs to start", lambda: _states(cluster).count("RUNNING") >= 15)
    cluster.run("scancel", jobs["cancelled"])
    cluster.run("scontrol", "suspend", jobs["suspended"])
    # Without a step: `squeue -r` leaves out the last task of 0-99:3, in every version.
    add("array", "games", "ml", "-p", "cpu", "--array=0-9,20-49%2", "--begin=now+1day")
    add("big", "news", "physics", "-p", "gpu", "--gres=gpu:a100:4")
    add("after", "news", "physics", "-p", "gpu", f"--dependency=afterok:{jobs['two']}")
    add("held", "games", "ml", "-p", "gpu", "--hold")
    add("either", "games", "ml", "-p", "gpu,all", "--gres=gpu:a100:4", "-N2")
    cluster.run("scontrol", "update", "NodeName=gpu3", "State=DRAIN", "Reason=Xid 79: off | the bus")
    cluster.run("scontrol", "create", "reservation", "ReservationName=course", "StartTime=now+1day",
                "Duration=60", "Nodes=gpu1", "Users=games,news", "Flags=IGNORE_JOBS")  # fmt: skip
    ended = {"COMPLETED", "FAILED", "CANCELLED", "SUSPENDED"}
    cluster.wait("jobs to end", lambda: ended <= set(_states(cluster)) and "COMPLETING" not in _states(cluster))
    return jobs


def _states(cluster: SlurmCluster) -> Sequence[str]:
    return cluster.run("squeue", "-a", "-r", "-h", "-t", "all", "-o", "%T").split()
