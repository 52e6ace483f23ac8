"""Pods, services, endpoint slices and nodes of the API server's JSON, reduced to what targets are built from.

Labels have their final names (`__meta_kubernetes_pod_label_app`). A part of the wrong type counts as absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

PREFIX = "__meta_kubernetes_"
_NOT_IN_LABEL_NAMES = re.compile(r"[^a-zA-Z0-9_]")
_ADDRESS_ORDER = ("InternalIP", "InternalDNS", "ExternalIP", "ExternalDNS", "LegacyHostIP", "Hostname")

Json = Mapping[str, Any]
Labels = dict[str, str]


def text(value: Json, key: str) -> str:
    member = value.get(key)
    return member if isinstance(member, str) else ""


def part(value: Json, key: str) -> Json:
    member = value.get(key)
    return member if isinstance(member, dict) else {}


def parts(value: Json, key: str) -> Iterator[Json]:
    member = value.get(key)
    return (entry for entry in (member if isinstance(member, list) else ()) if isinstance(entry, dict))


def whole(value: Json, key: str) -> int | None:
    member = value.get(key)
    return (
        member if isinstance(member, int) and not isinstance(member, bool) and 0 <= member < 1 << 32 else None
    )


def flag(value: Json, key: str) -> bool | None:
    member = value.get(key)
    return member if isinstance(member, bool) else None


def strings(value: Json, key: str) -> tuple[str, ...]:
    member = value.get(key)
    return tuple(entry for entry in (member if isinstance(member, list) else ()) if isinstance(entry, str))


def sanitize(name: str) -> str:
    return _NOT_IN_LABEL_NAMES.sub("_", name)


def flag_text(value: bool) -> str:
    return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class ContainerPort:
    number: int
    name: str
    protocol: str


@dataclass(frozen=True, slots=True)
class PodContainerSpec:
    name: str
    image: str
    id: str
    is_init: bool
    ports: tuple[ContainerPort, ...]


@dataclass(frozen=True, slots=True)
class PodObject:
    namespace: str
    ip: str
    node: str
    labels: Labels
    containers: tuple[PodContainerSpec, ...]


@dataclass(frozen=True, slots=True)
class ServiceObject:
    labels: Labels
    primary_family: str
    """IPv4 or IPv6 for a dual-stack service, else empty."""


@dataclass(frozen=True, slots=True)
class NodeObject:
    name: str
    address: str
    kubelet_port: int
    labels: Labels
    """Those that `attach_metadata.node` adds to other targets too: name, labels and annotations."""
    own_labels: Labels


@dataclass(frozen=True, slots=True)
class SlicePort:
    number: int | None
    labels: Labels


@dataclass(frozen=True, slots=True)
class Endpoint:
    addresses: tuple[str, ...]
    labels: Labels
    pod_key: str
    """NAMESPACE/NAME of the pod behind it, or empty."""
    node: str


@dataclass(frozen=True, slots=True)
class EndpointSliceObject:
    address_type: str
    service_key: str
    labels: Labels
    ports: tuple[SlicePort, ...]
    endpoints: tuple[Endpoint, ...]


def object_key(value: Json) -> str:
    """NAMESPACE/NAME, or NAME; empty if there is none."""
    metadata = part(value, "metadata")
    name, namespace = text(metadata, "name"), text(metadata, "namespace")
    return f"{namespace}/{name}" if namespace and name else name


def metadata_labels(value: Json, role: str) -> Labels:
    metadata = part(value, "metadata")
    labels = {f"{PREFIX}{role}_name": text(metadata, "name")}
    for kind, source in (("label", "labels"), ("annotation", "annotations")):
        for name, content in part(metadata, source).items():
            if isinstance(content, str):
                labels[f"{PREFIX}{role}_{kind}_{sanitize(name)}"] = content
                labels[f"{PREFIX}{role}_{kind}present_{sanitize(name)}"] = "true"
    return labels


def read_pod(value: Json) -> PodObject:
    spec, status, metadata = part(value, "spec"), part(value, "status"), part(value, "metadata")
    labels = {
        f"{PREFIX}pod_ip": text(status, "podIP"),
        f"{PREFIX}pod_ready": _readiness(status),
        f"{PREFIX}pod_phase": text(status, "phase"),
        f"{PREFIX}pod_node_name": text(spec, "nodeName"),
        f"{PREFIX}pod_host_ip": text(status, "hostIP"),
        f"{PREFIX}pod_uid": text(metadata, "uid"),
        **metadata_labels(value, "pod"),
    }
    owners = (owner for owner in parts(metadata, "ownerReferences") if flag(owner, "controller"))
    for owner in owners:
        labels[f"{PREFIX}pod_controller_kind"] = text(owner, "kind")
        labels[f"{PREFIX}pod_controller_name"] = text(owner, "name")
        break
    containers = (*_containers(spec, status, is_init=False), *_containers(spec, status, is_init=True))
    return PodObject(
        text(metadata, "namespace"), text(status, "podIP"), text(spec, "nodeName"), labels, containers
    )


def _readiness(status: Json) -> str:
    for condition in parts(status, "conditions"):
        if text(condition, "type") == "Ready":
            return text(condition, "status").lower()
    return "unknown"


def _containers(spec: Json, status: Json, *, is_init: bool) -> Iterator[PodContainerSpec]:
    statuses = parts(status, "initContainerStatuses" if is_init else "containerStatuses")
    ids = {text(status, "name"): text(status, "containerID") for status in statuses}
    for container in parts(spec, "initContainers" if is_init else "containers"):
        name = text(container, "name")
        ports = tuple(
            ContainerPort(whole(port, "containerPort") or 0, text(port, "name"), text(port, "protocol"))
            for port in parts(container, "ports")
        )
        yield PodContainerSpec(name, text(container, "image"), ids.get(name, ""), is_init, ports)


def read_service(value: Json) -> ServiceObject:
    spec = part(value, "spec")
    namespace = text(part(value, "metadata"), "namespace")
    is_dual_stack = text(spec, "ipFamilyPolicy") in ("PreferDualStack", "RequireDualStack")
    families = strings(spec, "ipFamilies")
    primary = families[0] if is_dual_stack and families else ""
    return ServiceObject(
        {f"{PREFIX}namespace": namespace, **metadata_labels(value, "service")}, primary_family=primary
    )


def read_node(value: Json) -> NodeObject:
    status = part(value, "status")
    own_labels = {f"{PREFIX}node_provider_id": text(part(value, "spec"), "providerID")}
    for condition in parts(status, "conditions"):
        kind = sanitize(text(condition, "type").lower())
        own_labels[f"{PREFIX}node_condition_{kind}"] = text(condition, "status").lower()
    first: dict[str, str] = {}
    for address in parts(status, "addresses"):
        first.setdefault(text(address, "type"), text(address, "address"))
    for kind, address_text in first.items():
        own_labels[f"{PREFIX}node_address_{sanitize(kind)}"] = address_text
    best = next((first[kind] for kind in _ADDRESS_ORDER if kind in first), "")
    endpoint = part(part(status, "daemonEndpoints"), "kubeletEndpoint")
    port = whole(endpoint, "Port") or 0
    return NodeObject(object_key(value), best, port, metadata_labels(value, "node"), own_labels)


def read_endpoint_slice(value: Json) -> EndpointSliceObject:
    metadata = part(value, "metadata")
    namespace = text(metadata, "namespace")
    service = text(part(metadata, "labels"), "kubernetes.io/service-name")
    address_type = text(value, "addressType")
    labels = {
        f"{PREFIX}namespace": namespace,
        f"{PREFIX}endpointslice_address_type": address_type,
        **metadata_labels(value, "endpointslice"),
    }
    return EndpointSliceObject(
        address_type,
        f"{namespace}/{service}" if service else "",
        labels,
        tuple(_slice_port(port) for port in parts(value, "ports")),
        tuple(_endpoint(endpoint) for endpoint in parts(value, "endpoints")),
    )


def _slice_port(port: Json) -> SlicePort:
    number = whole(port, "port")
    labels = {
        f"{PREFIX}endpointslice_port_name": text(port, "name"),
        f"{PREFIX}endpointslice_port_protocol": text(port, "protocol"),
        f"{PREFIX}endpointslice_port": "" if number is None else str(number),
        f"{PREFIX}endpointslice_port_app_protocol": text(port, "appProtocol"),
    }
    return SlicePort(number, labels)


def _endpoint(endpoint: Json) -> Endpoint:
    target, conditions = part(endpoint, "targetRef"), part(endpoint, "conditions")
    kind, name = text(target, "kind"), text(target, "name")
    labels = {
        f"{PREFIX}endpointslice_endpoint_hostname": text(endpoint, "hostname"),
        f"{PREFIX}endpointslice_endpoint_node_name": text(endpoint, "nodeName"),
        f"{PREFIX}endpointslice_endpoint_zone": text(endpoint, "zone"),
        f"{PREFIX}endpointslice_address_target_kind": kind,
        f"{PREFIX}endpointslice_address_target_name": name,
    }
    for condition in ("ready", "serving", "terminating"):
        value = flag(conditions, condition)
        if value is not None:
            labels[f"{PREFIX}endpointslice_endpoint_conditions_{condition}"] = flag_text(value)
    for key, value in part(endpoint, "deprecatedTopology").items():
        if isinstance(value, str):
            labels[f"{PREFIX}endpointslice_endpoint_topology_{sanitize(key)}"] = value
            labels[f"{PREFIX}endpointslice_endpoint_topology_present_{sanitize(key)}"] = "true"
    return Endpoint(
        strings(endpoint, "addresses"),
        labels,
        f"{text(target, 'namespace')}/{name}" if kind == "Pod" else "",
        name if kind == "Node" else text(endpoint, "nodeName"),
    )
