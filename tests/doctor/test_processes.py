"""The doctor's checks of owners: each problem and the line of the manifest that fixes it."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest

from gpuscope.base.settings import Settings
from gpuscope.model.doctor_check import CheckResult, DoctorContext, Verdict
from gpuscope.model.readings import (
    ABSENT,
    Allocation,
    Owner,
    OwnerKey,
    Ownership,
    OwnerUse,
    Pid,
    Process,
    Snapshot,
    Uuid,
)
from gpuscope.serve.doctor import process_checks as processes
from gpuscope.vendors.nvidia import doctor as driver
from gpuscope.vendors.nvidia.nvidia_values import make_device
from tests.owners.fake_kubelet import container, devices, pod, running_kubelet
from tests.owners.trees import ProcTree

IN_A_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1"}
GPU = Uuid("GPU-0")


def context(
    root: Path, snapshot: Snapshot | None = None, environment: dict[str, str] | None = None
) -> DoctorContext:
    settings = Settings(kubelet_socket="/pr/kubelet.sock")
    return DoctorContext(settings, snapshot or Snapshot(node="n", taken_at=0.0), root, environment or {})


def with_processes(*listed: Process, **more: object) -> Snapshot:
    return Snapshot(node="n", taken_at=0.0, processes=listed, **more)  # type: ignore[arg-type]


def process(pid: int, command: str = "python3", owner: Owner | None = None) -> Process:
    return Process(pid=Pid(pid), gpu_uuid=GPU, command=command, owner=owner or Owner())


def namespaces(root: Path, pid: str, cgroup: str) -> None:
    folder = root / "proc/self/ns"
    folder.mkdir(parents=True)
    (folder / "pid").symlink_to(pid)
    (folder / "cgroup").symlink_to(cgroup)


def only(findings: Iterator[CheckResult]) -> CheckResult:
    (finding,) = list(findings)
    return finding


@pytest.mark.parametrize(("environment", "fix"), [(IN_A_POD, "hostPID: true"), ({}, "--pid=host")])
def test_a_pid_namespace_of_its_own(tmp_path: Path, environment: dict[str, str], fix: str) -> None:
    namespaces(tmp_path, "pid:[4026532001]", "cgroup:[4026531835]")
    result = only(processes.pid_namespace(context(tmp_path, environment=environment)))
    assert result.verdict is Verdict.BAD
    assert fix in result.fix
    assert list(processes.cgroup_namespace(context(tmp_path))) == []


def test_the_machines_own_namespaces_are_fine(tmp_path: Path) -> None:
    namespaces(tmp_path, "pid:[4026531836]", "cgroup:[4026532002]")
    assert list(processes.pid_namespace(context(tmp_path))) == []
    assert only(processes.cgroup_namespace(context(tmp_path))).verdict is Verdict.NOTE


@pytest.mark.parametrize(
    ("options", "hidden"),
    [("rw,hidepid=2", True), ("rw,hidepid=invisible", True), ("rw,hidepid=0", False), ("rw", False)],
)
def test_hidden_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, hidden: bool) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/mounts").write_text(f"proc /proc proc {options} 0 0\n")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    found = list(processes.hidden_processes(context(tmp_path)))
    assert [f.verdict for f in found] == ([Verdict.BAD] if hidden else [])


def test_pids_that_are_missing_or_different_in_proc(tmp_path: Path) -> None:
    tree = ProcTree(tmp_path / "proc")
    tree.add(7, comm="sh")
    tree.add(8, comm="python3.11")
    listed = with_processes(process(7), process(8), process(9))
    assert only(processes.driver_pids(context(tmp_path, listed))).verdict is Verdict.GOOD
    mismatch = only(processes.driver_pids(context(tmp_path, with_processes(process(7)))))
    assert "7 is python3 in the driver and sh in /proc" in mismatch.what
    assert "hostPID: true" in mismatch.fix
    none = only(processes.driver_pids(context(tmp_path, with_processes(process(70), process(71)))))
    assert "none of the driver's 2 PIDs" in none.what
    simulated = replace(listed, simulated=True)
    assert list(processes.driver_pids(context(tmp_path, simulated))) == []


def test_a_socket_that_is_not_there_is_no_socket_or_does_not_answer(tmp_path: Path) -> None:
    assert list(processes.kubelet_socket(context(tmp_path))) == [], "no Kubernetes, no complaint"
    in_a_pod = context(tmp_path, environment=IN_A_POD)
    missing = only(processes.kubelet_socket(in_a_pod))
    assert "does not exist" in missing.what
    assert "mount the folder" in missing.fix
    path = tmp_path / "pr/kubelet.sock"
    path.parent.mkdir()
    path.touch()
    assert "is not a socket" in only(processes.kubelet_socket(in_a_pod)).what
    path.unlink()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert "refused" in only(processes.kubelet_socket(in_a_pod)).what
    path.unlink()


def test_a_kubelet_that_answers_and_the_wrong_socket(tmp_path: Path) -> None:
    in_a_pod = context(tmp_path, environment=IN_A_POD)
    with running_kubelet(tmp_path / "pr/kubelet.sock") as kubelet:
        kubelet.answer = lambda context: pod("ml", "a", container("c", devices("nvidia.com/gpu", "GPU-0")))
        good = only(processes.kubelet_socket(in_a_pod))
        assert (good.verdict, "1 devices" in good.what) == (Verdict.GOOD, True)

        def unimplemented(context: grpc.ServicerContext) -> bytes:
            context.abort(grpc.StatusCode.UNIMPLEMENTED, "unknown service v1.PodResourcesLister")
            return b""

        kubelet.answer = unimplemented
        assert "pod-resources" in only(processes.kubelet_socket(in_a_pod)).fix


@pytest.mark.skipif(os.geteuid() != 0, reason="who may not be refused needs another user")
def test_devices_of_an_unknown_resource_name_the_setting(tmp_path: Path) -> None:
    (tmp_path / "pr").mkdir()
    in_a_pod = context(tmp_path, environment=IN_A_POD)
    with running_kubelet(tmp_path / "pr/kubelet.sock") as kubelet:
        kubelet.answer = lambda _: pod("ml", "p", container("c", devices("example.com/gpu-a100", "GPU-0")))
        problem, good = processes.kubelet_socket(in_a_pod)
        assert problem.verdict is Verdict.BAD
        assert "example.com/gpu-a100, which is not known as a GPU resource" in problem.what
        assert "agent.resourceNames={example.com/gpu-a100}" in problem.fix
        assert "0 devices" in good.what
        named = replace(in_a_pod, settings=replace(in_a_pod.settings, resource_names=("example.com/gpu-a100",)))
        assert "1 devices" in only(processes.kubelet_socket(named)).what
        # A network card beside a GPU is not worth a line.
        both = container("c", devices("nvidia.com/gpu", "GPU-0"), devices("rdma/hca", "x"))
        kubelet.answer = lambda _: pod("ml", "p", both)
        assert only(processes.kubelet_socket(in_a_pod)).verdict is Verdict.GOOD


def test_a_socket_that_may_not_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    with running_kubelet(tmp_path / "pr/kubelet.sock"):
        refused = only(processes.kubelet_socket(context(tmp_path, environment=IN_A_POD)))
    assert "runAsUser: 0" in refused.fix
    assert "container_device_plugin_t" in refused.fix


def test_pods_without_names_and_containers_without(tmp_path: Path) -> None:
    nameless = with_processes(process(1, owner=Owner(pod_uid="u")))
    assert "/var/log/containers" in only(processes.pod_names(context(tmp_path, nameless))).fix
    which = with_processes(process(1, owner=Owner(pod_uid="u", pod="a", container_id="f" * 64)))
    verdicts = [f.verdict for f in processes.pod_names(context(tmp_path, which))]
    assert verdicts == [Verdict.GOOD, Verdict.NOTE]
    assert list(processes.pod_names(context(tmp_path, with_processes(process(1))))) == []


def test_environments_and_mig(tmp_path: Path) -> None:
    refused = with_processes(ownership=Ownership(failures={"environment": 3}))
    assert "SYS_PTRACE" in only(processes.job_environments(context(tmp_path, refused))).fix
    blind = with_processes(devices=(make_device(uuid=GPU, index=0, mig_enabled=1.0),))
    result = only(driver.instance_access(context(tmp_path, blind, IN_A_POD)))
    assert "NVIDIA_MIG_MONITOR_DEVICES=all" in result.fix


def test_use_and_allocation_that_disagree(tmp_path: Path) -> None:
    ownership = Ownership(
        allocations=(Allocation(device_id="GPU-lost", pod="a", namespace="ml"),),
        uses=(OwnerUse(owner=OwnerKey("pod", "thief", "ml"), gpu_uuid=GPU, allocated=False),),
    )
    thief, lost = processes.use_and_allocation(context(tmp_path, with_processes(ownership=ownership)))
    assert "ml/thief" in thief.what
    assert "GPU-lost" in lost.what
    unknown = with_processes(ownership=replace(ownership, allocations=ABSENT))
    assert list(processes.use_and_allocation(context(tmp_path, unknown))) == []
