"""The kubelet's pod-resources v1 API: which container was allocated which devices.

Its answers contain the names of pods, not their UIDs, and no container ids. Kubelets before 1.34 also list pods
that have ended. Ordinary init and ephemeral containers are never listed: their processes are known by cgroup
alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from gpuscope.clock import Clock
from gpuscope.owners.allocation_claims import AllocationClaim
from gpuscope.owners.grpc.call import call
from gpuscope.owners.grpc.protobuf import fields, message, text
from gpuscope.owners.lookup_timing import kubelet_timing
from gpuscope.settings import Settings
from gpuscope.worker import FunctionReader, Worker

LIST: Final = "/v1.PodResourcesLister/List"
GPU_RESOURCES: Final = ("nvidia.com/gpu", "nvidia.com/mig-", "nvidia.com/pgpu", "amd.com/gpu")
MAX_CLAIMS: Final = 100_000
DRA_RESOURCE: Final = "gpu.nvidia.com"
TIMEOUT_SECONDS: Final = 10.0


def kubelet_worker(settings: Settings, clock: Clock) -> Worker[tuple[AllocationClaim, ...]]:
    reader = FunctionReader(
        lambda: list_claims(settings.kubelet_socket, settings.resource_names, TIMEOUT_SECONDS)
    )
    return Worker(
        "kubelet",
        "allocations of this node's GPUs to pods",
        lambda: reader,
        kubelet_timing(settings),
        clock,
        reuse_equal=True,
    )


def list_claims(
    socket: str, resource_names: Collection[str] = (), timeout: float = 10.0
) -> tuple[AllocationClaim, ...]:
    """Raises SourceError when the kubelet does not answer, or with something else."""
    return decode_list(call(socket, LIST, timeout=timeout), resource_names)


def is_gpu(resource: str, also: Collection[str] = ()) -> bool:
    """nvidia.com/gpu, gpu.shared, mig-1g.5gb, mig-1g.5gb.shared, pgpu; amd.com/gpu; and `also`."""
    return resource.startswith(GPU_RESOURCES) or resource in also


def decode_list(answer: bytes, resource_names: Collection[str] = ()) -> tuple[AllocationClaim, ...]:
    claims: dict[AllocationClaim, None] = {}  # each claim once, in the order of the answer
    for number, pod in fields(answer):
        if number == 1:
            claims.update(dict.fromkeys(_pod_claims(message(pod), resource_names)))
        if len(claims) > MAX_CLAIMS:
            break
    return tuple(claims)


def _pod_claims(pod: bytes, resource_names: Collection[str]) -> Iterator[AllocationClaim]:
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
        container_name, devices = _container_devices(container, resource_names)
        for resource, device_id in devices:
            yield AllocationClaim(
                device_id=device_id,
                resource=resource,
                namespace=namespace,
                pod=name,
                container=container_name,
            )


def _container_devices(container: bytes, resource_names: Collection[str]) -> tuple[str, list[tuple[str, str]]]:
    name, devices = "", []
    for number, value in fields(container):
        if number == 1:
            name = text(value)
        elif number == 2:
            devices += _plugin_devices(message(value), resource_names)
        elif number == 5:
            devices += _dynamic_devices(message(value))
    return name, devices


def _plugin_devices(entry: bytes, resource_names: Collection[str]) -> list[tuple[str, str]]:
    resource, ids = "", []
    for number, value in fields(entry):
        if number == 1:
            resource = text(value)
        elif number == 2:
            ids.append(text(value))
    return [(resource, device_id) for device_id in ids] if is_gpu(resource, resource_names) else []


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
        if driver == DRA_RESOURCE and device:
            devices.append((driver, device))
    return devices
