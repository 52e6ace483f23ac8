"""Addresses, files and cgroups of the Kubernetes lab: what containerd and the kubelet need to start."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.labs import nvidia_runtime
from tests.labs.lab_images import PAUSE_IMAGE

API_ADDRESS, NODE_ADDRESS = "10.97.0.1", "10.245.78.1"
POD_NETWORK = "10.245.77.0/24"
NODE, BRIDGE, CGROUP = "labnode", "gskube0", "gskube"
KUBELET_PORT = 10450
CONTAINERD = """version = 3
root = '{folder}/ctd/root'
state = '{folder}/ctd/state'
# Without CAP_SYS_RESOURCE no process may lower its OOM score.
oom_score = 0
disabled_plugins = ['io.containerd.snapshotter.v1.btrfs', 'io.containerd.snapshotter.v1.devmapper',
  'io.containerd.snapshotter.v1.zfs', 'io.containerd.snapshotter.v1.erofs',
  'io.containerd.snapshotter.v1.blockfile', 'io.containerd.nri.v1.nri']
[grpc]
  address = '{folder}/ctd.sock'
[ttrpc]
  address = '{folder}/ctd.sock.ttrpc'
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = '{pause}'
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  enable_unprivileged_ports = false
  enable_unprivileged_icmp = false
  netns_mounts_under_state_dir = true
{runtimes}  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ['{cni}']
    conf_dir = '{folder}/cni'
"""
RUNTIME = """  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}]
    runtime_type = 'io.containerd.runc.v2'
    sandboxer = 'podsandbox'
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.{name}.options]
      SystemdCgroup = false
      BinaryName = '{program}'
"""


def write_configuration(folder: Path, programs: Path, driver_folder: Path) -> None:
    """For containerd: pods' network, the runtimes `runc` and `nvidia`."""
    (folder / "cni").mkdir()
    ipam = {
        "type": "host-local",
        "dataDir": str(folder / "cni-state"),
        "ranges": [[{"subnet": POD_NETWORK}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {"type": "bridge", "bridge": BRIDGE, "isGateway": True, "ipMasq": False, "ipam": ipam}
    plugins = {"cniVersion": "0.4.0", "name": "lab", "plugins": [bridge, {"type": "loopback"}]}
    (folder / "cni" / "10-lab.conflist").write_text(json.dumps(plugins))
    runc = programs / "usr/sbin/runc"
    nvidia = folder / "nvidia-runtime"
    nvidia.write_text(f'#!/bin/sh\nexec python3 -I {nvidia_runtime.__file__} {runc} {driver_folder} "$@"\n')
    nvidia.chmod(0o755)
    runtimes = "".join(
        RUNTIME.format(name=name, program=path) for name, path in (("runc", runc), ("nvidia", nvidia))
    )
    (folder / "containerd.toml").write_text(
        CONTAINERD.format(folder=folder, pause=PAUSE_IMAGE, runtimes=runtimes, cni=programs / "usr/lib/cni")
    )


def kubelet_configuration(folder: Path, pki: Path) -> dict[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": NODE_ADDRESS,
        "port": KUBELET_PORT,
        "readOnlyPort": 0,
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": KUBELET_PORT + 1,
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "failSwapOn": False,
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{CGROUP}",
        "enforceNodeAllocatable": ["pods"],
        "containerRuntimeEndpoint": f"unix://{folder}/ctd.sock",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "oomScoreAdj": 0,
        "makeIPTablesUtilChains": False,  # nothing in the machine's firewall
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "syncFrequency": "10s",
        "nodeStatusUpdateFrequency": "5s",
        "podLogsDir": str(folder / "logs" / "pods"),
        "clusterDNS": [NODE_ADDRESS],
        "clusterDomain": "cluster.local",
        "containerLogMonitorInterval": "10s",
    }


def _hierarchies() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        return [root]
    return [path for path in root.iterdir() if path.is_dir() and path.name != "unified"]


def make_cgroup() -> None:
    """The kubelet refuses a cgroupRoot that does not exist in every hierarchy."""
    for hierarchy in _hierarchies():
        (hierarchy / CGROUP).mkdir(exist_ok=True)
        for name in ("cpuset.cpus", "cpuset.mems"):
            if (hierarchy / name).exists() and not (hierarchy / "cgroup.controllers").exists():
                (hierarchy / CGROUP / name).write_text((hierarchy / name).read_text())


def remove_cgroup() -> None:
    for hierarchy in _hierarchies():
        for path in sorted((hierarchy / CGROUP).rglob("*"), reverse=True):
            if path.is_dir():
                with suppress(OSError):
                    path.rmdir()
        with suppress(OSError):
            (hierarchy / CGROUP).rmdir()
