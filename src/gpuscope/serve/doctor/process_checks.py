"""Checks of process ownership: PIDs, /proc, cgroups and Kubernetes allocations.

In a pod most problems are a missing line of the manifest; the fix names that line.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuscope.agent.owners.pod_resources import PodResources, list_pod_resources
from gpuscope.agent.owners.proc import INITIAL_PID_NAMESPACE, Proc, ProcessGone
from gpuscope.base.errors import SourceError
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import ABSENT, Process
from gpuscope.serve.doctor.gpus import visible_variables

INITIAL_CGROUP_NAMESPACE: Final = "cgroup:[4026531835]"  # the kernel's fixed number
_MOUNT_DIRECTORY: Final = "not the socket alone: a restarted kubelet creates a new one"


def pid_namespace(context: DoctorContext) -> Iterator[CheckResult]:
    link = _namespace(context, "pid")
    if link in ("", INITIAL_PID_NAMESPACE) or context.settings.path_procfs != "/proc":
        return
    where = "in the pod's spec: hostPID: true" if _on_kubernetes(context) else "docker run --pid=host"
    what = (
        "this agent has its own PID namespace, but the driver reports PIDs of the machine: "
        "the owners of processes cannot be found"
    )
    yield CheckResult(Verdict.BAD, what, where)


def hidden_processes(context: DoctorContext) -> Iterator[CheckResult]:
    mounts = _read(_proc(context) / "mounts")
    match = re.search(r"^\S+ \S+ proc \S*hidepid=(?!0\b|off\b)(\w+)", mounts, re.MULTILINE)
    if match and os.geteuid() != 0:
        fix = "run as root (securityContext: runAsUser: 0), or with the group of the mount's gid= option"
        yield CheckResult(
            Verdict.BAD, f"/proc is mounted with hidepid={match[1]}: processes of other users are hidden", fix
        )


def driver_pids(context: DoctorContext) -> Iterator[CheckResult]:
    """Whether /proc has the driver's PIDs, with the same process names."""
    processes = () if context.snapshot.processes is ABSENT else context.snapshot.processes
    if not processes or context.snapshot.simulated:
        return
    proc, gone, other = Proc(str(_proc(context))), [], []
    for process in processes:
        try:
            comm = proc.stat(int(process.pid)).comm
        except (ProcessGone, OSError):
            gone.append(process)
            continue
        if not _same_name(process, comm):
            other.append(f"{process.pid} is {process.command} in the driver and {comm} in /proc")
    if len(gone) == len(processes):
        fix = "hostPID: true in the pod's spec; in WSL and nested containers the driver's PIDs cannot be used"
        yield CheckResult(Verdict.BAD, f"none of the driver's {len(processes)} PIDs is in /proc", fix)
    elif other and len(other) == len(processes) - len(gone):
        fix = "hostPID: true in the pod's spec: other processes have these PIDs here"
        yield CheckResult(Verdict.BAD, f"PIDs do not match: {other[0]}", fix)
    else:
        here = len(processes) - len(gone)
        yield CheckResult(Verdict.GOOD, f"{here} of {len(processes)} processes of the driver are in /proc")


def _same_name(process: Process, comm: str) -> bool:
    # Programs rename themselves; only a completely different name is another process.
    command = process.command
    return command is ABSENT or command[:4].lower() == comm[:4].lower() or comm[:15] in command


def cgroup_namespace(context: DoctorContext) -> Iterator[CheckResult]:
    link = _namespace(context, "cgroup")
    if link not in ("", INITIAL_CGROUP_NAMESPACE):
        what = (
            "this agent has its own cgroup namespace: processes of other pods are found, processes of its own "
            "pod only by container"
        )
        fix = "only needed to monitor this pod itself: securityContext: privileged: true shows whole paths"
        yield CheckResult(Verdict.NOTE, what, fix)


def kubelet_socket(context: DoctorContext) -> Iterator[CheckResult]:
    if not _on_kubernetes(context):
        return
    path = _under(context, context.settings.kubelet_socket)
    try:
        found = path.stat()
    except PermissionError:
        yield _socket_refused(path)
        return
    except OSError:
        fix = (
            f"mount the folder {path.parent} of the node (hostPath, readOnly; {_MOUNT_DIRECTORY}); "
            "if it is not in /var/lib/kubelet, set --kubelet-socket"
        )
        yield CheckResult(Verdict.BAD, f"the kubelet's socket {path} does not exist: no GPU has a pod", fix)
        return
    if not stat.S_ISSOCK(found.st_mode):
        fix = f"mount the folder, {_MOUNT_DIRECTORY}"
        yield CheckResult(Verdict.BAD, f"{path} is not a socket", fix)
        return
    if not os.access(path, os.R_OK | os.W_OK):
        yield _socket_refused(path)
        return
    try:
        found_resources = list_pod_resources(str(path), context.settings.resource_names, timeout=5.0)
    except SourceError as error:
        yield CheckResult(Verdict.BAD, f"the kubelet does not answer: {error}", _kubelet_fix(str(error)))
        return
    yield from _unknown_resources(found_resources)
    yield CheckResult(
        Verdict.GOOD, f"the kubelet lists the allocated GPUs: {len(found_resources.claims)} devices"
    )


def _unknown_resources(found: PodResources) -> Iterator[CheckResult]:
    """Resources whose name or ids are those of GPUs; all others too, if the kubelet lists no GPU."""
    gpus = found.unknown_gpu_resources
    named = [name for name in found.other_resources if name in gpus or "gpu" in name.lower()]
    suspects = named or ([] if found.claims else found.other_resources)
    if suspects:
        names = ",".join(suspects)
        fix = f"if these are GPUs: --resource-names {names} (Helm: agent.resourceNames={{{names}}})"
        what = (
            f"the kubelet allocated devices of {names}, which is not known as a GPU resource: "
            "their pods are not shown"
        )
        yield CheckResult(Verdict.BAD, what, fix)


def _socket_refused(path: Path) -> CheckResult:
    fix = (
        "securityContext: runAsUser: 0; on SELinux (OpenShift) also "
        "seLinuxOptions: {type: container_device_plugin_t} or privileged: true"
    )
    return CheckResult(Verdict.BAD, f"no permission to open {path}", fix)


def _kubelet_fix(why: str) -> str:
    if "UNIMPLEMENTED" in why:
        return "this is a different socket (device-plugins/kubelet.sock?): mount /var/lib/kubelet/pod-resources"
    if "RESOURCE_EXHAUSTED" in why:
        return "a client queries the kubelet too often (all clients share 100 requests a second); find it"
    return "journalctl -u kubelet on the node"


def pod_names(context: DoctorContext) -> Iterator[CheckResult]:
    processes = () if context.snapshot.processes is ABSENT else context.snapshot.processes
    owners = [process.owner for process in processes]
    nameless = sum(owner.pod_uid is not ABSENT and owner.pod is ABSENT for owner in owners)
    if nameless:
        fix = (
            f"mount {_container_logs(context)} of the node (hostPath, readOnly), "
            "or set --kubelet-url and allow `get` on nodes/pods"
        )
        yield CheckResult(Verdict.BAD, f"{nameless} processes are in pods with unknown names", fix)
    elif any(owner.pod is not ABSENT for owner in owners):
        yield CheckResult(Verdict.GOOD, "every process in a pod has its pod's name")
    if any(owner.pod is not ABSENT and owner.container is ABSENT for owner in owners):
        fix = f"mount {_container_logs(context)} of the node: its links name the containers"
        yield CheckResult(Verdict.NOTE, "the container of some processes in pods is unknown", fix)


def _container_logs(context: DoctorContext) -> Path:
    return Path(context.settings.path_pod_logs).parent / "containers"


def job_environments(context: DoctorContext) -> Iterator[CheckResult]:
    if context.snapshot.ownership.failures.get("environment"):
        fix = "run as root, or securityContext: capabilities: {add: [SYS_PTRACE]}"
        what = "account and partition of Slurm jobs are unknown: no permission to read process environments"
        yield CheckResult(Verdict.NOTE, what, fix)


def use_and_allocation(context: DoctorContext) -> Iterator[CheckResult]:
    """Reports GPUs that are used without an allocation, and allocated devices that are not visible."""
    ownership = context.snapshot.ownership
    if ownership.allocations is ABSENT:
        return
    strangers = sorted({f"{u.owner.namespace}/{u.owner.name}" for u in ownership.uses if u.allocated is False})
    if strangers:
        variables = " or ".join(f"{name}=all" for name in visible_variables(context.snapshot))
        fix = f"remove {variables} or privileged: true, which let a pod use any GPU, from its spec"
        what = f"pods use GPUs without an allocation: {', '.join(strangers[:5])}"
        yield CheckResult(Verdict.NOTE, what, fix)
    unmatched = sorted(
        {allocation.device_id for allocation in ownership.allocations if allocation.gpu_uuid is ABSENT}
    )
    if unmatched:
        fix = "the GPU may be lost or not mapped into this container; if not, please report the form of the id"
        what = f"the kubelet allocated devices that are not visible here: {', '.join(unmatched[:3])}"
        yield CheckResult(Verdict.NOTE, what, fix)


def _proc(context: DoctorContext) -> Path:
    path = context.settings.path_procfs
    return context.root / "proc" if path == "/proc" else Path(path)


def _under(context: DoctorContext, path: str) -> Path:
    return context.root / path.lstrip("/")


def _namespace(context: DoctorContext, kind: str) -> str:
    try:
        return str((context.root / "proc/self/ns" / kind).readlink())
    except OSError:
        return ""


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace")
    except OSError:
        return ""


def _on_kubernetes(context: DoctorContext) -> bool:
    folder = _under(context, context.settings.kubelet_socket).parent
    return "KUBERNETES_SERVICE_HOST" in context.environment or folder.is_dir()


CHECKS = (
    pid_namespace,
    hidden_processes,
    driver_pids,
    cgroup_namespace,
    kubelet_socket,
    pod_names,
    job_environments,
    use_and_allocation,
)
REAL_GPU_CHECKS = (pid_namespace, hidden_processes, driver_pids, cgroup_namespace)
