"""Can it be told whose the processes on the GPUs are? PIDs, /proc, cgroups, and who Kubernetes gave what.

In a pod most of what is missing is one line of the manifest, so the fix names that line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuscope.doctor import Diagnosis, Scene, Verdict
from gpuscope.errors import SourceError
from gpuscope.owners.pod_resources import list_claims
from gpuscope.owners.proc import INITIAL_PID_NAMESPACE, Proc, ProcessGone
from gpuscope.readings import ABSENT, Process

INITIAL_CGROUP_NAMESPACE: Final = "cgroup:[4026531835]"  # the kernel's own number for it
_MOUNT_DIRECTORY: Final = "never the socket alone, a restarted kubelet makes a new one"


def the_pid_namespace(scene: Scene) -> Iterator[Diagnosis]:
    link = _namespace(scene, "pid")
    if link in ("", INITIAL_PID_NAMESPACE) or scene.settings.path_procfs != "/proc":
        return
    where = "in the pod's spec: hostPID: true" if _on_kubernetes(scene) else "docker run --pid=host"
    what = (
        "this agent has a PID namespace of its own: the driver's PIDs are the machine's, "
        "so no process can be told whose it is"
    )
    yield Diagnosis(Verdict.BAD, what, where)


def hidden_processes(scene: Scene) -> Iterator[Diagnosis]:
    mounts = _read(_proc(scene) / "mounts")
    match = re.search(r"^\S+ \S+ proc \S*hidepid=(?!0\b|off\b)(\w+)", mounts, re.MULTILINE)
    if match and os.geteuid() != 0:
        fix = "run as root (securityContext: runAsUser: 0), or with the group of the mount's gid= option"
        yield Diagnosis(
            Verdict.BAD, f"/proc is mounted with hidepid={match[1]}: others' processes are hidden", fix
        )


def pids_of_the_driver(scene: Scene) -> Iterator[Diagnosis]:
    """Whether /proc knows the PIDs the driver gives, and by the same names."""
    processes = () if scene.snapshot.processes is ABSENT else scene.snapshot.processes
    if not processes or scene.snapshot.simulated:
        return
    proc, gone, other = Proc(str(_proc(scene))), [], []
    for process in processes:
        try:
            comm = proc.stat(int(process.pid)).comm
        except (ProcessGone, OSError):
            gone.append(process)
            continue
        if not _same_name(process, comm):
            other.append(f"{process.pid} is {process.command} to the driver and {comm} in /proc")
    if len(gone) == len(processes):
        fix = "hostPID: true in the pod's spec; in WSL and in nested containers the driver's PIDs are of no use"
        yield Diagnosis(Verdict.BAD, f"none of the driver's {len(processes)} PIDs is in /proc", fix)
    elif other and len(other) == len(processes) - len(gone):
        fix = "hostPID: true in the pod's spec: these are other processes that have the same numbers here"
        yield Diagnosis(Verdict.BAD, f"PIDs do not match: {other[0]}", fix)
    else:
        here = len(processes) - len(gone)
        yield Diagnosis(Verdict.GOOD, f"{here} of {len(processes)} processes of the driver are in /proc")


def _same_name(process: Process, comm: str) -> bool:
    # Interpreters and workers rename themselves; only a name that shares nothing is taken for another process.
    command = process.command
    return command is ABSENT or command[:4].lower() == comm[:4].lower() or comm[:15] in command


def the_cgroup_namespace(scene: Scene) -> Iterator[Diagnosis]:
    link = _namespace(scene, "cgroup")
    if link not in ("", INITIAL_CGROUP_NAMESPACE):
        what = (
            "this agent has a cgroup namespace of its own: other pods are found all the same, processes "
            "of its own pod by their container only"
        )
        fix = "nothing, unless you watch this very pod; securityContext: privileged: true shows whole paths"
        yield Diagnosis(Verdict.NOTE, what, fix)


def the_kubelet(scene: Scene) -> Iterator[Diagnosis]:
    if not _on_kubernetes(scene):
        return
    path = _under(scene, scene.settings.kubelet_socket)
    try:
        found = path.stat()
    except PermissionError:
        yield _socket_refused(path)
        return
    except OSError:
        fix = (
            f"mount the folder {path.parent} of the node (hostPath, readOnly; {_MOUNT_DIRECTORY}); "
            "elsewhere than /var/lib/kubelet, give --kubelet-socket"
        )
        yield Diagnosis(Verdict.BAD, f"the kubelet's socket {path} is not there: no GPU has a pod", fix)
        return
    if not stat.S_ISSOCK(found.st_mode):
        fix = f"mount the folder, {_MOUNT_DIRECTORY}"
        yield Diagnosis(Verdict.BAD, f"{path} is no socket", fix)
        return
    if not os.access(path, os.R_OK | os.W_OK):
        yield _socket_refused(path)
        return
    try:
        claims = list_claims(str(path), scene.settings.resource_names, timeout=5.0)
    except SourceError as error:
        yield Diagnosis(Verdict.BAD, f"the kubelet does not answer: {error}", _kubelet_fix(str(error)))
        return
    yield Diagnosis(Verdict.GOOD, f"the kubelet says whom the GPUs were given to: {len(claims)} devices")


def _socket_refused(path: Path) -> Diagnosis:
    fix = (
        "securityContext: runAsUser: 0; on SELinux (OpenShift) also "
        "seLinuxOptions: {type: container_device_plugin_t} or privileged: true"
    )
    return Diagnosis(Verdict.BAD, f"no permission to open {path}", fix)


def _kubelet_fix(why: str) -> str:
    if "UNIMPLEMENTED" in why:
        return "this is another socket (device-plugins/kubelet.sock?): mount /var/lib/kubelet/pod-resources"
    if "RESOURCE_EXHAUSTED" in why:
        return "somebody asks it too often (all clients share 100 a second): find out who"
    return "journalctl -u kubelet on the node"


def names_of_pods(scene: Scene) -> Iterator[Diagnosis]:
    processes = () if scene.snapshot.processes is ABSENT else scene.snapshot.processes
    owners = [process.owner for process in processes]
    nameless = sum(owner.pod_uid is not ABSENT and owner.pod is ABSENT for owner in owners)
    if nameless:
        fix = (
            f"mount {scene.settings.path_pod_logs} of the node (hostPath, readOnly), "
            "or give --kubelet-url and `get` on nodes/pods"
        )
        yield Diagnosis(Verdict.BAD, f"{nameless} processes are in pods whose names are not known", fix)
    elif any(owner.pod is not ABSENT for owner in owners):
        yield Diagnosis(Verdict.GOOD, "every process in a pod has its pod's name")
    if any(owner.pod is not ABSENT and owner.container is ABSENT for owner in owners):
        logs = Path(scene.settings.path_pod_logs).parent / "containers"
        fix = f"mount {logs} of the node beside it: its links tell containers apart"
        yield Diagnosis(
            Verdict.NOTE, "some pods have several containers, and which one it is is not known", fix
        )


def environments_of_jobs(scene: Scene) -> Iterator[Diagnosis]:
    if scene.snapshot.ownership.failures.get("environment"):
        fix = "run as root, or securityContext: capabilities: {add: [SYS_PTRACE]}"
        what = "account and partition of Slurm jobs are not known: processes' environments may not be read"
        yield Diagnosis(Verdict.NOTE, what, fix)


def mig_access(scene: Scene) -> Iterator[Diagnosis]:
    blind = [d.index for d in scene.snapshot.devices if d.mig_enabled == 1 and not d.instances and not d.lost]
    if blind and _on_kubernetes(scene):
        fix = (
            "env: NVIDIA_MIG_MONITOR_DEVICES=all and NVIDIA_VISIBLE_DEVICES=all, with runtimeClassName: nvidia "
            "and securityContext: capabilities: {add: [SYS_ADMIN]}"
        )
        gpus = ", ".join(map(str, blind))
        yield Diagnosis(Verdict.BAD, f"MIG is on on GPU {gpus} but this pod may not see its instances", fix)


def use_against_allocation(scene: Scene) -> Iterator[Diagnosis]:
    """Allocated and unused, used and not allocated: both are worth a look, neither is an error of ours."""
    ownership = scene.snapshot.ownership
    if ownership.allocations is ABSENT:
        return
    strangers = sorted({f"{u.owner.namespace}/{u.owner.name}" for u in ownership.uses if u.allocated is False})
    if strangers:
        fix = "NVIDIA_VISIBLE_DEVICES=all or privileged: true lets a pod use any GPU; take it from its spec"
        what = f"pods use GPUs they were not given: {', '.join(strangers[:5])}"
        yield Diagnosis(Verdict.NOTE, what, fix)
    unmatched = sorted({one.device_id for one in ownership.allocations if one.gpu_uuid is ABSENT})
    if unmatched:
        fix = (
            "a GPU that is lost or not mapped into this container, or an id form to be added: please report it"
        )
        what = f"the kubelet gave away devices that are not visible here: {', '.join(unmatched[:3])}"
        yield Diagnosis(Verdict.NOTE, what, fix)


def _proc(scene: Scene) -> Path:
    elsewhere = scene.settings.path_procfs
    return scene.root / "proc" if elsewhere == "/proc" else Path(elsewhere)


def _under(scene: Scene, path: str) -> Path:
    return scene.root / path.lstrip("/")


def _namespace(scene: Scene, kind: str) -> str:
    try:
        return str((scene.root / "proc/self/ns" / kind).readlink())
    except OSError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _on_kubernetes(scene: Scene) -> bool:
    folder = _under(scene, scene.settings.kubelet_socket).parent
    return "KUBERNETES_SERVICE_HOST" in scene.environment or folder.is_dir()


CHECKS = (
    the_pid_namespace,
    hidden_processes,
    pids_of_the_driver,
    the_cgroup_namespace,
    the_kubelet,
    names_of_pods,
    environments_of_jobs,
    mig_access,
    use_against_allocation,
)
