"""Autoscaling on the GPU use of each pod, with the real prometheus-adapter and with the real KEDA."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from tests.labs.go_programs import PROGRAMS, go_program, module_folder
from tests.labs.kubernetes_configuration import NODE_ADDRESS
from tests.labs.kubernetes_lab import KubernetesLab
from tests.labs.kubernetes_pki import make_certificate
from tests.ports import free_port
from tests.render.helm_chart import EXAMPLES
from tests.render.kubernetes.lab_scene import SHARED, SHARED_GPU, LabServer, Scene, pod_spec
from tests.waiting import wait_for

pytestmark = pytest.mark.slow


@pytest.fixture
def deployment(scene: Scene) -> Iterator[None]:
    """One pod on a shared GPU."""
    labels = {"app": "inference"}
    scene.lab.apply(
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "inference", "namespace": "ml"},
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod_spec(SHARED)},
            },
        }
    )
    yield
    scene.lab.kubectl("delete", "hpa,deployment", "--all", "-n", "ml", "--wait", check=False)
    scene.lab.wait_until(lambda: not scene.pods(), "pods are left")


def replicas_become(scene: Scene, count: int, sm_percent: float) -> None:
    """The pods' number, while the processes of all of them have this SM utilisation together."""

    def reached() -> bool:
        scene.run_on_gpus()
        return len(scene.pods()) == count

    scene.driver.busy(SHARED_GPU, sm_percent)
    wait_for(reached, f"{count} pods", lambda: scene.lab.kubectl("describe", "hpa", "-n", "ml"))


def quick_behavior() -> dict[str, Any]:
    policy = {"type": "Pods", "value": 4, "periodSeconds": 3}
    return {
        direction: {"stabilizationWindowSeconds": 0, "policies": [policy]}
        for direction in ("scaleUp", "scaleDown")
    }


def test_the_autoscaler_follows_the_gpu_use_of_each_pod(scene: Scene, deployment: None) -> None:
    start_adapter(scene.lab, scene.install_server())
    autoscaler = yaml.safe_load((EXAMPLES / "hpa.yaml").read_text())
    autoscaler["metadata"]["namespace"] = "ml"
    autoscaler["spec"] |= {"maxReplicas": 3, "behavior": quick_behavior()}
    replicas_become(scene, 1, 95)
    scene.lab.apply(autoscaler)
    replicas_become(scene, 3, 95)
    replicas_become(scene, 1, 1)


def start_adapter(lab: KubernetesLab, server: LabServer) -> None:
    """The real prometheus-adapter with the shipped rules, as an aggregated API."""
    values = yaml.safe_load((EXAMPLES / "prometheus-adapter-values.yaml").read_text())
    config, token = lab.folder / "adapter.yaml", lab.folder / "token"
    config.write_text(yaml.safe_dump({"rules": values["rules"]["custom"]}))
    token.write_text(server.token)
    lab.spawn(
        "adapter", go_program("prometheus-adapter"), f"--prometheus-url={server.url}/", f"--config={config}",
        f"--prometheus-token-file={token}", "--metrics-relist-interval=3s", "--metrics-max-age=1m",
        *serve_metrics_api(lab, "v1beta1.custom.metrics.k8s.io"),
    )  # fmt: skip


def serve_metrics_api(lab: KubernetesLab, name: str) -> list[str]:
    """Registers an aggregated API on a port of the node; the flags of the program that serves it."""
    version, _, group = name.partition(".")
    port, service = free_port(), group.partition(".")[0]
    lab.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": service, "namespace": "default"},
            "spec": {"ports": [{"name": "https", "port": 443, "targetPort": port}]},
        },
        {
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": f"{service}-1",
                "namespace": "default",
                "labels": {"kubernetes.io/service-name": service},
            },
            "addressType": "IPv4",
            "ports": [{"name": "https", "port": port, "protocol": "TCP"}],
            "endpoints": [{"addresses": [NODE_ADDRESS], "conditions": {"ready": True}}],
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": name},
            "spec": {
                "group": group,
                "version": version,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
                "insecureSkipTLSVerify": True,
                "service": {"name": service, "namespace": "default", "port": 443},
            },
        },
    )
    kubeconfig = lab.environment["KUBECONFIG"]
    return [
        f"--bind-address={NODE_ADDRESS}", f"--secure-port={port}", f"--tls-cert-file={lab.pki}/adapter.crt",
        f"--tls-private-key-file={lab.pki}/adapter.key",
        *(f"--{kind}-kubeconfig={kubeconfig}" for kind in ("lister", "authentication", "authorization")),
    ]  # fmt: skip


def test_keda_scales_on_the_queries_of_our_server(scene: Scene, deployment: None) -> None:
    """The real KEDA with the example for gpuscope's server: CRDs, token, query and target."""
    server = scene.install_server()
    start_keda(scene.lab)
    trigger_login, scaled = yaml.safe_load_all((EXAMPLES / "keda-gpuscope-server.yaml").read_text())
    scaled["spec"]["triggers"][0]["metadata"]["serverAddress"] = server.url
    scaled["spec"] |= {
        "maxReplicaCount": 3,
        "pollingInterval": 2,
        "cooldownPeriod": 5,
        "advanced": {"horizontalPodAutoscalerConfig": {"behavior": quick_behavior()}},
    }
    scene.lab.kubectl(
        "create", "secret", "generic", "gpuscope-token", "-n", "ml", f"--from-literal=token={server.token}"
    )
    replicas_become(scene, 1, 95)
    scene.lab.apply(trigger_login, scaled)
    try:
        replicas_become(scene, 3, 95)
        replicas_become(scene, 1, 1)
    except AssertionError as error:
        raise AssertionError(scene.lab.log("keda-operator")) from error
    finally:
        scene.lab.kubectl("delete", "scaledobject,triggerauthentication", "--all", "-n", "ml", "--wait")


def start_keda(lab: KubernetesLab) -> None:
    """Operator and metrics adapter on this machine, without webhooks."""
    program = PROGRAMS["keda-operator"]
    folder = module_folder(program.module, program.version) / "config/crd/bases"
    lab.kubectl("apply", "--server-side", "-f", folder)
    lab.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
    lab.kubectl("create", "namespace", "keda")
    certificates = lab.folder / "keda"
    certificates.mkdir()
    make_certificate(lab.pki, "keda", "/CN=keda", f"subjectAltName=IP:127.0.0.1,IP:{NODE_ADDRESS}")
    for source, name in (("ca.crt", "ca.crt"), ("keda.crt", "tls.crt"), ("keda.key", "tls.key")):
        shutil.copy(lab.pki / source, certificates / name)
    metrics = f"127.0.0.1:{free_port()}"
    environment = {"WATCH_NAMESPACE": "", "POD_NAMESPACE": "keda", "KEDA_CLUSTER_OBJECT_NAMESPACE": "keda"}
    lab.spawn(
        "keda-operator", go_program("keda-operator"), f"--metrics-service-bind-address={metrics}",
        f"--cert-dir={certificates}", "--enable-prometheus-metrics=false",
        f"--health-probe-bind-address=127.0.0.1:{free_port()}", **environment,
    )  # fmt: skip
    lab.spawn(
        "keda-adapter", go_program("keda-adapter"), f"--metrics-service-address={metrics}",
        f"--cert-dir={certificates}", f"--port={free_port()}",
        *serve_metrics_api(lab, "v1beta1.external.metrics.k8s.io"), **environment,
    )  # fmt: skip
