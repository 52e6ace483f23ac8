"""The chart in the Kubernetes lab: fake GPUs offered as whole, shared and MIG devices, and pods that hold them.

`Scene` has the lab, the fake driver and the chart's values for both; it gives what kubectl says about the pods,
and what the agent's metrics say.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
import ssl
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fake_nvml.build import SONAME, library
from tests.fake_nvml.driver import FakeDriver, Mig, Process
from tests.labs.kubernetes_configuration import NODE_ADDRESS
from tests.labs.kubernetes_lab import KubernetesLab
from tests.labs.lab_images import PAUSE_IMAGE
from tests.scrape import fake_dns
from tests.waiting import wait_for

CHART = Path(__file__).parents[3] / "deploy/helm/gpuscope"
NAMESPACE, RELEASE = "gpu", "gs"
USER, PASSWORD = "scraper", "a password"
WHOLE, SHARED, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb"
WHOLE_GPUS, SHARED_GPU, MIG_GPU = (0, 3), 1, 2
REPLICAS = 6
Owner = tuple[str, str, str]
"""Namespace, pod, container."""


@dataclass(frozen=True, slots=True)
class LabServer:
    """The chart's server: its URL, and a token for its API."""

    url: str
    token: str

    def query(self, promql: str) -> list[Any]:
        url = f"{self.url}/api/v1/query?{urllib.parse.urlencode({'query': promql})}"
        answer = get(url, {"Authorization": f"Bearer {self.token}"})
        found: list[Any] = json.loads(answer)["data"]["result"] if answer else []
        return found


@dataclass
class Scene:
    lab: KubernetesLab
    driver: FakeDriver
    values: list[str] = field(default_factory=list)
    mig_uuids: list[str] = field(default_factory=list)

    # chart

    def install(self, *more: str) -> float:
        """Seconds until helm says that everything is ready."""
        began_at = time.monotonic()
        self.lab.helm(
            "upgrade", "--install", RELEASE, CHART, "-n", NAMESPACE, "--create-namespace", "--wait",
            "--timeout", "180s", *self.values, *more,
        )  # fmt: skip
        return time.monotonic() - began_at

    def install_server(self, *more: str) -> LabServer:
        """With the chart's server, which scrapes every second and keeps nothing unless told to."""
        self.install(
            "--set", "server.enabled=true", "--set", "server.persistence.enabled=false",
            "--set", "server.scrapeInterval=1s", *more,
        )  # fmt: skip
        command = ("gpuscope", "user", "token", f"lab-{secrets.token_hex(4)}", "--data", "/var/lib/gpuscope")
        target = f"sts/{RELEASE}-gpuscope-server"
        token = self.lab.kubectl("exec", "-n", NAMESPACE, target, "--", *command)
        return LabServer(self.server_url(), token.strip())

    def server_url(self) -> str:
        return f"http://{self.agent_pod('server')['status']['podIP']}:9470"

    def helm_test(self) -> None:
        """The chart's own test, with the names of its services served to pods."""
        found = {
            part: self.pods(NAMESPACE, f"app.kubernetes.io/component={part}") for part in ("agent", "server")
        }
        with fake_dns.serving_dns(NODE_ADDRESS, 53) as dns:
            dns.zone = {
                (f"{RELEASE}-gpuscope-{part}.{NAMESPACE}.svc.", fake_dns.A): [
                    fake_dns.a(pod["status"]["podIP"])
                ]
                for part, listed in found.items()
                for pod in listed
            }
            self.lab.helm("test", RELEASE, "-n", NAMESPACE, "--timeout", "60s")

    # pods

    def start_pod(self, name: str, resource: str, namespace: str = "ml", **labels: str) -> None:
        self.lab.apply(pod_document(name, resource, namespace, labels))
        self.lab.wait_until(lambda: self.phase(name, namespace) == "Running", f"{name} does not run")

    def phase(self, name: str, namespace: str = "ml") -> str:
        found = self.lab.kubectl("get", "pod", name, "-n", namespace, "-o", "json", check=False)
        return str(json.loads(found)["status"]["phase"]) if found else ""

    def pods(self, namespace: str = "ml", selector: str = "") -> list[Any]:
        chosen = ["-l", selector] if selector else []
        listed: list[Any] = self.lab.get("pods", "-n", namespace, *chosen)["items"]
        return [pod for pod in listed if "deletionTimestamp" not in pod["metadata"]]

    def pods_with_any_state(self, namespace: str) -> list[str]:
        """Also those that are ending; not those of `helm test`, which Helm leaves there if they failed."""
        listed = self.lab.get("pods", "-n", namespace, "-l", "app.kubernetes.io/component!=test")["items"]
        return [pod["metadata"]["name"] for pod in listed]

    def main_pid(self, pod: Any) -> int:
        """Of the pod's container, on the machine; 0 while it starts."""
        statuses = pod["status"].get("containerStatuses") or [{}]
        container = statuses[0].get("containerID", "").rpartition("/")[2]
        lines = self.lab.ctr("tasks", "ls").splitlines() if container else []
        return int(next((line.split()[1] for line in lines if line.startswith(container)), 0))

    def agent_pod(self, component: str = "agent") -> Any:
        (pod,) = self.pods(NAMESPACE, f"app.kubernetes.io/component={component}")
        return pod

    # what kubectl says

    def owners_by_device(self) -> dict[str, set[Owner]]:
        """Pods of the namespace ml by the resource that they asked for."""
        found: dict[str, set[Owner]] = {WHOLE: set(), SHARED: set(), MIG: set()}
        for pod in self.pods():
            for container in pod["spec"]["containers"]:
                for resource in container.get("resources", {}).get("limits", {}):
                    owner = (pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"])
                    found[resource].add(owner)
        return found

    # what the agent says

    def metrics(self, component: str = "agent", port: int = 9400) -> str:
        address = self.agent_pod(component)["status"]["podIP"]
        return get(f"http://{address}:{port}/metrics")

    def wait_for_gpus(self, count: int) -> None:
        wait_for(lambda: len(values_of(self.metrics(), "gpuscope_gpu_info")) == count, f"{count} GPUs")

    def allocations(self) -> dict[str, set[Owner]]:
        found: dict[str, set[Owner]] = {WHOLE: set(), SHARED: set(), MIG: set()}
        for labels in label_sets(self.metrics(), "gpuscope_allocation_used"):
            owner = (labels["namespace"], labels["pod"], labels["container"])
            found.setdefault(labels["resource"], set()).add(owner)
        return found

    def process_owners(self) -> dict[int, Owner]:
        return {
            int(labels["pid"]): (labels["namespace"], labels["pod"], labels["container"])
            for labels in label_sets(self.metrics(), "gpuscope_process_memory_bytes")
        }

    # processes of pods in the fake driver

    def run_on_gpus(self) -> dict[int, Owner]:
        """A process of each pod on its GPU; the owners that the agent must find."""
        expected: dict[int, Owner] = {}
        lists: dict[int, list[Process]] = {SHARED_GPU: [], MIG_GPU: [], **{gpu: [] for gpu in WHOLE_GPUS}}
        free = {WHOLE: [*WHOLE_GPUS], SHARED: [SHARED_GPU] * REPLICAS, MIG: [MIG_GPU] * 2}
        running = [pod for pod in self.pods() if pod["status"].get("phase") == "Running"]
        for pod in sorted(running, key=lambda one: str(one["metadata"]["name"])):
            container = pod["spec"]["containers"][0]
            (resource,) = container["resources"]["limits"]
            pid = self.main_pid(pod)
            if not pid:
                continue
            gpu = free[resource].pop(0)
            gi = 7 if gpu == MIG_GPU else None
            lists[gpu].append(Process(pid, memory=1 << 30, name="pause", gi=gi, ci=None if gi is None else 0))
            expected[pid] = (pod["metadata"]["namespace"], pod["metadata"]["name"], container["name"])
        for gpu, processes in lists.items():
            self.driver.processes(gpu, processes)
        return expected


def pod_document(name: str, resource: str, namespace: str, labels: dict[str, str]) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": pod_spec(resource),
    }


def pod_spec(resource: str) -> dict[str, Any]:
    container = {
        "name": "trainer",
        "image": PAUSE_IMAGE,
        "imagePullPolicy": "Never",
        "resources": {"limits": {resource: "1"}},
    }
    return {"terminationGracePeriodSeconds": 1, "containers": [container]}


def make_driver(folder: Path) -> tuple[FakeDriver, list[str]]:
    """A driver library and its state in a folder that pods mount; UUIDs of the MIG instances."""
    folder.mkdir(mode=0o755)
    shutil.copy(library(), folder / SONAME)
    driver = FakeDriver(folder / "state")
    driver.gpus(4, model="H100")
    migs = driver.mig(MIG_GPU, [Mig(gi=7), Mig(gi=12)])
    return driver, migs


def driver_values(lab: KubernetesLab, image: str) -> list[str]:
    repository, _, tag = image.rpartition(":")
    folder = lab.driver_folder
    document = {
        "image": {"repository": repository, "tag": tag, "pullPolicy": "Never"},
        "driver": {"access": "hostPath", "libraryPath": str(folder), "privileged": False},
        "kubelet": {"rootDir": str(lab.kubelet_folder)},
        "agent": {
            "extraEnv": [{"name": "FAKE_NVML_STATE", "value": "/opt/driver/lib/state"}],
        },
    }
    path = lab.folder / "values.json"
    path.write_text(json.dumps(document))
    return ["-f", str(path)]


def get(url: str, headers: dict[str, str] | None = None) -> str:
    request = urllib.request.Request(url, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def status_of(
    url: str, authority: Path | None = None, headers: dict[str, str] | None = None
) -> tuple[int, str]:
    """Status and text of an answer; 0 if there is none. Pods are asked by address: no name is checked."""
    tls = ssl.create_default_context(cafile=str(authority)) if authority else None
    if tls:
        tls.check_hostname = False
    try:
        request = urllib.request.Request(url, headers=headers or {})
        with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
            return answer.status, str(answer.read().decode())
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError as error:
        return 0, str(error)


def values_of(text: str, name: str) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(f"{name}{{")]


def label_sets(text: str, name: str) -> Iterable[dict[str, str]]:
    for line in text.splitlines():
        if line.startswith(f"{name}{{"):
            yield dict(re.findall(r'(\w+)="([^"]*)"', line))
