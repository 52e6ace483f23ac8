"""Claims become allocations: the scheduler's device ids are matched with the GPUs that are visible now.

Kubelets before 1.34 still list pods that have ended. A claim of a pod that is known to have ended is dropped;
where two pods claim the same unshared device, the one with a process on it has it (`owner_join.mark_used`).
ABSENT while no scheduler has answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from gpuscope.owners.allocation_claims import AllocationClaim
from gpuscope.owners.device_ids import DeviceIndex, uuid_of
from gpuscope.owners.pods import Pods
from gpuscope.readings import ABSENT, Allocation, Device, Maybe, Uuid

Claims = Maybe[tuple[AllocationClaim, ...]]


class AllocationMatcher:
    """`claims` are taken every cycle, and matched again only after they, the pods or the GPUs changed."""

    def __init__(self, claims: Sequence[Callable[[], Claims]], pods: Callable[[], Pods]) -> None:
        self._claims = claims
        self._pods = pods
        self._made_of: tuple[object, ...] = ()
        self._made: tuple[Allocation, ...] = ()

    def allocations(self, devices: Sequence[Device]) -> Maybe[tuple[Allocation, ...]]:
        answers = [answer for ask in self._claims if (answer := ask()) is not ABSENT]
        if not answers:
            return ABSENT
        pods = self._pods()
        made_of = (*answers, pods, _identity(devices))
        if len(made_of) != len(self._made_of) or not _same(made_of, self._made_of):
            index = DeviceIndex(devices)
            self._made = tuple(
                to_allocation(claim, index, pods)
                for answer in answers
                for claim in answer
                if not _has_ended(claim, pods)
            )
            self._made_of = made_of
        return self._made


def _same(some: Iterable[object], others: Iterable[object]) -> bool:
    pairs = zip(some, others, strict=True)
    return all(one is other or (isinstance(one, list) and one == other) for one, other in pairs)


def _identity(devices: Sequence[Device]) -> list[tuple[Uuid, int, Maybe[int], tuple[Uuid, ...]]]:
    return [
        (device.uuid, device.index, device.minor_number, tuple(i.uuid for i in device.instances))
        for device in devices
    ]


def _has_ended(claim: AllocationClaim, pods: Pods) -> bool:
    if claim.pod is ABSENT or claim.namespace is ABSENT:
        return False
    pod = pods.by_name.get((claim.namespace, claim.pod))
    return pod is not None and pod.running is False


def to_allocation(claim: AllocationClaim, index: DeviceIndex, pods: Pods) -> Allocation:
    target = index.find(claim.device_id)
    gpu: Maybe[Uuid] = ABSENT
    instance: Maybe[Uuid] = ABSENT
    if target is not None:
        gpu, instance = uuid_of(target)
    pod = None
    if claim.pod is not ABSENT and claim.namespace is not ABSENT:
        pod = pods.by_name.get((claim.namespace, claim.pod))
    return Allocation(
        gpu_uuid=gpu,
        instance_uuid=instance,
        device_id=claim.device_id,
        resource=claim.resource,
        replica=ABSENT if target is None else target.replica,
        namespace=claim.namespace,
        pod=claim.pod,
        pod_uid=ABSENT if pod is None else pod.uid,
        pod_labels=() if pod is None else pod.labels,
        container=claim.container,
        job=claim.job,
    )
