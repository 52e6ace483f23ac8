"""Our image in NVIDIA's own DaemonSets of dcgm-exporter: that of its manifests and that of the GPU Operator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import yaml

from tests.labs.debian_programs import LabUnavailable
from tests.labs.go_programs import PROGRAMS, module_folder
from tests.labs.gpuscope_images import image_name
from tests.labs.kubernetes_configuration import NODE
from tests.render.kubernetes.lab_scene import NAMESPACE, WHOLE, WHOLE_GPUS, Scene, get, label_sets
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


def dcgm_exporter_daemon_set(scene: Scene) -> dict[str, Any]:
    """As NVIDIA's own manifests: their variables, paths, port and probes, with another image.

    Added for the lab only: where the fake driver is, and where this kubelet has its folder."""
    labels = {"app": "nvidia-dcgm-exporter"}
    probe = {"httpGet": {"path": "/health", "port": 9400}, "initialDelaySeconds": 1, "periodSeconds": 5}
    container = {
        "name": "nvidia-dcgm-exporter",
        "image": image_name("dcgm-exporter"),
        "imagePullPolicy": "Never",
        "args": ["-f", "/etc/dcgm-exporter/dcp-metrics-included.csv"],
        "env": [
            {"name": "DCGM_EXPORTER_LISTEN", "value": ":9400"},
            {"name": "DCGM_EXPORTER_KUBERNETES", "value": "true"},
            {"name": "DCGM_EXPORTER_COLLECTORS", "value": "/etc/dcgm-exporter/dcp-metrics-included.csv"},
            {"name": "LD_LIBRARY_PATH", "value": "/driver"},
            {"name": "FAKE_NVML_STATE", "value": "/driver/state"},
        ],
        "ports": [{"name": "metrics", "containerPort": 9400}],
        "securityContext": {
            "runAsNonRoot": False,
            "runAsUser": 0,
            "capabilities": {"add": ["SYS_ADMIN"], "drop": ["ALL"]},
        },
        "livenessProbe": probe,
        "readinessProbe": probe,
        "volumeMounts": [
            {"name": "pod-gpu-resources", "mountPath": "/var/lib/kubelet/pod-resources", "readOnly": True},
            {"name": "driver", "mountPath": "/driver", "readOnly": True},
        ],
    }
    volumes = {
        "pod-gpu-resources": scene.lab.kubelet_folder / "pod-resources",
        "driver": scene.lab.driver_folder,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-dcgm-exporter", "namespace": NAMESPACE, "labels": labels},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "priorityClassName": "system-node-critical",
                    "containers": [container],
                    "volumes": [
                        {"name": name, "hostPath": {"path": str(path)}} for name, path in volumes.items()
                    ],
                },
            },
        },
    }


def gpu_operator_daemon_set(scene: Scene) -> dict[str, Any]:
    """The GPU Operator's own file, with what the operator fills in: namespace and images.

    Added for the lab only, as above; the folder in which the operator's other pods say that they are ready."""
    program = PROGRAMS["gpu-operator"]
    try:
        assets = module_folder(program.module, program.version) / "assets/state-dcgm-exporter"
    except LabUnavailable as missing:
        pytest.skip(f"GPU Operator: {missing}")
    document: dict[str, Any] = yaml.safe_load((assets / "0900_daemonset.yaml").read_text())
    document["metadata"]["namespace"] = NAMESPACE
    spec = document["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    for one in (container, *spec["initContainers"]):
        one |= {"image": image_name("dcgm-exporter-root"), "imagePullPolicy": "Never"}
    # The lab's folder is not on a shared mount.
    del spec["initContainers"][0]["volumeMounts"][0]["mountPropagation"]
    container["env"] += [
        {"name": "LD_LIBRARY_PATH", "value": "/driver"},
        {"name": "FAKE_NVML_STATE", "value": "/driver/state"},
    ]
    container["volumeMounts"].append({"name": "driver", "mountPath": "/driver", "readOnly": True})
    ready = scene.lab.folder / "run-nvidia/validations/toolkit-ready"
    ready.parent.mkdir(parents=True, exist_ok=True)
    ready.touch()
    paths = {
        "pod-gpu-resources": scene.lab.kubelet_folder / "pod-resources",
        "run-nvidia": ready.parents[1],
        "driver": scene.lab.driver_folder,
    }
    assert {volume["name"] for volume in spec["volumes"]} == {"pod-gpu-resources", "run-nvidia"}
    spec["volumes"] = [{"name": name, "hostPath": {"path": str(path)}} for name, path in paths.items()]
    return document


def start_gpu_operator_daemon_set(scene: Scene) -> None:
    """With the service account that it names, on a node with the label that the operator sets."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount"}
    scene.lab.apply(account | {"metadata": {"name": "nvidia-dcgm-exporter", "namespace": NAMESPACE}})
    scene.lab.kubectl("label", "node", NODE, "nvidia.com/gpu.deploy.dcgm-exporter=true", "--overwrite")
    scene.lab.apply(gpu_operator_daemon_set(scene))


def start_nvidia_s_daemon_set(scene: Scene) -> None:
    scene.lab.apply(dcgm_exporter_daemon_set(scene))


def is_ready(pod: dict[str, Any]) -> bool:
    conditions = pod["status"].get("conditions", [])
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


@pytest.mark.parametrize("start", [start_nvidia_s_daemon_set, start_gpu_operator_daemon_set])
def test_our_image_in_nvidia_s_daemon_set(scene: Scene, start: Callable[[Scene], None]) -> None:
    scene.start_pod("dcgm-whole", WHOLE)
    start(scene)
    wait_for(
        lambda: [pod for pod in scene.pods(NAMESPACE, "app=nvidia-dcgm-exporter") if is_ready(pod)],
        "the DaemonSet's pod",
        lambda: scene.lab.kubectl("describe", "pods", "-n", NAMESPACE, "-l", "app=nvidia-dcgm-exporter"),
    )
    (pod,) = scene.pods(NAMESPACE, "app=nvidia-dcgm-exporter")
    url = f"http://{pod['status']['podIP']}:9400/metrics"

    def attributed() -> list[dict[str, str]]:
        rows = label_sets(get(url), "DCGM_FI_DEV_GPU_UTIL")
        return [row for row in rows if row.get("pod") == "dcgm-whole"]

    (row,) = wait_for(attributed, "the pod of a GPU", lambda: get(url)[:2000])
    assert (row["namespace"], row["container"]) == ("ml", "trainer")
    assert row["UUID"] in {scene.driver.cards[gpu].uuid for gpu in WHOLE_GPUS}
    scene.lab.kubectl("delete", "ds", "nvidia-dcgm-exporter", "-n", NAMESPACE, "--wait")
    scene.lab.kubectl("delete", "pod", "dcgm-whole", "-n", "ml", "--wait")
