"""A real one-node Kubernetes for one test session: etcd, API server, controllers, scheduler, kubelet.

Needs root and the programs of `go_programs` and of Debian packages. Everything is below one folder with a short
path (UNIX sockets), on addresses, a bridge and cgroups of its own; `down` ends only processes that it started.
There is no kube-proxy: the API server's service address works, because it is an address of this machine; others
do not. The name server of pods is port 53 of the node's address: a test that needs names serves them there.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.labs.debian_programs import LabUnavailable, run, unpack
from tests.labs.device_plugin import FOLDER as PLUGIN_FOLDER
from tests.labs.device_plugin import DevicePlugin
from tests.labs.go_programs import go_program
from tests.labs.kubernetes_configuration import (
    API_ADDRESS,
    BRIDGE,
    NODE,
    NODE_ADDRESS,
    kubelet_configuration,
    make_cgroup,
    remove_cgroup,
    write_configuration,
)
from tests.labs.kubernetes_pki import make_pki
from tests.labs.lab_images import pause_archive
from tests.waiting import wait_for

SERVICE_NETWORK = "10.97.0.0/16"
CONTAINER_LOGS = Path("/var/log/containers")  # the kubelet's folder of links; it cannot be moved
ETCD_PORT = 12479
STOP_SECONDS = 20.0


class KubernetesLab:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet_folder = folder / "kubelet"
        self.driver_folder = folder / "driver"
        """Where the `nvidia` runtime looks for the driver library; a test puts it there."""
        sid = unpack(("containerd", "etcd-server", "kubectl"), "sid")
        # sid's runc needs a newer libc
        self._stable = unpack(("runc", "containernetworking-plugins"), "bookworm")
        self._sid = sid
        self.pki = folder / "pki"
        path = f"{sid}/usr/bin:{self._stable}/usr/sbin:{os.environ['PATH']}"
        self.environment = {
            **os.environ,
            "PATH": path,
            "KUBECONFIG": str(self.pki / "admin.kubeconfig"),
            **{f"HELM_{kind}_HOME": str(folder / "helm") for kind in ("CACHE", "CONFIG", "DATA")},
        }
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.plugins: list[DevicePlugin] = []

    # commands

    def kubectl(self, *argv: str | Path, check: bool = True, stdin: str = "") -> str:
        command = ["kubectl", *map(str, argv)]
        done = subprocess.run(command, env=self.environment, input=stdin, capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{command}:\n{done.stdout[-1500:]}{done.stderr[-2500:]}"
        return done.stdout

    def get(self, *argv: str) -> Any:
        return json.loads(self.kubectl("get", *argv, "-o", "json"))

    def helm(self, *argv: str | Path, check: bool = True) -> str:
        command = [str(go_program("helm")), *map(str, argv)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True)
        assert not check or done.returncode == 0, f"{command}:\n{done.stdout[-1500:]}{done.stderr[-2500:]}"
        return done.stdout + done.stderr

    def apply(self, *documents: object) -> None:
        self.kubectl("apply", "-f", "-", stdin="\n---\n".join(map(json.dumps, documents)))

    def ctr(self, *argv: str | Path) -> str:
        return run("ctr", "-a", self.folder / "ctd.sock", "-n", "k8s.io", *argv, env=self.environment)

    def add_image(self, archive: Path) -> None:
        self.ctr("images", "import", archive)

    def wait_until(self, condition: Callable[[], Any], what: str) -> Any:
        def look() -> Any:
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended:\n{self.log(name)}"
            return condition()

        return wait_for(look, what, self._pods_text)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")[-3000:]

    def _pods_text(self) -> str:
        listed = self.kubectl("get", "pods", "-A", "-o", "wide", check=False)
        events = self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp", check=False)
        return f"{listed}\n{events[-3000:]}"

    # processes

    def spawn(self, name: str, *command: str | Path, **environment: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [str(word) for word in command], env=self.environment | environment, stdout=log, stderr=log,
                stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        self._processes[name] = process
        return process

    def stop(self, *names: str) -> None:
        for name in names:
            process = self._processes.pop(name, None)
            if process is None:
                continue
            process.terminate()
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restart_kubelet(self, **feature_gates: bool) -> None:
        """As after an upgrade: pods go on, sockets are new, device plugins must register again."""
        self.stop("kubelet")
        self._write_kubelet_configuration(feature_gates)
        socket = PLUGIN_FOLDER / "kubelet.sock"
        socket.unlink(missing_ok=True)
        self._start_kubelet()
        # It empties the folder before it makes its socket: a plugin that comes earlier loses its own.
        self.wait_until(socket.exists, "the kubelet has no socket for device plugins")
        self.wait_until(self._node_is_ready, "the node is not ready")
        for plugin in self.plugins:
            plugin.stop()
            plugin.start()
            self.wait_until(partial(self._is_offered, plugin), f"the node has no {plugin.resource}")

    def offer_devices(self, resource: str, ids: list[str]) -> DevicePlugin:
        plugin = DevicePlugin(resource, ids)
        plugin.start()
        self.plugins.append(plugin)

        self.wait_until(lambda: self._is_offered(plugin), f"the node has no {resource}")
        return plugin

    def _is_offered(self, plugin: DevicePlugin) -> bool:
        (node,) = self.get("nodes")["items"]
        return str(node["status"]["allocatable"].get(plugin.resource, "0")) == str(len(plugin.ids))

    # start

    def up(self) -> None:
        make_pki(self.pki, API_ADDRESS, NODE, NODE_ADDRESS)
        for address in (API_ADDRESS, NODE_ADDRESS):
            run("ip", "addr", "replace", f"{address}/32", "dev", "lo")
        write_configuration(self.folder, self._stable, self.driver_folder)
        self._write_kubelet_configuration({})
        client, peer = f"http://127.0.0.1:{ETCD_PORT}", f"http://127.0.0.1:{ETCD_PORT + 1}"
        self.spawn(
            "etcd", "etcd", "--data-dir", self.folder / "etcd", "--listen-client-urls", client,
            "--advertise-client-urls", client, "--listen-peer-urls", peer,
            "--initial-advertise-peer-urls", peer, "--initial-cluster", f"default={peer}", "--unsafe-no-fsync",
        )  # fmt: skip
        self.spawn("containerd", "containerd", "-c", self.folder / "containerd.toml")
        self._start_api_server(client)
        self.wait_until(lambda: self._answers("get", "--raw", "/readyz"), "the API server does not answer")
        self._start_controllers()
        self.wait_until(self._containerd_answers, "containerd does not answer")
        self.add_image(pause_archive(self.folder))
        make_cgroup()
        self._start_kubelet()
        self.wait_until(self._node_is_ready, "the node is not ready")
        self.wait_until(lambda: self._answers("get", "serviceaccount", "default"), "no service account")
        self.kubectl("label", "node", NODE, "accelerator=nvidia")

    def _answers(self, *argv: str) -> bool:
        command = ["kubectl", "--request-timeout=5s", *argv]
        return subprocess.run(command, env=self.environment, capture_output=True).returncode == 0

    def _containerd_answers(self) -> bool:
        with suppress(LabUnavailable):
            return bool(self.ctr("version"))
        return False

    def _node_is_ready(self) -> bool:
        return self._answers("wait", "--for=condition=Ready", f"node/{NODE}", "--timeout=1s")

    def _start_api_server(self, etcd: str) -> None:
        pki = self.pki
        self.spawn(
            "kube-apiserver", go_program("kube-apiserver"), f"--etcd-servers={etcd}",
            f"--bind-address={API_ADDRESS}", "--secure-port=443", f"--advertise-address={API_ADDRESS}",
            "--endpoint-reconciler-type=none", f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--client-ca-file={pki}/ca.crt", f"--tls-cert-file={pki}/apiserver.crt",
            f"--tls-private-key-file={pki}/apiserver.key", f"--cert-dir={self.folder}/apiserver",
            f"--service-account-key-file={pki}/sa.pub", f"--service-account-signing-key-file={pki}/sa.key",
            "--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=Node,RBAC",
            "--allow-privileged=true", f"--kubelet-client-certificate={pki}/admin.crt",
            f"--kubelet-client-key={pki}/admin.key", f"--kubelet-certificate-authority={pki}/ca.crt",
            "--kubelet-preferred-address-types=InternalIP", f"--requestheader-client-ca-file={pki}/ca.crt",
            "--requestheader-allowed-names=front-proxy-client",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={pki}/front-proxy.crt",
            f"--proxy-client-key-file={pki}/front-proxy.key", "--enable-aggregator-routing=true",
        )  # fmt: skip

    def _start_controllers(self) -> None:
        pki = self.pki
        for name, user in (("kube-controller-manager", "controller-manager"), ("kube-scheduler", "scheduler")):
            kubeconfig = pki / f"{user}.kubeconfig"
            flags = [
                f"--{kind}={kubeconfig}"
                for kind in ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
            ]
            flags += ["--leader-elect=false", "--bind-address=127.0.0.1"]
            flags.append(f"--secure-port={10357 if user == 'scheduler' else 10358}")
            if user == "controller-manager":
                flags += [
                    f"--service-account-private-key-file={pki}/sa.key", f"--root-ca-file={pki}/ca.crt",
                    "--use-service-account-credentials=true", "--horizontal-pod-autoscaler-sync-period=3s",
                    "--horizontal-pod-autoscaler-downscale-stabilization=5s",
                ]  # fmt: skip
            self.spawn(name, go_program(name), *flags)

    def _start_kubelet(self) -> None:
        self.spawn(
            "kubelet", go_program("kubelet"), f"--config={self.folder}/kubelet.json",
            f"--kubeconfig={self.pki}/node.kubeconfig", f"--hostname-override={NODE}",
            f"--root-dir={self.kubelet_folder}", f"--cert-dir={self.kubelet_folder}/pki",
            f"--node-ip={NODE_ADDRESS}",
        )  # fmt: skip

    def _write_kubelet_configuration(self, feature_gates: dict[str, bool]) -> None:
        configuration = kubelet_configuration(self.folder, self.pki) | {"featureGates": feature_gates}
        (self.folder / "kubelet.json").write_text(json.dumps(configuration))

    # end

    def down(self) -> None:
        """In this order: nothing may create pods again, and the kubelet must still run while they end."""
        for plugin in self.plugins:
            plugin.stop()
        self.stop("kube-controller-manager", "kube-scheduler")
        if {"kube-apiserver", "kubelet"} <= self._processes.keys():
            delete = ["kubectl", "delete", "pods", "-A", "--all", "--grace-period=1", "--timeout=40s"]
            subprocess.run(delete, env=self.environment, capture_output=True)
        others = [name for name in self._processes if name not in ("containerd", "etcd")]
        self.stop("kubelet", *others)
        self._end_containers()
        self.stop("etcd", "containerd")
        _end_shims(self.folder / "ctd.sock")
        subprocess.run(["ip", "link", "delete", BRIDGE], capture_output=True)
        for address in (API_ADDRESS, NODE_ADDRESS):
            subprocess.run(["ip", "addr", "del", f"{address}/32", "dev", "lo"], capture_output=True)
        remove_cgroup()
        mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        for path in sorted((p for p in mounted if p.startswith(f"{self.folder}/")), reverse=True):
            subprocess.run(["umount", "-l", path], capture_output=True)
        for link in CONTAINER_LOGS.glob("*.log") if CONTAINER_LOGS.exists() else ():
            if link.is_symlink() and str(link.readlink()).startswith(f"{self.folder}/"):
                link.unlink()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end_containers(self) -> None:
        if "containerd" not in self._processes:
            return
        for arguments in (("tasks", "ls", "-q"), ("containers", "ls", "-q")):
            with suppress(LabUnavailable):
                for one in self.ctr(*arguments).split():
                    with suppress(LabUnavailable):
                        if arguments[0] == "tasks":
                            self.ctr("tasks", "rm", "-f", one)
                        else:
                            self.ctr("containers", "rm", one)


def _end_shims(socket: Path) -> None:
    """containerd's shims outlive it; those of this lab have its socket on their command line."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError, ProcessLookupError):
                words = (entry / "cmdline").read_bytes().split(b"\0")
                if words[0].endswith(b"containerd-shim-runc-v2") and str(socket).encode() in words:
                    os.kill(int(entry.name), signal.SIGKILL)


@contextmanager
def kubernetes_lab() -> Iterator[KubernetesLab]:
    if os.geteuid() != 0:
        raise LabUnavailable("only root can start a kubelet")
    made_by_us = not PLUGIN_FOLDER.parent.exists()
    if not made_by_us and any(PLUGIN_FOLDER.glob("kubelet.sock")):
        raise LabUnavailable("this machine has a kubelet already")
    lab = KubernetesLab(Path(tempfile.mkdtemp(prefix="gsk8", dir="/tmp")))
    try:
        lab.up()
        yield lab
    finally:
        lab.down()
        if made_by_us:
            shutil.rmtree(PLUGIN_FOLDER.parent, ignore_errors=True)
