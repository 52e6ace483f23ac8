"""The kubelet's pod-resources v1 API: which container was allocated which devices.

Its answers contain the names of pods, not their UIDs, and no container ids. Kubelets before 1.34 also list pods
that have ended. Ordinary init and ephemeral containers are never listed: their processes are known by cgroup
alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Final

from gpuscope.agent.owners.allocation_matching import AllocationClaim
from gpuscope.agent.owners.grpc_call import call, fields, message, text
from gpuscope.agent.worker import ReadResult, Worker, kubelet_timing
from gpuscope.base.clock import Clock
from gpuscope.base.settings import Settings
from gpuscope.model.vendor import vendors

LIST: Final = "/v1.PodResourcesLister/List"
OTHER_GPU_RESOURCES: Final = ("amd.com/gpu",)
"""Of vendors without a folder."""
MAX_CLAIMS: Final = 100_000
MAX_OTHER_RESOURCES: Final = 100
TIMEOUT_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class PodResources:
    claims: tuple[AllocationClaim, ...]
    other_resources: tuple[str, ...] = ()
    """Allocated resources that are not known as GPUs: their pods are not in `claims`."""
    unknown_gpu_resources: tuple[str, ...] = ()
    """Those of them that have an id of a GPU."""


@dataclass(frozen=True, slots=True)
class PodResourcesReader:
    socket: str
    resource_names: tuple[str, ...]

    def read(self) -> ReadResult[tuple[AllocationClaim, ...]]:
        found = list_pod_resources(self.socket, self.resource_names, TIMEOUT_SECONDS)
        names = ",".join(found.unknown_gpu_resources)
        why = (
            f"the kubelet allocated devices of {names}, which is not known as a GPU resource: their pods are "
            f"not shown; set --resource-names {names}"
        )
        return ReadResult(found.claims, down=why if names else "")

    def close(self) -> None:
        pass


def kubelet_worker(settings: Settings, clock: Clock) -> Worker[tuple[AllocationClaim, ...]]:
    reader = PodResourcesReader(settings.kubelet_socket, tuple(settings.resource_names))
    return Worker(
        "kubelet",
        "allocations of this node's GPUs to pods",
        lambda: reader,
        kubelet_timing(settings),
        clock,
        reuse_equal=True,
    )


def list_pod_resources(
    socket: str, resource_names: Collection[str] = (), timeout: float = 10.0
) -> PodResources:
    """Raises SourceError when the kubelet does not answer, or its answer is invalid."""
    return decode_pod_resources(call(socket, LIST, timeout=timeout), resource_names)


def is_gpu(resource: str, also: Collection[str] = ()) -> bool:
    """A device plugin's resource of a vendor (nvidia.com/gpu, mig-1g.5gb.shared), or one of `also`."""
    return resource.startswith(_resources()) or resource in also


@cache
def _resources() -> tuple[str, ...]:
    return (*(start for vendor in vendors().values() for start in vendor.resources), *OTHER_GPU_RESOURCES)


@cache
def _claim_drivers() -> frozenset[str]:
    """Drivers of dynamic resource allocation."""
    return frozenset(vendor.claim_driver for vendor in vendors().values() if vendor.claim_driver)


@cache
def _id_starts() -> tuple[str, ...]:
    return tuple(start for vendor in vendors().values() for start in vendor.id_starts)


def decode_pod_resources(answer: bytes, resource_names: Collection[str] = ()) -> PodResources:
    claims: dict[AllocationClaim, None] = {}  # each claim once, in the order of the answer
    others: dict[str, bool] = {}
    for number, pod in fields(answer):
        if number == 1:
            claims.update(dict.fromkeys(_pod_claims(message(pod), resource_names, others)))
        if len(claims) > MAX_CLAIMS:
            break
    gpus = sorted(resource for resource, has_gpu_id in others.items() if has_gpu_id)
    return PodResources(tuple(claims), tuple(sorted(others)), tuple(gpus))


def _pod_claims(
    pod: bytes, resource_names: Collection[str], others: dict[str, bool]
) -> Iterator[AllocationClaim]:
    """Adds resources that are not known as GPUs to `others`, with whether one of their ids is a GPU's."""
    name = namespace = ""
    containers = []
    for number, value in fields(pod):
        if number == 1:
            name = text(value)
        elif number == 2:
            namespace = text(value)
        elif number == 3:
            containers.append(message(value))
    for container in containers:
        container_name, devices = _container_devices(container)
        for resource, device_id in devices:
            if resource in _claim_drivers() or is_gpu(resource, resource_names):
                yield AllocationClaim(
                    device_id=device_id,
                    resource=resource,
                    namespace=namespace,
                    pod=name,
                    container=container_name,
                )
            elif resource in others or len(others) < MAX_OTHER_RESOURCES:
                others[resource] = others.get(resource, False) or device_id.startswith(_id_starts())


def _container_devices(container: bytes) -> tuple[str, list[tuple[str, str]]]:
    name, devices = "", []
    for number, value in fields(container):
        if number == 1:
            name = text(value)
        elif number == 2:
            devices += _plugin_devices(message(value))
        elif number == 5:
            devices += _dynamic_devices(message(value))
    return name, devices


def _plugin_devices(entry: bytes) -> list[tuple[str, str]]:
    resource, ids = "", []
    for number, value in fields(entry):
        if number == 1:
            resource = text(value)
        elif number == 2:
            ids.append(text(value))
    return [(resource, device_id) for device_id in ids]


def _dynamic_devices(claim: bytes) -> list[tuple[str, str]]:
    """Dynamic resource allocation: by driver and device, because CDI names repeat those of other devices."""
    devices = []
    for number, value in fields(claim):
        if number != 4:
            continue
        driver = device = ""
        for part, word in fields(message(value)):
            if part == 2:
                driver = text(word)
            elif part == 4:
                device = text(word)
        if driver in _claim_drivers() and device:
            devices.append((driver, device))
    return devices
