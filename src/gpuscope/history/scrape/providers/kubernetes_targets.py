"""Builds target groups from Kubernetes objects, with the labels and addresses that Prometheus gives them.

Each target has a group of its own. Labels without a value are left out later, as everywhere in discovery.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.providers.host_port import join_host_port
from gpuscope.history.scrape.providers.kubernetes_objects import (
    PREFIX,
    ContainerPort,
    EndpointSliceObject,
    Labels,
    NodeObject,
    PodContainerSpec,
    PodObject,
    ServiceObject,
    SlicePort,
    flag_text,
)

Nodes = Mapping[str, NodeObject] | None
"""None unless `attach_metadata.node` is set."""


def node_targets(key: str, node: NodeObject) -> Iterator[TargetGroup]:
    if node.address:
        labels = {**node.labels, **node.own_labels, "instance": node.name}
        yield TargetGroup((join_host_port(node.address, node.kubelet_port),), labels, f"node/{key}")


def pod_targets(key: str, pod: PodObject, nodes: Nodes) -> Iterator[TargetGroup]:
    """One target per container port; one without a port for a container that declares none."""
    if not pod.ip:
        return  # it is starting, or was evicted
    common = {**pod.labels, f"{PREFIX}namespace": pod.namespace, **_node_labels(nodes, pod.node)}
    for container in pod.containers:
        labels = {**common, f"{PREFIX}pod_container_id": container.id}
        if not container.ports:
            labels |= _container_labels(container, None)
            yield TargetGroup((pod.ip,), labels, f"pod/{key}")
        for port in container.ports:
            address = join_host_port(pod.ip, port.number)
            yield TargetGroup((address,), labels | _container_labels(container, port), f"pod/{key}")


def endpoint_slice_targets(
    key: str,
    endpoint_slice: EndpointSliceObject,
    services: Mapping[str, ServiceObject],
    pods: Mapping[str, PodObject],
    nodes: Nodes,
) -> Iterator[TargetGroup]:
    """One target per address and port, and one per other container port of the pods behind them."""
    service = services.get(endpoint_slice.service_key)
    if service and service.primary_family not in ("", endpoint_slice.address_type):
        return  # the slice of the other address family lists the same pods
    common = {**endpoint_slice.labels, **(service.labels if service else {})}
    source = f"endpointslice/{key}"
    seen_ports: dict[str, set[int]] = {}
    for endpoint in endpoint_slice.endpoints:
        pod = pods.get(endpoint.pod_key)
        for port in endpoint_slice.ports:
            labels = {**common, **port.labels, **endpoint.labels, **_node_labels(nodes, endpoint.node)}
            if pod is not None:
                seen_ports.setdefault(endpoint.pod_key, set()).update(
                    () if port.number is None else (port.number,)
                )
                labels |= pod.labels | _matching_container(pod, port)
            for address in endpoint.addresses:
                full = address if port.number is None else join_host_port(address, port.number)
                yield TargetGroup((full,), labels, source)
    for pod_key, seen in seen_ports.items():
        yield from _other_ports(pods[pod_key], seen, common, source)


def _other_ports(pod: PodObject, seen: set[int], common: Labels, source: str) -> Iterator[TargetGroup]:
    if not pod.ip:
        return
    for container in pod.containers:
        for port in container.ports:
            if port.number not in seen:
                labels = common | pod.labels | _container_labels(container, port)
                yield TargetGroup((join_host_port(pod.ip, port.number),), labels, source)


def _matching_container(pod: PodObject, port: SlicePort) -> Labels:
    found: Labels = {}
    for container in pod.containers:
        for own in container.ports:
            if own.number == port.number:
                found = _container_labels(container, own)  # the last container wins, as in Prometheus
                break
    return found


def _container_labels(container: PodContainerSpec, port: ContainerPort | None) -> Labels:
    labels = {
        f"{PREFIX}pod_container_name": container.name,
        f"{PREFIX}pod_container_image": container.image,
        f"{PREFIX}pod_container_init": flag_text(container.is_init),
    }
    if port is not None:
        labels[f"{PREFIX}pod_container_port_number"] = str(port.number)
        labels[f"{PREFIX}pod_container_port_name"] = port.name
        labels[f"{PREFIX}pod_container_port_protocol"] = port.protocol
    return labels


def _node_labels(nodes: Nodes, name: str) -> Labels:
    node = nodes.get(name) if nodes is not None else None
    return node.labels if node is not None else {}
