"""`kubernetes_sd_configs`: targets from pods, endpoint slices or nodes of a Kubernetes API server.

Each kind of object is listed once and then watched. While the API server fails, the last objects stay. Targets
appear when every kind that they need was listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from typing import Any

from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.job_options import KubernetesProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError, join_host_port
from gpuscope.history.scrape.providers.kubernetes_client import (
    KubernetesClient,
    ObjectWatch,
    WatchedKind,
    WatchReport,
)
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
    read_endpoint_slice,
    read_node,
    read_pod,
    read_service,
)

log = logging.getLogger("gpuscope.scrape")

# Builds target groups from Kubernetes objects, with the labels and addresses that Prometheus gives them.
#
# Each target has a group of its own. Labels without a value are left out later, as everywhere in discovery.

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
    matching: Labels = {}
    for container in pod.containers:
        for own in container.ports:
            if own.number == port.number:
                matching = _container_labels(container, own)  # the last container wins, as in Prometheus
                break
    return matching


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


_KINDS = {
    "pod": WatchedKind("pod", "/api/v1", "pods", read_pod),
    "service": WatchedKind("service", "/api/v1", "services", read_service),
    "node": WatchedKind("node", "/api/v1", "nodes", read_node),
    "endpointslice": WatchedKind(
        "endpointslice", "/apis/discovery.k8s.io/v1", "endpointslices", read_endpoint_slice
    ),
}
_NEEDED = {"pod": ("pod",), "endpointslice": ("endpointslice", "service", "pod"), "node": ("node",)}
Connect = Callable[[KubernetesProviderConfig, int], KubernetesClient]


class KubernetesProvider:
    def __init__(
        self,
        config: KubernetesProviderConfig,
        workers: Executor,
        max_bytes: int,
        max_objects: int,
        *,
        connect: Connect = KubernetesClient,
    ) -> None:
        self.config = config
        self._workers = workers
        self._max_bytes = max_bytes
        self._max_objects = max_objects
        self._connect = connect
        self._report = WatchReport(log, f"Kubernetes {config.role} targets")
        self._watches: tuple[ObjectWatch, ...] = ()
        self._adopted: tuple[TargetGroup, ...] = ()
        self._built: tuple[int, tuple[TargetGroup, ...]] = (-1, ())

    @property
    def failures(self) -> int:
        return self._report.failures

    def adopt(self, groups: tuple[TargetGroup, ...]) -> None:
        self._adopted = groups

    def groups(self) -> tuple[TargetGroup, ...]:
        watches = self._watches
        if not watches or not all(watch.is_listed for watch in watches):
            return self._adopted
        version = self._report.version
        if self._built[0] != version:
            self._built = (version, tuple(self._build(watches)))
        return self._built[1]

    async def run(self, on_change: Callable[[], None]) -> None:
        self._report.on_change = on_change
        while True:
            try:
                client = self._connect(self.config, self._max_bytes)
            except DiscoveryError as error:
                await self._report.failed(str(error))
                continue
            try:
                self._watches = tuple(self._new_watches(client))
            except DiscoveryError as error:
                await client.close()
                await self._report.failed(str(error))
                continue
            break
        try:
            await asyncio.gather(*(watch.run() for watch in self._watches))
        finally:
            with contextlib.suppress(RuntimeError):
                await client.close()

    def _new_watches(self, client: KubernetesClient) -> list[ObjectWatch]:
        namespaces = list(self.config.namespaces)
        if self.config.own_namespace:
            namespaces.append(client.own_namespace())
        kinds = [*_NEEDED[self.config.role]]
        if self.config.attach_node and "node" not in kinds:
            kinds.append("node")
        watches = []
        for kind in kinds:
            selector = self.config.selector(kind)
            query = {"labelSelector": selector.label, "fieldSelector": selector.field}
            within = [""] if kind == "node" else namespaces or [""]
            watches += [
                ObjectWatch(
                    _KINDS[kind],
                    namespace,
                    {name: value for name, value in query.items() if value},
                    client,
                    self._workers,
                    self._report,
                    self._max_objects,
                )
                for namespace in within
            ]
        return watches

    def _build(self, watches: tuple[ObjectWatch, ...]) -> list[TargetGroup]:
        objects: dict[str, dict[str, Any]] = {kind: {} for kind in _KINDS}
        for watch in watches:
            objects[watch.kind.name] |= watch.objects()
        nodes: Mapping[str, Any] | None = objects["node"] if self.config.attach_node else None
        groups: list[TargetGroup] = []
        for key, item in sorted(objects[self.config.role].items()):
            if self.config.role == "node":
                groups += node_targets(key, item)
            elif self.config.role == "pod":
                groups += pod_targets(key, item, nodes)
            else:
                groups += endpoint_slice_targets(key, item, objects["service"], objects["pod"], nodes)
        return groups
