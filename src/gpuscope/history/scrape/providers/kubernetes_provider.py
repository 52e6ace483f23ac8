"""`kubernetes_sd_configs`: targets from pods, endpoint slices or nodes of a Kubernetes API server.

Each kind of object is listed once and then watched. While the API server fails, the last objects stay. Targets
appear when every kind that they need was listed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from typing import Any

from gpuscope.history.scrape.config import TargetGroup
from gpuscope.history.scrape.provider_configs import KubernetesProviderConfig
from gpuscope.history.scrape.providers import DiscoveryError
from gpuscope.history.scrape.providers.kubernetes_client import KubernetesClient
from gpuscope.history.scrape.providers.kubernetes_objects import (
    read_endpoint_slice,
    read_node,
    read_pod,
    read_service,
)
from gpuscope.history.scrape.providers.kubernetes_targets import (
    endpoint_slice_targets,
    node_targets,
    pod_targets,
)
from gpuscope.history.scrape.providers.object_watch import ObjectWatch, WatchedKind, WatchReport

log = logging.getLogger("gpuscope.scrape")

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
        for key, found in sorted(objects[self.config.role].items()):
            if self.config.role == "node":
                groups += node_targets(key, found)
            elif self.config.role == "pod":
                groups += pod_targets(key, found, nodes)
            else:
                groups += endpoint_slice_targets(key, found, objects["service"], objects["pod"], nodes)
        return groups
