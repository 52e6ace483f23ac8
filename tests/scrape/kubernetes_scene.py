"""Objects of a small cluster, as the API server's JSON: two nodes, a service, and pods of every shape."""

from __future__ import annotations

from typing import Any

from tests.scrape.fake_kubernetes import FakeKubernetes

Json = dict[str, Any]


def node(name: str, ip: str, **more: str) -> Json:
    return {
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "labels": {"kubernetes.io/hostname": name, "accelerator": "nvidia", **more},
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {"providerID": f"cloud://{name}"},
        "status": {
            "addresses": [
                {"type": "Hostname", "address": name},
                {"type": "InternalIP", "address": ip},
                {"type": "ExternalIP", "address": "203.0.113.9"},
                {"type": "InternalIP", "address": "fd00::9"},
            ],
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        },
    }


def pod(name: str, ip: str, *, namespace: str = "ml", on: str = "n1", **labels: str) -> Json:
    port = {"name": "metrics", "containerPort": 9400, "protocol": "TCP"}
    return {
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": f"uid-{namespace}-{name}",
            "labels": {"app.kubernetes.io/name": "gpuscope", "with space?": "no", **labels},
            "annotations": {"prometheus.io/scrape": "true", "empty": ""},
            "ownerReferences": [
                {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u"},
                {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agent", "uid": "u", "controller": True},
            ],
        },
        "spec": {
            "nodeName": on,
            "initContainers": [{"name": "setup", "image": "busybox:1"}],
            "containers": [
                {"name": "agent", "image": "gpuscope:1", "ports": [port, {"containerPort": 9401}]},
                {"name": "sidecar", "image": "dcgm:4"},
            ],
        },
        "status": {
            "phase": "Running",
            "podIP": ip,
            "hostIP": "10.0.0.1",
            "conditions": [{"type": "Ready", "status": "True"}],
            "containerStatuses": [{"name": "agent", "containerID": "containerd://1", "image": "gpuscope:1"}],
            "initContainerStatuses": [{"name": "setup", "containerID": "containerd://2", "image": "b"}],
        },
    }


def bare_pod(name: str, phase: str) -> Json:
    """Without an address: starting, or evicted."""
    spec = {"containers": [{"name": "c", "image": "i"}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": spec, "status": {"phase": phase}}


def service(name: str) -> Json:
    return {
        "metadata": {"name": name, "namespace": "ml", "labels": {"team": "gpu"}, "annotations": {"a/b": "c"}},
        "spec": {"ports": [{"port": 80}], "clusterIP": "None", "type": "ClusterIP"},
    }


def endpoint_slice(name: str, service_name: str, endpoints: list[Json]) -> Json:
    return {
        "metadata": {
            "name": name,
            "namespace": "ml",
            "labels": {"kubernetes.io/service-name": service_name} if service_name else {},
        },
        "addressType": "IPv4",
        "ports": [{"name": "metrics", "port": 9400, "protocol": "TCP", "appProtocol": "http"}],
        "endpoints": endpoints,
    }


def endpoint(ip: str, target: tuple[str, str] | None, **more: Any) -> Json:
    made: Json = {"addresses": [ip], "conditions": {"ready": True, "terminating": False}, **more}
    if target:
        made["targetRef"] = {"kind": target[0], "name": target[1], "namespace": "ml"}
    return made


def fill(server: FakeKubernetes) -> None:
    server.put("nodes", node("n1", "10.0.0.1"))
    server.put("nodes", node("n2", "10.0.0.2", zone="b"))
    server.put("pods", pod("agent-a", "10.1.0.1"))
    server.put("pods", pod("agent-b", "fd00::5", on="n2", extra="1"))
    server.put("pods", pod("other", "10.1.0.3", namespace="default", on="gone"))
    server.put("pods", bare_pod("starting", "Pending"))
    server.put("services", service("gpuscope"))
    endpoints = [
        endpoint("10.1.0.1", ("Pod", "agent-a"), nodeName="n1", zone="z", hostname="h"),
        endpoint("fd00::5", ("Pod", "agent-b"), nodeName="n2"),
        endpoint("10.0.0.1", ("Node", "n1")),
        endpoint("10.9.9.9", None),
        endpoint("10.1.0.77", ("Pod", "unknown")),
    ]
    server.put("endpointslices", endpoint_slice("gpuscope-x1", "gpuscope", endpoints))
    # An address of its own: of two equal targets, Prometheus keeps any one.
    server.put("endpointslices", endpoint_slice("manual", "", [endpoint("10.9.9.10", None)]))
