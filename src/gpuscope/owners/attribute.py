"""The owner of a process, put together from what /proc, Kubernetes and the container runtime say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from gpuscope.owners.lookup import Found
from gpuscope.owners.pods import NO_PODS, Pods
from gpuscope.readings import ABSENT, Maybe, Owner


@dataclass(frozen=True, slots=True)
class ContainerName:
    """A container's name and image, as its runtime tells them."""

    name: Maybe[str] = ABSENT
    image: Maybe[str] = ABSENT


Containers = Mapping[str, ContainerName]


def owner_of(found: Found, pods: Pods = NO_PODS, containers: Containers = {}) -> Owner:  # noqa: B006 - read only
    place, slurm = found.place, found.slurm
    container_id = place.container_id
    pod = pods.find(place.pod_uid, container_id)
    named = ContainerName() if container_id is ABSENT else containers.get(container_id, ContainerName())
    container, image = named.name, named.image
    if pod is not None and container_id is not ABSENT:
        inside = pod.container(container_id)
        container = inside.name if inside is not None else container
        image = inside.image if inside is not None and inside.image is not ABSENT else image
    return Owner(
        user=found.user,
        group=found.group,
        container_id=container_id,
        container=container,
        image=image,
        pod=ABSENT if pod is None else pod.name,
        namespace=ABSENT if pod is None else pod.namespace,
        pod_uid=place.pod_uid if pod is None else pod.uid,
        pod_labels=() if pod is None else pod.labels,
        job=place.job if place.job is not ABSENT else slurm.job,
        job_step=place.job_step if place.job_step is not ABSENT else slurm.job_step,
        job_array=slurm.job_array,
        job_account=slurm.job_account,
        job_partition=slurm.job_partition,
    )
